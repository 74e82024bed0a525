"""CONTRIBUTING.md: the folders and the tables that it names are there."""

import re
from importlib import import_module

import pytest

from pages import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
TABLES = re.findall(r"`(gymnast(?:\.\w+)+)\.([A-Z]+)`", PAGE)


def test_every_room_is_on_the_map() -> None:
    rooms = re.search(r"## Rooms\n(.*?)\n## ", PAGE, re.DOTALL)
    assert rooms is not None
    named = set(re.findall(r"\w+", rooms[1]))
    folders = {
        path.parent.name
        for package in ("sandboxes", "envs", "agents", "trainers")
        for path in (ROOT / package).glob("*/__init__.py")
    }
    assert folders <= named


@pytest.mark.parametrize(("module", "table"), TABLES)
def test_a_table_that_it_names_is_there(module: str, table: str) -> None:
    assert getattr(import_module(module), table) is not None


def test_the_folders_of_new_files_are_there() -> None:
    folders = re.findall(r"`((?:envs|agents|trainers|sandboxes)/(?:\w+/)*)`", PAGE)
    assert len(folders) >= 5
    assert all((ROOT / folder).is_dir() for folder in folders)
