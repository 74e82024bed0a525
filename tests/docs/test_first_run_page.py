"""docs/first_run.md can be followed from an empty folder, and says what is printed and written."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

import gymnast
from command_fixtures import CommandLine
from pages import ROOT, SHORT, blocks, files, languages

PAGE = ROOT / "docs/first_run.md"
TEXT = PAGE.read_text()


def commands() -> list[list[str]]:
    """Those of the page's fast blocks, before comments."""
    lines = [
        line for each in blocks(PAGE) if each.kind == "fast" for line in each.text.splitlines()
    ]
    return [line.partition(" #")[0].split() for line in lines]


def table(heading: str) -> list[str]:
    """The names in the first column of a table."""
    _, _, rest = TEXT.partition(f"\n| {heading} | ")
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def test_it_can_be_followed_from_an_empty_folder(
    gymnast: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty/examples").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "empty")
    for name, text in files(PAGE).items():
        Path(name).write_text(text)
    said = ""
    for program, *words in commands():
        if program == "gymnast":
            short = SHORT.split() if words[0] == "train" else []
            step_1 = [word if word != "3" else "1" for word in words]  # the last of a short run
            ended = gymnast(*step_1, *short)
            assert ended.code == 0, (words, ended.errors)
            said += ended.errors + ended.output

    said = " ".join(said.split())
    for name in table("printed"):
        assert re.search(re.sub(r"\d+", r"\\d+", re.escape(name)), said), name
    for name in table("in `runs/first`"):
        # A run that learns has no advice, and one that gets no better has no best evaluation.
        assert Path("runs/first", name).exists() or name in {"advice.jsonl", "best/"}, name
    assert {each.name for each in Path("runs/first").iterdir()} - {"run.lock"} <= {
        name.rstrip("/") for name in table("in `runs/first`")
    }


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with the names of a release's, which need no package; pip installs elsewhere."""
    version = gymnast.__version__
    assert "/constraints-$version.txt" in (ROOT / "scripts/release").read_text()
    monkeypatch.chdir(tmp_path)
    for name, value in (("TARGET", "installed"), ("NO_INDEX", "1"), ("CONSTRAINT", "")):
        monkeypatch.setenv(f"PIP_{name}", value)
    Path(f"constraints-{version}.txt").touch()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [f"Provides-Extra: {extra}" for extra in project["optional-dependencies"]]
    about = ["Metadata-Version: 2.1", "Name: gymnast-rl", f"Version: {version}", *extras, ""]
    kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with ZipFile(f"gymnast_rl-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in (("METADATA", "\n".join(about)), ("WHEEL", kind), ("RECORD", "")):
            wheel.writestr(f"gymnast_rl-{version}.dist-info/{name}", text)


@pytest.mark.usefixtures("release")
def test_a_release_is_installed_by_its_files() -> None:
    (text,) = languages(PAGE)["bash"]
    for line in text.splitlines():
        program, *words = shlex.split(line)
        assert program == "pip"
        ended = subprocess.run(
            [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=True
        )
        assert "does not provide the extra" not in ended.stderr
    assert [path.name for path in Path("installed").iterdir()] == [
        f"gymnast_rl-{gymnast.__version__}.dist-info"
    ]
