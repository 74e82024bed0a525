"""docs/programs.md says what becomes of every parameter that a dialect knows, and of no other."""

import re

import pytest

from gymnast.envs.programs.serving.application import DIALECTS
from pages import ROOT

PAGE = (ROOT / "docs/programs.md").read_text()
_ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", re.MULTILINE)


def table(path: str) -> dict[str, str]:
    """What the section of a dialect says of each parameter."""
    sections = [text for text in PAGE.split("\n### ") if f"`POST {path}`" in text]
    assert len(sections) == 1, path
    section = sections[0].partition("\n## ")[0]
    return {
        name.strip("` "): said for names, said in _ROW.findall(section) for name in names.split(",")
    }


@pytest.mark.parametrize("path", DIALECTS)
def test_every_parameter_of_a_dialect_is_in_its_table(path: str) -> None:
    known, said = DIALECTS[path].parameters, table(path)
    assert said.keys() == {*known.used, *known.unused, *known.only}
    for name in known.unused:
        assert said[name] == "unused", name
    assert not [name for name in known.used if said[name] == "unused"]
    for name, (values, _) in known.only.items():
        assert ("refused" in said[name]) is (not values), name
