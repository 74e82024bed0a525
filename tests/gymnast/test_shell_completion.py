"""Shells complete files, names of environments and settings, at once and without torch."""

import json
import os
import pty
import select
import shutil
import subprocess
import sys
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
QUIET_S = 2.0
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
def typed(folder: Path) -> Callable[[str, str], str]:
    """What a shell at a terminal shows once a text was typed: `typed("bash", "gymnast tr\\t")`."""

    def typed(shell: str, text: str) -> str:
        if shutil.which(shell) is None:
            pytest.skip(f"there is no {shell}")
        home = folder / "home"
        home.mkdir(exist_ok=True)
        env = {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb"}
        installed = subprocess.run(
            [shell, "-c", "gymnast --install-completion; true"],
            env=env,
            capture_output=True,
            text=True,
        )
        assert f"{shell} completion installed" in installed.stdout, installed
        return at_a_terminal([shell, "-i"], env, text)

    return typed


def at_a_terminal(command: list[str], env: dict[str, str], text: str) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    try:
        read_until_quiet(ours, QUIET_S)
        os.write(ours, text.encode())
        shown = read_until_quiet(ours, QUIET_S)
        if shown.endswith("\a"):  # zsh reads the function at the first Tab
            os.write(ours, b"\t")
            shown += read_until_quiet(ours, QUIET_S)
        return shown.replace("\a", "")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until_quiet(terminal: int, quiet_s: float) -> str:
    said = b""
    while select.select([terminal], [], [], quiet_s)[0]:
        try:
            said += os.read(terminal, 65536)
        except OSError:  # the shell has ended
            break
    return said.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_at_its_terminal(shell: str, typed: Callable[[str, str], str]) -> None:
    assert "one.yaml" in typed(shell, "gymnast train on\t")
    assert "gymnast/Arithmetic-v0" in typed(shell, "gymnast check gymnast/Ar\t")
    assert "trainer.steps=" in typed(shell, "gymnast train one.yaml trainer.ste\t")
    assert "deterministic=true" in typed(shell, "gymnast train one.yaml deterministic=t\t")


@pytest.mark.slow
def test_fish_completes(folder: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("there is no fish")
    asked = [
        *("gymnast train on", "gymnast check gymnast/Ar"),
        *("gymnast train one.yaml trainer.ste", "gymnast train one.yaml deterministic=t"),
    ]
    program = "gymnast --show-completion | source; " + "; ".join(
        f'complete -C "{a}"' for a in asked
    )
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder)}
    ended = subprocess.run(["fish", "-c", program], env=env, capture_output=True, text=True)
    shown = [line.partition("\t")[0] for line in ended.stdout.splitlines()]
    assert shown == ["one.yaml", "gymnast/Arithmetic-v0", *KEYS, "deterministic=true"]
