"""docs/isolation.md names the attacks of the suite, and says of each backend what it says."""

import ast
import json
import re
from pathlib import Path

import pytest

from attack_fixtures import ATTACKED

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "isolation.md"


def attacks() -> dict[str, list[str]]:
    """The attacks by their names, and the backends that do not contain each, by its marks."""
    found = {}
    for path in sorted(FOLDER.glob("attacks/test_attacks_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                name = (ast.get_docstring(node) or node.name).splitlines()[0]
                marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
                backends = [str(backend.values[0]) for backend in ATTACKED]
                found[name] = [one for one in backends if f"not_contained('{one}'" in marks]
    return found


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_attack_has_its_row() -> None:
    named = [row[0] for row in rows() if row[0] not in ("attack", "---")]
    assert sorted(named) == sorted(attacks())


@pytest.mark.parametrize("column", range(1, len(ATTACKED) + 1))
def test_a_cell_says_what_the_suite_expects(column: int) -> None:
    heads = {row[column] for row in rows() if row[0] == "attack"}
    assert heads == {str(ATTACKED[column - 1].values[0])}
    known = attacks()
    for row in rows():
        if row[0] in known:
            expected = "not contained: " if heads & set(known[row[0]]) else "contained: "
            assert row[column].startswith(expected), row
            assert len(row[column]) > len(expected), row


def test_an_engines_setting_names_the_runtime_that_a_spec_names() -> None:
    (setting,) = re.findall(r"```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (runtime,) = json.loads(setting)["runtimes"]
    assert f'`runtime="{runtime}"`' in PAGE.read_text("utf-8")
