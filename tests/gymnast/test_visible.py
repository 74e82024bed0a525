"""Nothing that others wrote steers a terminal: what it would do is shown, on every way out."""

import ast
import inspect
import io
import logging
import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from command_fixtures import CommandLine
from gymnast import errors
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Renderer, check_env, tool
from gymnast.envs.records.episode import CallRecord, Episode
from gymnast.sandboxes import LocalSandbox
from gymnast.trainers.reporting.console import DetailedConsole, RunConsole
from gymnast.types import Message, Span, StopReason, ToolCall, Trajectory
from gymnast.visible import visible, visible_line, visible_logger

ROOT = Path(__file__).parents[2]

C0 = {chr(code) for code in range(32)} - {"\n", "\t"}
C1 = {chr(code) for code in range(0x7F, 0xA0)}
DIRECTIONS = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
LINES = set("\u2028\u2029")
UNSEEN = set("\u200b\u2060\ufeff\U000e0041")
HALVES = {chr(code) for code in (0xD800, 0xDBFF, 0xDC80, 0xDFFF)}
STEERING = C0 | C1 | DIRECTIONS | LINES | UNSEEN | HALVES
TITLE = "\x1b]0;title\x07"

steering = st.sampled_from(sorted(STEERING))
texts = st.text(st.one_of(st.characters(exclude_categories=()), steering, st.sampled_from("a\n\t")))
hostile = st.tuples(texts, steering, texts).map("".join)


def steers(text: str) -> set[str]:
    return {c for c in text if c in STEERING or 0xD800 <= ord(c) <= 0xDFFF}


# The function


@given(texts)
def test_what_is_visible_steers_nothing_and_is_so_at_once(text: str) -> None:
    shown = visible(text)
    assert not steers(shown)
    assert visible(shown) == shown
    shown.encode()  # which a terminal takes
    assert shown.count("\n") == text.count("\n"), "lines stay"
    assert not steers(visible_line(text)) and not set("\n\t") & set(visible_line(text))


@pytest.mark.parametrize(
    "text",
    [
        "plain, and tab\tand\nnewline",
        "Größe 大きさ\u3000حجم",
        "می\u200cشود",
        "👩\u200d🚀 🎉",
        "a\u00a0b",
    ],
)
def test_text_of_any_script_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (TITLE, r"\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("safe\rrm -rf", r"safe\rrm -rf"),
        ("\u202etxt.exe", r"\u202etxt.exe"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_steers_is_written_as_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


# Exceptions

ERRORS = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, errors.GymnastError)
]


def raised(kind: type[errors.GymnastError], text: str) -> errors.GymnastError:
    if issubclass(kind, errors.UserCodeError):
        return kind("reward", {"prompt": text}, text)
    if issubclass(kind, errors.SandboxFileError):
        return kind(2, text, text)
    return kind(text)


@given(kind=st.sampled_from(ERRORS), text=hostile)
def test_every_error_says_what_is_safe_to_print(kind: type[errors.GymnastError], text: str) -> None:
    error = raised(kind, text)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert not steers(str(one)) and not steers(repr(one))
        assert not steers("".join(traceback.format_exception(one)))


def test_an_error_about_a_path_in_a_box_shows_the_path() -> None:
    with LocalSandbox() as box, pytest.raises(errors.SandboxFileError) as failed:
        box.read_file(f"{TITLE}\n.txt")
    assert str(failed.value).startswith(r"\x1b]0;title\x07\n.txt: ")
    assert failed.value.filename == f"{TITLE}\n.txt", "as it was given"


# Logs


@given(text=hostile)
def test_a_record_is_safe_whatever_handler_a_program_has(text: str) -> None:
    written = io.StringIO()
    logger = visible_logger("gymnast.tests")
    handler = logging.StreamHandler(written)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        logger.warning(text.replace("%", "%%"))
        logger.warning("%s and %.20s", text, text)
        try:
            raise ValueError(text) from KeyError(text)
        except ValueError:
            logger.exception("it failed")
    finally:
        logger.removeHandler(handler)
    assert "ValueError" in written.getvalue()
    assert not steers(written.getvalue())


def test_an_argument_without_a_text_does_not_stop_who_logs() -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    logger = visible_logger("gymnast.tests")
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, "%s", (Mute(),), None)
    assert logger.filter(record), "its handler says what is wrong"


