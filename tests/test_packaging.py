"""The folders, the package tables and the links for type checkers agree."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"envs", "agents", "trainers", "sandboxes"}


def test_every_package_folder_is_listed() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    roots = {"gymnast": "gymnast", **setuptools["package-dir"]}
    on_disk = {
        ".".join([name, *init.parent.relative_to(ROOT / folder).parts])
        for name, folder in roots.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert on_disk == set(setuptools["packages"])


def test_every_file_that_is_no_module_is_listed() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {"gymnast": "gymnast", **setuptools["package-dir"]}
    listed = set()
    for package, patterns in setuptools["package-data"].items():
        root = max((each for each in folders if f"{package}.".startswith(f"{each}.")), key=len)
        home = ROOT.joinpath(folders[root], *package.removeprefix(root).split("."))
        listed |= {path for pattern in patterns for path in home.glob(pattern)}
    tracked = subprocess.run(
        ["git", "ls-files", *folders.values()], cwd=ROOT, capture_output=True, text=True, check=True
    )
    others = {ROOT / name for name in tracked.stdout.split() if not name.endswith(".py")}
    sources = ROOT / "gymnast/viewer/page"  # of gymnast/viewer/static
    assert {path for path in others if not path.is_relative_to(sources)} == listed


def test_type_checkers_see_every_module() -> None:
    linked = {path.name for path in (ROOT / "typings/gymnast").iterdir()}
    core = {path.name for path in (ROOT / "gymnast").iterdir() if path.name != "__pycache__"}
    assert linked == core | FOLDERS


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_bare_folder_names_are_not_importable(folder: str, tmp_path: Path) -> None:
    """Another package may have the name, as the OpenAI Agents SDK does."""
    program = f"import {folder}; print({folder}.__path__)"
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert repr(str(ROOT / folder)) not in ended.stdout.decode()


def test_no_file_of_the_library_is_longer_than_800_lines() -> None:
    for folder in FOLDERS | {"gymnast"}:
        for path in (ROOT / folder).rglob("*.py"):
            assert len(path.read_text().splitlines()) <= 800, path
