"""Which names in hidden tests the policy must define, and where the others come from.

A test checks what the policy's function returns. The helpers it checks with must not be the
policy's: they come from the row's reference solution, or from Python's standard library.
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
class NamesInTests:
    """The names that tests read without defining them.

    Attributes:
        written: Names that the policy's code must define; the prompt names the first. Empty if the
            tests do not tell.
        free: All of the names.
        helpers: Python, run beside the tests, that defines the others.
        missing: Names that nothing trusted defines.
    """

    written: tuple[str, ...]
    free: tuple[str, ...]
    helpers: str
    missing: tuple[str, ...]


def names_in_tests(
    tests: Sequence[ast.Module],
    before: Sequence[ast.Module],
    given: Sequence[str],
    reference: str,
    question: str,
) -> NamesInTests:
    """Sort the names that tests read by who defines them.

    Args:
        tests: The tests.
        before: The code that is run before them, which defines names of its own.
        given: The policy's functions, if the row lists them.
        reference: The row's own solution; "" if it has none.
        question: The prompt, which may name the policy's functions.
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
    return NamesInTests(written, tuple(free), "\n".join(helpers), tuple(missing))


def _offered(reference: str) -> set[str]:
    """The names that a module defines, without those within its functions."""
    names: set[str] = set()
    for node in ast.parse(reference).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        else:
            names |= bound(node)
    return names


def _written(tests: Sequence[ast.Module], free: Sequence[str], question: str) -> tuple[str, ...]:
    """The policy's functions, if the row does not list them; none if the tests do not tell."""
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
    """The module of the standard library that has a function of this name."""
    for module in STANDARD_MODULES:
        if hasattr(importlib.import_module(module), name):
            return module
    return None


def standard_modules_in(tests: Sequence[ast.Module]) -> list[str]:
    """Imports of the modules that tests use without importing them."""
    bases = [
        node.value.id
        for tree in tests
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    return [f"import {name}" for name in dict.fromkeys(bases) if name in sys.stdlib_module_names]


def bound(tree: ast.AST) -> set[str]:
    """The names that a piece of Python binds, including arguments of functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
    return names


def read(tree: ast.AST) -> list[str]:
    """The names that a piece of Python reads, in order."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return [node.id for node in names if isinstance(node.ctx, ast.Load)]
