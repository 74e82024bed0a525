"""The files that a contributor meets are what their readers expect."""

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import gymnast

ROOT = Path(__file__).parent.parent
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read(path: str | Path) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_citation_is_of_this_version() -> None:
    """The keys that version 1.2.0 of the format requires, and none that it does not have."""
    cited = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= {*cited}
    optional = {"type", "version", "license", "keywords"}
    assert not {*cited} - {"cff-version", "message", "title", "authors"} - optional
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software"
    assert cited["version"] == gymnast.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["license"] == project["license"]
    assert cited["authors"] == [{"name": "The Gymnast authors"}]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_forms_of_issues_have_what_forms_need(path: Path) -> None:
    form = read(path)
    if path.name == "config.yml":
        assert {*form} <= {"blank_issues_enabled", "contact_links"}
        return
    assert form["name"] and form["description"]
    ids = [part["id"] for part in form["body"]]
    assert len({*ids}) == len(ids)
    for part in form["body"]:
        assert part["type"] in ("input", "textarea", "dropdown", "checkboxes", "markdown")
        assert part["attributes"]["label"]


def test_hooks_run_the_tools_of_ci() -> None:
    repos = read(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for repo in repos if repo["repo"] == "local" for hook in repo["hooks"]]
    ci = (ROOT / ".ci/run").read_text()
    assert [entry.replace(" --force-exclude", "") for entry in entries] == [
        "ruff check",
        "ruff format --check",
        "mypy",
    ]
    assert all(entry.split()[0] in ci for entry in entries)
    for repo in repos:
        assert repo["repo"] == "local" or repo["repo"].startswith("https://github.com/")
        assert repo["repo"] == "local" or repo["rev"]


@pytest.mark.parametrize("name", ["check", "release"])
def test_scripts_are_commands(name: str) -> None:
    path = ROOT / "scripts" / name
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)
