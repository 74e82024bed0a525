"""docs/inside.md: what it names exists, its example prints what it says, its drawing is drawn."""

import ast
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pages import ROOT

PAGE = (ROOT / "docs/inside.md").read_text()
DRAWING = ROOT / "docs/images/token.svg"
STEPS = re.findall(r"\| `((?!tests/)[\w/]+\.py)`: `([\w.]+)` \|$", PAGE, re.MULTILINE)
TESTS = [
    (path, name)
    for path, names in re.findall(r"`(tests/[\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", PAGE)
    for name in re.findall(r"`(\w+)`", names)
]


def defined(path: Path) -> set[str]:
    """The names of a file's functions, classes and their methods."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (
                each
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            )
            found |= {f"{node.name}.{each.name}" for each in inner}
    return found


@pytest.mark.parametrize(("path", "name"), [*STEPS, *TESTS])
def test_what_it_names_is_in_its_file(path: str, name: str) -> None:
    assert name in defined(ROOT / path)


def test_every_table_was_read() -> None:
    tables = PAGE.split("| file, and where to begin in it |")[1:]
    rows = [line for table in tables for line in table.partition("\n\n")[0].splitlines()[2:]]
    assert len(STEPS) == len(rows) > 20
    rules = PAGE.partition("| rule | why | tested in |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len({*TESTS}) == len(TESTS) >= len(rules) > 10


def test_every_path_is_there() -> None:
    named = re.findall(
        r"`((?:gymnast|envs|agents|trainers|sandboxes|examples|tests)[\w/.]*)`", PAGE
    )
    assert len(named) > 30
    assert not [path for path in named if "/" in path and not (ROOT / path).exists()]


def test_its_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/inside.md", "exec", dont_inherit=True), {})
    assert f"```\n{capsys.readouterr().out}```" in PAGE


def test_the_drawing_is_what_its_script_draws_and_says_what_it_shows() -> None:
    drawn = runpy.run_path(str(DRAWING.with_name("draw_token.py")))["svg"]()
    assert DRAWING.read_text() == drawn
    svg = ElementTree.fromstring(drawn)
    space = {"svg": "http://www.w3.org/2000/svg"}
    title, description = svg.find("svg:title", space), svg.find("svg:desc", space)
    assert title is not None and description is not None
    assert svg.get("role") == "img"
    assert svg.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
