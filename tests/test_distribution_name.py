"""The distribution is called gymnast-rl: in package indexes, another project is called gymnast."""

import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from gymnast.trainers.provenance.versions import package_versions

ROOT = Path(__file__).parent.parent
NAME = r"(?<![\w./\\-])gymnast(?![\w./-])"
REQUIREMENT = re.compile(rf"{NAME}(?:\\?\[|\s*[=~<>!]=|\s*@\s*(?:git|https?|file|\{{|\$))")
COMMAND = re.compile(
    r"\b(?:pip3?|pipx|uvx?|poetry|pdm|conda|mamba|rye)\b(?! uninstall)[^\n;&|]*?[ \t]['\"]?"
    rf"{NAME}['\"]?(?:[\s`'\")]|$)"
)
PROJECT = re.compile(r"\bpypi\.org/(?:project|simple)/gymnast(?![\w.-])")


def installs_another_project(text: str) -> list[str]:
    """Return the places of a text that have an installer fetch the name `gymnast`."""
    return [match[0] for rule in (REQUIREMENT, COMMAND, PROJECT) for match in rule.finditer(text)]


@pytest.mark.parametrize(
    "text",
    [
        "pip install gymnast",
        "run `pip install -U gymnast`",
        "pip install 'gymnast[vllm]'",
        r"pip install 'gymnast\[vllm\]'",
        'INSTALL = "gymnast[mcp]"',
        "uv add gymnast && gymnast train run.yaml",
        "uvx --from gymnast gymnast train",
        'dependencies = ["gymnast>=0.1"]',
        "gymnast==0.1.0",
        "'gymnast @ git+https://example.org/g'",
        "https://pypi.org/project/gymnast/",
    ],
)
def test_ways_to_install_the_other_project_are_found(text: str) -> None:
    assert installs_another_project(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'gymnast-rl[vllm]'",
        "pip uninstall gymnast",
        "pip install -c constraints.txt -e '.[lora,demo]' && gymnast train run.yaml",
        "pip install 'path/to/gymnast[demo,lora]'",
        "pip install './gymnast_rl-0.1.0-py3-none-any.whl[lora,demo]'",
        "https://pypi.org/project/gymnast-rl/",
        "git+https://example.org/gymnast",
        "[project.scripts]\ngymnast = 'gymnast.cli:main'",
    ],
)
def test_other_uses_of_the_name_are_not_found(text: str) -> None:
    assert installs_another_project(text) == []


def files() -> Iterator[tuple[str, str]]:
    """The repository's text files, but for this one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path == Path(__file__) or not path.is_file() or path.is_symlink():
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # an image
            continue


def test_no_page_or_message_installs_the_other_project() -> None:
    found = {name: installs_another_project(text) for name, text in files()}
    assert {name: places for name, places in found.items() if places} == {}


def test_every_hint_names_an_extra_that_exists() -> None:
    extras = set(distribution("gymnast-rl").metadata.get_all("Provides-Extra") or [])
    for name, text in files():
        for named in re.findall(r"gymnast-rl\[([a-z,-]+)\]", text):
            if not name.startswith("tests/"):
                assert set(named.split(",")) <= extras, name


def test_the_import_name_and_the_command_stay() -> None:
    points = distribution("gymnast-rl").entry_points.select(group="console_scripts")
    assert {point.name: point.value for point in points} == {"gymnast": "gymnast.cli:main"}


def test_provenance_lists_what_the_distribution_requires() -> None:
    assert {"torch", "transformers", "gymnasium", "typer"} <= package_versions().keys()
