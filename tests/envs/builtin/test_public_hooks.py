"""The environments and adapters of Gymnast use public names alone, as a user's do."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gymnast.envs
from gymnast.envs import Environment, make

FOLDER = Path(gymnast.envs.__file__).parent
# What runs in a sandbox or a process of its own imports no environment, and may end by `os._exit`.
FILES = [
    path
    for room in ("adapters", "builtin")
    for path in sorted(FOLDER.joinpath(room).rglob("*.py"))
    if "judging" not in path.parts and path.name != "worker.py"
]
PUBLIC = {"_asdict", "_replace", "_fields"}  # of named tuples


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def members(tree: ast.AST) -> Iterator[str]:
    """The names of methods, of class variables and of attributes that a file assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield inner.name
                yield from (
                    name.id
                    for name in ast.walk(inner)
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
                )


def privates_of_environment() -> set[str]:
    """Attributes of `Environment` and of its bases that begin with an underscore."""
    env: Any = Environment()
    return {name for name in {*dir(Environment), *vars(env)} if private(name)}


def breaches(source: str) -> list[str]:
    """The private names of others that a file uses, imports or replaces."""
    tree = ast.parse(source)
    own = set(members(tree))
    found = [name for name in own if name in privates_of_environment()]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in own:
            found.append(node.attr)
        elif isinstance(node, ast.ImportFrom):
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += filter(private, parts)
    return found


def test_privates_of_environment_are_known() -> None:
    assert len(privates_of_environment()) > 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_private_name_of_another_class_is_used(path: Path) -> None:
    assert breaches(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from gymnast.envs.tools.marks import _MARK",
        "from gymnast.envs._tools import Tool",
        "class Mine(Environment):\n def go(self): return self._nobodys_name",
        "class Mine(Environment):\n def go(self): return other._nobodys_name",
    ],
)
def test_a_breach_is_seen(source: str) -> None:
    assert breaches(source)


def test_replacing_a_private_is_a_breach() -> None:
    for name in privates_of_environment():
        assert breaches(f"class Mine(Environment):\n def {name}(self): pass") == [name]
        assert breaches(f"class Mine(Environment):\n def go(self): self.{name} = 1") == [name]


@pytest.mark.parametrize("name", ["Arithmetic", "Code", "Container", "Python", "Shell"])
def test_every_one_of_them_is_looked_at(name: str) -> None:
    settings = {} if name == "Arithmetic" else {"sandbox": "local"}
    module = type(make(f"gymnast/{name}-v0", None, **settings)).__module__
    assert any(
        str(path).endswith(f"{module.removeprefix('gymnast.').replace('.', '/')}.py")
        for path in FILES
    )
