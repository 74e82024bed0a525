"""Which names in hidden tests the policy defines, and where the others come from.

A test compares what the policy's function returns. What it compares with, and the means, must not
be the policy's own: a helper comes from the row's reference solution, or from Python's standard
library.
"""

import ast
import builtins
import importlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

# Where to look for functions that tests call without importing them.
STANDARD_MODULES = (
    "math", "cmath", "collections", "itertools", "functools", "operator", "re", "json", "string",
    "copy", "statistics", "decimal", "fractions", "datetime", "heapq", "bisect",
)  # fmt: skip


@dataclass(frozen=True)
class Names:
    """The names that tests read and nothing beside them defines.

    Attributes:
        written: Those that the policy's code must define; the first is told to it. None where that
            cannot be told.
        free: All of them.
        helpers: Python, run beside the tests, which defines the others.
        missing: What nothing trusted defines.
    """

    written: tuple[str, ...]
    free: tuple[str, ...]
    helpers: str
    missing: tuple[str, ...]


def names_of(
    tests: Sequence[ast.Module],
    before: Sequence[ast.Module],
    given: Sequence[str],
    reference: str,
    question: str,
) -> Names:
    """Divide the names that tests read.

    Args:
        tests: The tests.
        before: What is run before them, which defines names of its own.
        given: The policy's functions, where the row says so.
        reference: The row's own solution; "" where it has none.
        question: What the policy is asked, which may name its functions.
    """
    defined = set(dir(builtins)).union(*map(bound, (*before, *tests)))
    free = list(dict.fromkeys(n for tree in tests for n in read(tree) if n not in defined))
    written = tuple(given) or _written(tests, free, question)
    helpers, missing = [], []
    known = _offered(reference)
    from_reference = [name for name in free if name in known and name not in written]
    if from_reference:
        helpers = ["_reference = {'__name__': 'reference'}", f"exec({reference!r}, _reference)"]
        helpers += [f"{name} = _reference[{name!r}]" for name in from_reference]
    for name in free:
        if name not in written and name not in from_reference:
            if module := _standard_module(name):
                helpers.append(f"from {module} import {name}")
            else:
                missing.append(name)
    return Names(written, tuple(free), "\n".join(helpers), tuple(missing))


def _offered(reference: str) -> set[str]:
    """The names that a module has once it has run; those within its functions are not its own."""
    found: set[str] = set()
    for node in ast.parse(reference).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        else:
            found |= bound(node)
    return found


def _written(tests: Sequence[ast.Module], free: Sequence[str], question: str) -> tuple[str, ...]:
    """The policy's functions, where the row does not say; none where that cannot be told."""
    own = [name for name in free if not _standard_module(name)] or list(free)
    if not own:  # it may have the name of one of Python's own functions
        return tuple(_called_by_all(tests)[:1])
    if asked := [name for name in own if names_function(question, name)]:
        return tuple(asked)
    every = [name for name in _called_by_all(tests) if name in own]
    if len(every) == 1:
        return tuple(every)
    return () if every else tuple(own)


def names_function(question: str, name: str) -> bool:
    """Whether a question names a function: `name` or name(...)."""
    return re.search(rf"`{name}`|\b{name}\(", question) is not None


def _called_by_all(tests: Sequence[ast.Module]) -> list[str]:
    """The functions that every test calls, outer ones first."""
    called = [
        [
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        for tree in tests
    ]
    return [name for name in dict.fromkeys(called[0]) if all(name in other for other in called)]


def _standard_module(name: str) -> str | None:
    """The module of Python's that offers a function of this name."""
    found = (
        module for module in STANDARD_MODULES if hasattr(importlib.import_module(module), name)
    )
    return next(found, None)


def standard_modules_in(tests: Sequence[ast.Module]) -> list[str]:
    """Imports of modules that tests use as if the solution had imported them."""
    bases = [
        node.value.id
        for tree in tests
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    return [f"import {name}" for name in dict.fromkeys(bases) if name in sys.stdlib_module_names]


def bound(tree: ast.AST) -> set[str]:
    """The names that a piece of Python binds, functions' arguments among them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return found


def read(tree: ast.AST) -> list[str]:
    """The names that it reads, in order."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return [node.id for node in names if isinstance(node.ctx, ast.Load)]
