"""Python-v0: a session that keeps its variables, what the model is told, and the reward."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gymnast.envs import Renderer, check_env, make
from gymnast.envs.boxes.box import in_words
from gymnast.envs.builtin.python import Python, gives
from gymnast.errors import DataError
from gymnast.sandboxes import ExecResult


def test_check_env_passes(renderer: Renderer) -> None:
    check_env(make("gymnast/Python-v0", renderer, sandbox="local"))


def test_code_runs_and_the_answer_is_compared(play: Callable[..., Any], calls: Any) -> None:
    env = Python(sandbox={"backend": "local", "timeout_s": 1.0})
    row = {"prompt": "What is 6 times 7?", "answer": 42}
    *told, last = play(
        env,
        calls(("python", {"code": "x = 6"})),
        calls(("python", {"code": "x * 7"})),
        calls(("python", {"code": "1 / 0"})),
        calls(("python", {"code": "while True: pass"})),
        {"role": "assistant", "content": "It is 42."},
        row=row,
    )
    texts = [outcome.messages[0]["content"] for outcome in told]
    assert texts[:2] == ["[no output]", "42"]
    assert texts[2].endswith("ZeroDivisionError: division by zero")
    assert "time limit of 1 s" in texts[3] and "variables are gone" in texts[3]
    assert (last.reward, last.info["metrics"]["ran_code"]) == (1.0, 1.0)


def test_own_rows_have_the_right_answers() -> None:
    env, rng = Python(sandbox="local"), np.random.default_rng(0)
    rows = {row["prompt"]: row["answer"] for row in (env.sample_row(rng) for _ in range(3000))}
    asked = "What is the sum of the numbers from 7 to "
    found = {text: answer for text, answer in rows.items() if text.startswith(asked)}
    assert found
    for text, answer in found.items():
        last = int(text.removeprefix(asked).partition(",")[0])
        assert answer == sum(range(7, last + 1))


@pytest.mark.parametrize(
    ("text", "expected", "right"),
    [
        ("It is 1,150.", "1150", True),
        ("1150 or 1151", "1150", False),
        ("It is 2.50", "2.5", True),
        ("The capital is Paris.", "paris", True),
        ("**New  York**", "New York", True),
        ("comparison", "paris on", False),
        ("It is not Paris, or Rome", "Paris", False),
        ("notParis", "Paris", False),
        ("", "Paris", False),
        ("", "5", False),
    ],
)
def test_when_a_text_gives_the_answer(text: str, expected: str, right: bool) -> None:
    assert gives(text, expected) is right


def test_a_row_without_an_answer_is_named() -> None:
    env = Python(sandbox="local")
    with pytest.raises(DataError, match="no 'answer'"):
        env.reset(options={"row": {"prompt": "Hm?"}})
    env.close()


@pytest.mark.parametrize(
    ("result", "command", "words"),
    [
        (ExecResult(0, "a\n", "", "ok"), True, "a"),
        (ExecResult(3, "a\n", "b\n", "nonzero"), True, "a\nb\n[exit code 3]"),
        (ExecResult(1, "", "ValueError: x\n", "nonzero"), False, "ValueError: x"),
        (ExecResult(137, "a", "", "timeout"), True, "a\n[out of time, killed]"),
        (ExecResult(137, "", "", "oom"), False, "[out of memory, killed]"),
        (ExecResult(0, "", "", "ok"), True, "[no output]"),
    ],
)
def test_what_the_model_is_told(result: ExecResult, command: bool, words: str) -> None:
    assert in_words(result, command=command) == words


def test_a_long_text_is_read_at_once() -> None:
    """All episodes of a process wait meanwhile: it must not take the square of the length."""
    assert not gives("." * 1_000_000 + "x", "cat")