def test_every_logger_of_the_package_is_such_a_one() -> None:
    for package in ("gymnast", "envs", "agents", "sandboxes", "trainers"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger"):
                    (name,) = node.args
                    ours = ast.unparse(name) in ("__name__", "name") or "gymnast." in str(
                        getattr(name, "value", "")
                    )
                    assert not ours or path.name == "visible.py", f"{path}:{node.lineno}"


# A run


def trajectory(text: str) -> Trajectory:
    call = {"function": {"name": text, "arguments": {text: text}}}
    told: list[Any] = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "content": text},
        {"role": "assistant", "content": "", "raw": text},
    ]
    return Trajectory(
        ids=[0, 1, 2],
        action_mask=[0, 1, 1],
        logprobs=[0.0] * 3,
        prompt_length=1,
        turns=[Span(1, 2), Span(2, 3)],
        turn_rewards=[0.0, 1.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        messages=told,
    )


@given(text=hostile)
@pytest.mark.parametrize("form", [RunConsole, DetailedConsole])
@pytest.mark.parametrize("terminal", [False, True])
def test_the_console_shows_samples_tags_and_metrics_safely(
    form: type[RunConsole], terminal: bool, text: str
) -> None:
    written = io.StringIO()
    plain = Console(file=written, force_terminal=terminal, color_system=None, width=100)
    console = form(plain)  # without `on_start`, whose bar moves
    metrics = {
        "reward/mean": 0.5,
        "eval/reward/mean": 0.5,
        "eval/rows": 2.0,
        f"eval/by/{text}/reward/mean": 0.5,
        f"eval/by/{text}/rows": 1.0,
        f"eval/by/other{text}/reward/mean": 0.5,
        f"eval/by/other{text}/rows": 1.0,
        f"episodes/left_out/{text}": 1.0,
        "episodes/left_out": 1.0,
        text: 1.0,
    }
    groups = [[trajectory(text)]]
    console.on_step(1, metrics, groups)
    console.on_evaluation(1, metrics, groups)
    assert "95% intervals" in written.getvalue(), "the table was shown"
    assert not steers(written.getvalue())


@given(text=hostile)
def test_the_records_of_an_episode_are_safe_to_print(text: str) -> None:
    message: Message = {"role": "user", "content": text}
    record = CallRecord(ToolCall("call", text, {text: text}), {}, text, text, None, 0.0)
    for thing in (record, trajectory(text), Episode({"prompt": text}, (message,))):
        assert not steers(str(thing))


# Checking an environment


class Hostile(Environment):
    """Writes what steers a terminal wherever it can."""

    @tool
    def title(self, what: str) -> str:
        """Give a title.

        Args:
            what: Anything.
        """
        return f"{TITLE}\r\u202e\ud800"

    def sample_row(self, rng: Any) -> dict[str, Any]:
        return {"prompt": f"Hello {TITLE}\x9b2J\rbye"}

    def reward(self, episode: Episode) -> float:
        return 0.0


def test_a_report_and_a_drawn_conversation_are_safe_to_print() -> None:
    environment = Hostile(Renderer(tiny_tokenizer()), render_mode="ansi")
    report = str(check_env(environment))
    assert r"\x1b]0;title\x07" in report
    assert not steers(report)
    environment.reset(seed=0)
    drawn = environment.render()
    assert drawn is not None and r"\x1b]0;title\x07\x9b2J\rbye" in drawn
    assert not steers(drawn)


def test_a_tool_with_a_bug_is_told_of_safely() -> None:
    class Broken(Hostile):
        @tool
        def title(self, what: str) -> str:
            """Give a title.

            Args:
                what: Anything.
            """
            raise NotImplementedError(TITLE)

    with pytest.raises(AssertionError) as failed:
        check_env(Broken(Renderer(tiny_tokenizer())))
    assert r"\x1b]0;title\x07" in str(failed.value)
    assert not steers(str(failed.value))


# Commands

ENVIRONMENT = '''
from gymnast.envs import Environment, tool

class Hostile(Environment):
    """\\x1b]0;title\\x07"""

    @tool
    def look(self) -> str:
        """Look."""
        return "\\x1b]0;title\\x07"

    def sample_row(self, rng):
        return {"prompt": "\\x1b]0;title\\x07"}

    def reward(self, episode):
        FAILURE
        return 0.0
'''


@pytest.mark.parametrize(
    ("failure", "code"), [("pass", 0), ("raise KeyError('\\x1b]0;title\\x07\\r')", 1)]
)
def test_checking_prints_nothing_that_steers(
    gymnast: CommandLine,
    failure: str,
    code: int,
) -> None:
    Path("hostile.py").write_text(ENVIRONMENT.replace("FAILURE", failure))
    ran = gymnast("check", "hostile.py:Hostile")
    assert ran.code == code, ran.errors
    assert r"\x1b]0;title\x07" in ran.output + ran.errors
    assert not steers(ran.output) and not steers(ran.errors)


PROGRAM = """
import logging, sys, threading, warnings
from gymnast.commands.output import escape_what_python_writes
escape_what_python_writes()
escape_what_python_writes()
text = "\\x1b]0;title\\x07" + chr(0xD800)
warnings.warn(text)
logging.getLogger("elsewhere").warning("%s", text)
logging.getLogger("asyncio").error("it failed", exc_info=KeyError(text))
def fail():
    raise ValueError(text)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
class Deleted:
    __del__ = lambda self: fail()
Deleted()
fail()
"""


def test_what_python_writes_in_a_command_is_safe(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    said = ended.stderr.decode()
    assert ended.returncode == 1
    assert said.count(r"UserWarning: \x1b]0;title\x07\ud800") == 1, said
    assert said.count(r"ValueError: \x1b]0;title\x07\ud800") == 3, said
    assert "Exception ignored in: <function Deleted" in said
    assert said.count("\n" + r"\x1b]0;title\x07\ud800") == 1, said
    assert "it failed\nKeyError: " in said
    assert not steers(said)
