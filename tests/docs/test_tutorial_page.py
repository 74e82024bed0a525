"""docs/tutorial.md: each step works, and the page shows its file, or what differs in it."""

import difflib
import re
import shutil
from pathlib import Path

import pytest

from command_fixtures import CommandLine
from pages import ROOT, blocks, files

PAGE = ROOT / "docs/tutorial.md"
TEXT = PAGE.read_text()
STEPS = ROOT / "examples/tutorial"
STEP_FILES = [each for each in sorted(STEPS.iterdir()) if each.suffix == ".py"]
COMMANDS = [
    line.partition(" #")[0].split()[1:] for each in blocks(PAGE) for line in each.text.splitlines()
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page's commands run: it has the steps, and nothing else."""
    shutil.copytree(STEPS, tmp_path / "clone/examples/tutorial")
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


def difference(old: str, new: str) -> str:
    """What the page shows of two steps; their first lines, which name them, are left out."""
    before, after = (["#", *(ROOT / name).read_text().splitlines()[1:]] for name in (old, new))
    return "\n".join(difflib.unified_diff(before, after, old, new, n=1, lineterm=""))


def test_every_step_is_shown_whole_or_as_its_difference() -> None:
    differences = re.findall(r"```diff\n--- (\S+)\n\+\+\+ (\S+)\n.*?```", TEXT, re.DOTALL)
    for old, new in differences:
        assert f"```diff\n{difference(old, new)}\n```" in TEXT, new
    shown = {*files(PAGE), *(new for _, new in differences)}
    named = {f"examples/tutorial/{each.name}" for each in STEPS.iterdir() if each.is_file()}
    assert named - shown == {"examples/tutorial/hunts.jsonl"}
    assert f"```json\n{(STEPS / 'hunts.jsonl').read_text()}```" in TEXT


@pytest.mark.parametrize("step", STEP_FILES, ids=lambda path: path.stem)
def test_a_step_passes_its_check_and_its_solve_is_paid(
    step: Path, folder: Path, gymnast: CommandLine
) -> None:
    name = f"examples/tutorial/{step.name}:{'Dungeon' if step.stem == 'step7' else 'Hunt'}"
    ended = gymnast("check", str(folder / name))
    assert ended.code == 0, ended.errors
    assert ["check", name] in COMMANDS
    (solve,) = re.findall(r"^  solve +(.*)$", ended.output, re.MULTILINE)
    rewards = [float(reward) for reward in re.findall(r"([\d.]+) \(", solve)]
    assert rewards and min(rewards) >= 1.0
    assert "  doing nothing   0 " in ended.output
    if step.stem == "step1":
        assert ended.output.partition("schema:\n\n")[2].partition("\n\nThe prompt")[0] in TEXT


def test_the_calls_of_the_page_are_answered_as_it_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = (
        text for text in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "act(" in text
    )
    exec(compile(code, "docs/tutorial.md", "exec", dont_inherit=True), {})
    assert f"```\n{capsys.readouterr().out}```" in TEXT


def test_the_other_commands_work(
    folder: Path, gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    said = []
    for command in COMMANDS:
        if command[0] != "check" or "sandbox=local" in command:
            ended = gymnast(*command)
            assert ended.code == 0, (command, ended.errors)
            said.append(ended.output)
    assert any(" or the " in each for each in said)
    assert any('-> shell(command="grep -rh digit hall")' in each for each in said)
    assert Path("dungeon.html").exists()
