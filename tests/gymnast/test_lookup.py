"""One rule for every name in a config: short, in a module, in a file, registered by a package."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gymnast.errors import ConfigError, ToolDefinitionError, UnknownEnvironment, UserCodeError
from gymnast.lookup import Names, nearest

Install = Callable[..., None]


class Drink:
    """What the names of these tests name."""


class Water(Drink):
    """The one that is built in."""


WATER = f"{__name__}:Water"
DRINKS: Names[type[Drink]] = Names(
    "drink", "gymnast.drinks", {"water": WATER}, base=Drink, wanted="subclass of Drink"
)
SONGS: Names[Callable[[], str]] = Names("song", "gymnast.songs", error=UnknownEnvironment)
MODULE = f"""\
from {__name__} import Drink, Water

class Juice(Drink):
    pass

class Stone:
    pass

def sing():
    return "la"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution: what pip leaves in site-packages, in a folder of the path."""

    def installed(name: str, entry_points: str, **modules: str) -> None:
        site = folder / f"site-{name}"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(str(site))

    return installed


# --- Short names, modules and files


def test_a_short_name_a_module_a_file_and_the_thing_itself(folder: Path) -> None:
    (folder / "juices.py").write_text(MODULE)
    assert DRINKS.find("water") is DRINKS.find(WATER) is DRINKS.find(Water) is Water
    for name in ("juices:Juice", "juices.py:Juice", f"{folder}/juices.py:Juice"):
        assert DRINKS.find(name).__name__ == "Juice"
    assert DRINKS.find("juices.py:Juice") is DRINKS.find(f"{folder}/juices.py:Juice")  # run once
    assert SONGS.find("juices:sing")() == "la"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("watre", "drink: there is no drink 'watre'. Did you mean 'water'? There are: water. One"),
        ("juices.py:Juise", "'juices.py' has no 'Juise'. Did you mean 'Juice'? It defines: Juice."),
        ("juices:Water2", "'juices' has no 'Water2'. It defines: Juice."),  # not what it imports
        ("juices.py", "'juices.py' names no drink in it. It defines: Juice."),
        ("juices:", "'juices' names no drink in it. It defines: Juice."),
        ("empty.py", "'empty.py' names no drink in it. It defines no subclass of Drink."),
        ("empty.py:Juice", "'empty.py' has no 'Juice'. It defines no subclass of Drink."),
        ("juices.py:Stone", "'juices.py:Stone' is <class '"),
        ("juices.py:sing", "which is no subclass of Drink."),
        ("jiuces.py:Juice", "there is no file .*/jiuces.py. Did you mean .*/juices.py?"),
        ("no_such_module:Juice", "there is no module 'no_such_module' to import .looked in .*file"),
        ("juices.deeper:Juice", "there is no module 'juices.deeper' to import"),
        (":Juice", "'' is no module's name."),
        ("..juices:Juice", "'..juices' is no module's name."),
        (dict, "<class 'dict'> is <class 'dict'>, which is no subclass of Drink."),
    ],
)
def test_a_name_that_means_nothing_is_told_what_there_is(
    name: Any, message: str, folder: Path
) -> None:
    (folder / "juices.py").write_text(MODULE)
    (folder / "empty.py").write_text("")
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")) as refused:
        DRINKS.find(name, "drink")
    assert str(refused.value).startswith("drink: ")


def mixed(rest: str) -> Any:
    """An adapter: what follows its scheme is the drink's name."""
    if rest == "air":
        raise ConfigError("mixed:air is no drink")
    return type(rest, (Drink,), {}) if rest != "stone" else object


MIXED: Names[type[Drink]] = Names(
    "drink",
    "gymnast.drinks",
    base=Drink,
    wanted="subclass of Drink",
    schemes={"mixed": f"{__name__}:mixed"},
)


def test_a_scheme_wins_over_a_module_which_python_names(folder: Path) -> None:
    (folder / "mixed.py").write_text(MODULE)
    assert MIXED.find("mixed:Juice").__module__ == __name__  # made by the adapter
    assert MIXED.find("mixed:a:b").__name__ == "a:b"
    assert MIXED.find("mixed:Juice") is MIXED.find("mixed:Juice")
    assert MIXED.find("python:mixed:Juice").__module__ == "mixed"
    assert MIXED.find("mixed.py:Juice").__module__.startswith("gymnast_file_mixed")
    assert DRINKS.find("mixed:Juice") is MIXED.find("python:mixed:Juice")  # knows no schemes
    assert MIXED.check("mixed:Juice") == "mixed:Juice"
    assert MIXED.check("mixed:path/to.py:Juice") == f"mixed:{folder}/path/to.py:Juice"
    named = MIXED.check("python:mixed.py:Juice")
    assert named == f"python:{folder}/mixed.py:Juice"
    assert MIXED.find(named) is MIXED.find("mixed.py:Juice")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixde:Juice", "Did you mean 'mixed'? The schemes are: mixed:."),
        ("mixde:module:Juice", "Did you mean 'mixed'? The schemes are: mixed:."),
        ("stirred:Juice", "'path/to/file.py:name'. The schemes are: mixed:."),
        ("mixed:", "'mixed:' names nothing. Write what is meant after the colon."),
        ("mixed:air", "mixed:air is no drink"),
        ("mixed:stone", "'mixed:stone' is <class 'object'>, which is no subclass of Drink."),
        ("python:mixde:Juice", "there is no module 'mixde' to import"),
    ],
)
def test_a_scheme_that_is_not_there_or_makes_nothing(name: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        MIXED.find(name)
    assert message in str(refused.value)


def test_each_kind_has_its_own_error_and_says_so_where_nothing_has_a_short_name() -> None:
    with pytest.raises(UnknownEnvironment) as refused:
        SONGS.find("anthem")
    assert str(refused.value) == (
        "there is no song 'anthem'. One of your own is named 'module:name' or "
        "'path/to/file.py:name'."
    )


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("import no_such_module_anywhere", UserCodeError, "no_such_module_anywhere"),
        ("raise OSError('no disk')", UserCodeError, "importing .* raised OSError: no disk"),
        ("def broken(:", UserCodeError, "SyntaxError"),
        ("raise SystemExit('usage: ...')", UserCodeError, "raised SystemExit: usage"),
        ("from gymnast.envs import tool\ntool(stopp=True)", ToolDefinitionError, "no option"),
    ],
)
@pytest.mark.parametrize("name", ["bad:Juice", "bad.py:Juice"])
def test_a_module_that_cannot_be_imported_says_why_each_time(
    name: str, text: str, error: type[Exception], message: str, folder: Path
) -> None:
    (folder / "bad.py").write_text(text)
    for _ in range(2):
        with pytest.raises(error, match=message):
            DRINKS.find(name)


