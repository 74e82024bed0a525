"""Shells complete files, names of environments and settings, at once and without torch."""

import fcntl
import json
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gymnast.commands.completion.words import (
    STOP_REASONS,
    complete_environment,
    complete_override,
    complete_run,
    complete_stop_reason,
    complete_target,
    complete_yaml,
)
from gymnast.types import StopReason

ROOT = Path(__file__).parents[2]
BIN = str(Path(sys.executable).parent)
KEYS = ["trainer.steps=", "trainer.steps=100"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With configurations, a run and an environment; no shell of the test is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("_GYMNAST_COMPLETE", raising=False)
    for name in ("one.yaml", "two.yml", "notes.txt", ".hidden.yaml", "deep/er/a.yaml", "env.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "runs/first").mkdir(parents=True)
    (tmp_path / "runs/first/config.yaml").write_text("")
    return tmp_path


def words(found: Sequence[tuple[str, str]]) -> list[str]:
    return [word for word, _ in found]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("", ["deep/", "one.yaml", "runs/", "two.yml"]),
        ("o", ["one.yaml"]),
        ("d", ["deep/er/a.yaml"]),  # a folder alone is entered
        (".h", [".hidden.yaml"]),
        ("nothing", []),
        ("nowhere/x", []),
    ],
)
def test_a_configuration_is_found(folder: Path, written: str, found: list[str]) -> None:
    assert complete_yaml(written) == found


def test_a_run_is_found(folder: Path) -> None:
    assert complete_run("r") == ["runs/first"]
    assert complete_run(f"{folder}/ru") == [f"{folder}/runs/first"]


def test_what_is_evaluated_is_a_run_or_followed_by_settings(folder: Path) -> None:
    assert words(complete_target("ru")) == ["runs/first"]
    assert words(complete_target("trainer.steps")) == KEYS


def test_stop_reasons_are_those_that_there_are() -> None:
    assert [*STOP_REASONS] == [str(reason) for reason in StopReason]
    assert complete_stop_reason("max") == ["max_turns", "max_tokens"]


def test_environments_are_found_by_id_by_adapter_and_as_files(folder: Path) -> None:
    assert complete_environment("gymnast/A") == ["gymnast/Arithmetic-v0"]
    assert complete_environment("gymnas") != complete_environment("gymnast/")
    assert complete_environment("mc") == ["mcp:"]
    assert complete_environment("en") == ["env.py"]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("tr", ["trainer.", "trackers="]),
        ("trainer.steps", KEYS),
        ("trainer.optimizer=a", ["trainer.optimizer=adamw"]),
        ("environment.id=gymnast/A", ["environment.id=gymnast/Arithmetic-v0"]),
        ("deterministic=", ["deterministic=true", "deterministic=false"]),
        ("data.train", ["data.train=", "data.train=null"]),
        ("no.such", []),
        ("no.such=", ["no.such=null"]),
    ],
)
def test_settings_are_found(folder: Path, written: str, found: list[str]) -> None:
    assert [word for word in words(complete_override(written)) if word in found] == found
    assert bool(complete_override(written)) == bool(found)


def test_keys_come_section_by_section_each_with_its_meaning(folder: Path) -> None:
    assert {"model.", "trainer.", "seed="} <= {*words(complete_override(""))}
    assert "model.lora." in words(complete_override("model."))
    assert all(meaning for word, meaning in complete_override("trainer.c") if word[-1] == "=")


def test_no_key_and_no_folder_is_alone(folder: Path) -> None:
    """A shell would put a space behind it."""
    for key in json.loads((ROOT / "gymnast/commands/completion/run_keys.json").read_text()):
        for length in range(len(key) + 1):
            found = words(complete_override(key[:length]))
            assert len(found) > 1, key


def test_it_imports_nothing_that_takes_long(folder: Path) -> None:
    slow = {"torch", "transformers", "datasets", "numpy", "yaml"}
    program = (
        "import sys; from gymnast.cli import main\n"
        "try: main()\n"
        f"except SystemExit: print(sorted({slow} & {{*sys.modules}}))"
    )
    asked = {"_GYMNAST_COMPLETE": "complete_bash", "COMP_CWORD": "3"}
    asked |= {"COMP_WORDS": "gymnast train one.yaml trainer.steps"}
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['gymnast']\n{program}"],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == [*KEYS, "[]"]


@pytest.fixture
def home(folder: Path) -> dict[str, str]:
    """The variables of a shell whose user has a home of their own."""
    home = folder / "home"
    home.mkdir()
    return {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb"}


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")


def completed(shell: str, variables: dict[str, str], text: str, expected: str) -> str:
    """What a shell at a wide terminal shows once a text was typed, up to what is expected."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, 400, 0, 0))
    process = subprocess.Popen(
        [shell, "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=variables,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        read_until(ours, lambda shown: any(f"{sign} " in shown for sign in "#$%"))
        os.write(ours, text.encode())
        shown = read_until(ours, lambda shown: expected in shown or "\a" in shown)
        if expected not in shown:  # zsh reads the function at the first Tab
            os.write(ours, b"\t")
            before = shown.replace("\a", "")
            shown = before + read_until(ours, lambda shown: expected in before + shown)
        return shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, holds: Callable[[str], bool], timeout_s: float = 60.0) -> str:
    """What a terminal shows until something holds of it, or nothing more comes."""
    said = b""
    while not holds(said.decode(errors="replace")):
        if not select.select([terminal], [], [], timeout_s)[0]:
            break
        try:
            said += os.read(terminal, 65536)
        except OSError:  # the shell has ended
            break
    return said.decode(errors="replace")


@pytest.mark.shells
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_at_its_terminal(shell: str, home: dict[str, str]) -> None:
    needs(shell)
    installed = subprocess.run(
        [shell, "-c", "gymnast --install-completion; true"],
        env=home,
        capture_output=True,
        text=True,
    )
    assert f"{shell} completion installed" in installed.stdout, installed
    for text, expected in {
        "gymnast train on\t": "one.yaml",
        "gymnast check gymnast/Ar\t": "gymnast/Arithmetic-v0",
        "gymnast train one.yaml trainer.ste\t": "trainer.steps=",
        "gymnast train one.yaml deterministic=t\t": "deterministic=true",
    }.items():
        assert expected in completed(shell, home, text, expected)


@pytest.mark.shells
def test_fish_completes(home: dict[str, str]) -> None:
    needs("fish")
    asked = [
        *("gymnast train on", "gymnast check gymnast/Ar"),
        *("gymnast train one.yaml trainer.ste", "gymnast train one.yaml deterministic=t"),
    ]
    program = "gymnast --show-completion | source; " + "; ".join(
        f'complete -C "{a}"' for a in asked
    )
    ended = subprocess.run(
        ["fish", "-c", program], env=os.environ | home, capture_output=True, text=True
    )
    shown = [line.partition("\t")[0] for line in ended.stdout.splitlines()]
    assert shown == ["one.yaml", "gymnast/Arithmetic-v0", *KEYS, "deterministic=true"]
