"""The house is counted as the head of the script says, on a small one and on this one."""

from pathlib import Path
from textwrap import dedent

import pytest

from house import House, counts, longest_chain, read_house, stays, with_one_importer

ROOT = Path(__file__).parent.parent.parent

FILES = {
    "gymnast/__init__.py": "from gymnast.envs import Kitchen",
    "gymnast/errors.py": "class Smoke(Exception): ...",
    "envs/__init__.py": "from gymnast.envs.kitchen import Kitchen",
    "envs/kitchen.py": """
        from gymnast.envs.stove import Stove, light
        from gymnast.errors import Smoke

        class Kitchen:
            def __init__(self) -> None:
                self.cook(Stove())
                light()

            def cook(self, stove: Stove) -> None:
                stove.heat()
        """,
    "envs/stove.py": """
        from gymnast.errors import Smoke

        class Oven:
            def heat(self) -> None:
                raise Smoke

        class Stove(Oven):
            def __post_init__(self) -> None:
                light()

        def light() -> None: ...
        """,
    "trainers/__init__.py": "",
    "trainers/build.py": """
        from gymnast.envs import Kitchen

        def build_trainer() -> None:
            kitchen = Kitchen()
            check()
            kitchen.cook(None)

        def check() -> None:
            '''A docstring
            of three
            lines.'''
        """,
}


@pytest.fixture
def small(tmp_path: Path) -> House:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))
    return read_house(tmp_path)


def test_a_walk_goes_into_each_call_and_reads_a_function_once(small: House) -> None:
    # build_trainer; Kitchen.__init__; Stove.__post_init__, light; cook; Oven.heat; check
    assert stays(small) == [
        "gymnast.trainers.build",
        "gymnast.envs.kitchen",
        "gymnast.envs.stove",
        "gymnast.envs.kitchen",
        "gymnast.envs.stove",
        "gymnast.trainers.build",
    ]
    assert len(counts(small)["returns"]) == 3


def test_a_re_export_is_an_import_of_what_defines_the_name(small: House) -> None:
    assert longest_chain(small) == [
        "gymnast.trainers.build",
        "gymnast.envs.kitchen",
        "gymnast.envs.stove",
        "gymnast.errors",
    ]
    assert with_one_importer(small) == ["gymnast.envs.stove", "gymnast.envs.kitchen"][::-1]


def test_a_docstring_does_not_make_a_function_long(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    body = "\n".join(f"    a{number} = 1" for number in range(39))
    text = '    """Many\n\n    lines."""\n'
    path = tmp_path / "envs" / "long.py"
    path.write_text(f"def f():\n{text}{body}\n")
    assert counts(read_house(tmp_path))["functions over 40 lines"] == []
    path.write_text(f"def f():\n{text}{body}\n    more = 2\n")
    assert counts(read_house(tmp_path))["functions over 40 lines"] == ["gymnast.envs.long.f 41"]


def test_a_folder_of_thirteen_modules_and_a_file_of_401_lines_are_named(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    for number in range(13):
        (tmp_path / "envs" / f"m{number}.py").write_text("x = 1\n" * 401 * (number == 0))
    counted = counts(read_house(tmp_path))
    assert counted["folders over 12 modules"] == [str(tmp_path / "envs")]
    assert counted["files over 400 lines"] == counted["files over 300 lines"] == ["gymnast.envs.m0"]


def test_the_walk_of_this_checkout_begins_where_a_run_does() -> None:
    counted = counts(read_house(ROOT))
    assert counted["stays"][0] == "gymnast.trainers.build"
    assert {"gymnast.trainers.trainer", "gymnast.errors"} <= set(counted["modules"])