@given(st.text(max_size=20))
@example("\0.py:Juice")
@example("~nobody-of-this-name/juices.py:Juice")
@example("x" * 5000 + ".py:Juice")
@example("/:")
def test_whatever_is_written_is_refused_in_one_way(name: str) -> None:
    with pytest.raises(ConfigError):
        DRINKS.find(name, "drink")


# --- Short names of installed packages


def test_a_package_registers_short_names(install: Install) -> None:
    install("juicy", "[gymnast.drinks]\njuice = juicy_drinks:Juice\n", juicy_drinks=MODULE)
    assert DRINKS.find("juice").__name__ == "Juice"
    assert DRINKS.known() == ["water", "juice"] and DRINKS.knows("juice")
    with pytest.raises(ConfigError, match=r"Did you mean 'juice'\? There are: water, juice\."):
        DRINKS.find("juise")


def test_what_is_built_in_wins(install: Install) -> None:
    install("muddy", "[gymnast.drinks]\nwater = muddy_drinks:Juice\n", muddy_drinks=MODULE)
    assert DRINKS.find("water") is Water
    assert DRINKS.known() == ["water"]


def test_a_name_that_two_packages_register_is_refused(install: Install) -> None:
    install("one", "[gymnast.drinks]\nmilk = one_drinks:Juice\n", one_drinks=MODULE)
    install("two", "[gymnast.drinks]\nmilk = two_drinks:Juice\n", two_drinks=MODULE)
    both = r"package 'two' \(.*milk = two_drinks:Juice.*\) and package 'one' \(.*gymnast.drinks\)"
    with pytest.raises(ConfigError, match=f"drink 'milk' is registered by {both}"):
        DRINKS.find("milk")
    assert DRINKS.find("one_drinks:Juice").__name__ == "Juice"


@pytest.mark.parametrize(
    ("entry_point", "message"),
    [
        ("missing = no_module_of_theirs:Juice", "ModuleNotFoundError: No module named 'no_mod"),
        ("lost = broken_drinks:Lemonade", "AttributeError: .*Lemonade"),
        ("stone = broken_drinks:Stone", "is <class .*Stone'>, which is no subclass of Drink"),
        ("half = broken_drinks", "is <module .*, which is no subclass of Drink"),
        ("empty = :", "cannot be loaded"),
    ],
)
def test_a_broken_entry_point_is_named_with_its_package(
    entry_point: str, message: str, install: Install
) -> None:
    install("broken", f"[gymnast.drinks]\n{entry_point}\n", broken_drinks=MODULE)
    name = entry_point.partition(" ")[0]
    with pytest.raises(ConfigError, match=message) as refused:
        DRINKS.find(name, "drink")
    where = f"drink: drink {name!r} of package 'broken' (entry point '{entry_point}' of gymnast.dr"
    assert str(refused.value).startswith(where)


def test_nothing_is_imported_for_names_that_are_not_used(install: Install) -> None:
    install("slow", "[gymnast.drinks]\ntea = slow_drinks:Juice\n", slow_drinks=MODULE)
    assert DRINKS.knows("tea") and "tea" in DRINKS.known()
    assert "slow_drinks" not in sys.modules
    program = "import sys, gymnast.cli; sys.exit('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# --- Did you mean


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("learning_rat", ["learning_rate", "steps"], "learning_rate"),
        ("Gymnast/arithmetic-V0", ["gymnast/Arithmetic-v0"], "gymnast/Arithmetic-v0"),
        ("eval", ["environment", "evaluation"], "evaluation"),
        ("num_generations", ["aggregation", "name"], None),
        ("final", ["multiply", "add"], None),
        ("a", ["answer"], None),
        ("", ["answer"], None),
        ("gpro", ["dapo", "gdpo", "gigpo", "grpo"], "grpo"),  # swapped letters, not a wrong one
        ("lsos", ["lsot", "loss"], "loss"),
        ("loos", ["loot", "loop"], "loop"),  # whatever the order
        ("name", [], None),
    ],
)
def test_only_a_close_name_is_suggested(given: str, known: list[str], meant: str | None) -> None:
    assert nearest(given, known) == meant
