"""Rows of programming tasks: HumanEval's, MBPP's, and any with the same fields.

    {"prompt": source up to a docstring, "test": "def check(candidate): ...", "entry_point": name}
    {"text" or "prompt": a question, "test_list": ["assert name(1) == 2", ...]}

The second kind may have `test_setup_code`, `test_imports` (a list of lines) and `entry_point`.
The tests are parsed here, on the host, to count them; they are never run here.
"""

import ast
import builtins
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnast.envs.grading import Tests
from gymnast.errors import DataError

_MAX_EXAMPLE_CHARACTERS = 200
_HOW = "a row needs 'prompt', 'test' and 'entry_point', or 'test_list' and 'text' (or 'prompt')"


@dataclass(frozen=True)
class CodeTask:
    """One task.

    Attributes:
        question: What the policy is asked.
        context: Python that its code may rely on.
        name: The function that it is to write; the first, where the tests call several.
        tests: What grades it.
    """

    question: str
    context: str
    name: str
    tests: Tests


def code_task(row: Mapping[str, Any]) -> CodeTask:
    """Read a row.

    Raises:
        DataError: It lacks a field, or its tests cannot be read; the row is named.
    """
    if row.get("test_list") is not None:
        return _of_asserts(row)
    if row.get("test") is not None:
        return _of_check(row)
    raise _error(row, f"it has neither 'test_list' nor 'test': {_HOW}")


def _of_asserts(row: Mapping[str, Any]) -> CodeTask:
    """MBPP: each entry of `test_list` is a test."""
    question = _text(row, "text" if row.get("text") is not None else "prompt")
    listed = row["test_list"]
    if isinstance(listed, str) or not isinstance(listed, Sequence) or not listed:
        raise _error(row, f"'test_list' is {listed!r:.100}; it must be a list of Python texts")
    tests = [_parsed(row, "test_list", text) for text in listed]
    imports = "\n".join([*(row.get("test_imports") or []), *_modules(tests)])
    setup = row.get("test_setup_code") or ""
    before = [_parsed(row, "test_imports", imports), _parsed(row, "test_setup_code", setup)]
    names = _called(row, before, tests)
    example = _first_call(tests, names[0])
    if not re.search(rf"`{names[0]}`|\b{names[0]}\(", question):
        question += f"\nThe function is called `{names[0]}`"
        question += f", as in `{example}`." if example else "."
    steps = tuple((text, True) for text in listed)
    return CodeTask(question, imports, names[0], Tests(f"{imports}\n{setup}", names, steps))


def _called(
    row: Mapping[str, Any], before: Sequence[ast.AST], tests: Sequence[ast.AST]
) -> tuple[str, ...]:
    """The functions that the tests call and nothing defines."""
    bound = set(dir(builtins))
    for tree in (*before, *tests):
        bound |= _bound(tree)
    needed = [name for tree in before for name in _read(tree) if name not in bound]
    if needed:
        raise _error(
            row,
            f"'test_setup_code' uses {needed[0]}, which the solution would have to define: only "
            "plain values pass between tests and solution, no objects of its classes",
        )
    names = list(dict.fromkeys(n for tree in tests for n in _read(tree) if n not in bound))
    given = row.get("entry_point")
    if given is None and not names:  # it has the name of one of Python's own functions
        given = _called_by_all(tests)
    if given is not None:
        names = [given, *(name for name in names if name != given)]
    if not names:
        raise _error(row, "'test_list' calls no function that the solution would define")
    return tuple(names)


def _modules(tests: Sequence[ast.AST]) -> list[str]:
    """Imports of modules that tests use as if the solution had imported them."""
    bases = [
        node.value.id
        for tree in tests
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    return [f"import {name}" for name in dict.fromkeys(bases) if name in sys.stdlib_module_names]


def _called_by_all(tests: Sequence[ast.AST]) -> str | None:
    """The outermost function that every test calls."""
    called = [
        [
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        for tree in tests
    ]
    return next((name for name in called[0] if all(name in other for other in called)), None)


def _of_check(row: Mapping[str, Any]) -> CodeTask:
    """HumanEval: `check` calls the solution as `candidate`."""
    prompt, name = _text(row, "prompt"), _text(row, "entry_point")
    module = _parsed(row, "test", _text(row, "test"))
    _parsed(row, "prompt", prompt)
    checks = [node for node in module.body if _is_check(node)]
    if not checks or not checks[-1].args.args:  # type: ignore[attr-defined]
        raise _error(row, "'test' defines no function check(candidate)")
    check: Any = checks[-1]
    rest = "\n".join(ast.unparse(node) for node in module.body if node is not check)
    argument = check.args.args[0].arg
    steps = [(f"{argument} = {name}", False)]
    if _can_be_parted(check):
        steps += [
            (ast.unparse(node), _asserts(node)) for node in check.body if not _says_nothing(node)
        ]
    if not any(counts for _, counts in steps):
        steps = [(ast.unparse(check), False), (f"{check.name}({name})", True)]
    question = f"Complete this function.\n```python\n{prompt.rstrip()}\n```"
    return CodeTask(question, prompt, name, Tests(f"{prompt}\n{rest}", (name,), tuple(steps)))


def _is_check(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "check"


def _can_be_parted(check: ast.FunctionDef) -> bool:
    """Whether the statements of a function do the same one by one in a module."""
    parts = (ast.Return, ast.Yield, ast.YieldFrom, ast.Nonlocal, ast.Global)
    return not any(isinstance(node, parts) for top in check.body for node in _own(top))


def _own(top: ast.AST) -> list[ast.AST]:
    """A statement's nodes, those of functions within it apart."""
    found: list[ast.AST] = []
    todo = [top]
    while todo:
        node = todo.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return found


def _asserts(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Assert) for part in _own(node))


def _says_nothing(node: ast.AST) -> bool:
    """`assert True`, which any code would pass, and a docstring."""
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _bound(tree: ast.AST) -> set[str]:
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


def _read(tree: ast.AST) -> list[str]:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return [node.id for node in names if isinstance(node.ctx, ast.Load)]


def _first_call(tests: Sequence[ast.AST], name: str) -> str:
    for tree in tests:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == name:
                text = ast.unparse(node)
                return text if len(text) <= _MAX_EXAMPLE_CHARACTERS else ""
    return ""


def _text(row: Mapping[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise _error(row, f"{field!r} is {value!r:.100}; it must be a text. {_HOW.capitalize()}")
    return value


def _parsed(row: Mapping[str, Any], field: str, text: Any) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise _error(row, f"{field!r} is no Python: {error}, in {text!r:.200}") from error


def _error(row: Mapping[str, Any], problem: str) -> DataError:
    named = row.get("task_id")
    which = f"the row {named!r}" if named is not None else f"the row {dict(row)!r:.300}"
    return DataError(f"{which}: {problem}.")
