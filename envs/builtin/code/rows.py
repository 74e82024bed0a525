"""Reading rows of programming tasks: HumanEval's, MBPP's, and others with the same fields.

    {"prompt": source up to a docstring, "test": "def check(candidate): ...", "entry_point": name}
    {"text" or "prompt": a question, "test_list": ["assert name(1) == 2", ...]}

The second kind may have `test_setup_code`, `test_imports` (a list of lines), `code` (a solution
whose helpers the tests may use) and `entry_point` (the function to write, or a list of them). The
tests are parsed here, on the host, to count and check them; they are never run here.
"""

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnast.envs.builtin.code.assertions import idle_assertions
from gymnast.envs.builtin.code.dependence import Dependence
from gymnast.envs.builtin.code.grading import Tests
from gymnast.envs.builtin.code.names import (
    bound,
    names_function,
    names_in_tests,
    read,
    standard_modules_in,
)
from gymnast.envs.builtin.code.sendable import Sendable
from gymnast.errors import DataError

_MAX_EXAMPLE_CHARACTERS = 200
_HOW = "a row needs 'prompt', 'test' and 'entry_point', or 'test_list' and 'text' (or 'prompt')"


@dataclass(frozen=True)
class CodeTask:
    """The task of a row.

    Attributes:
        question: The prompt.
        context: Python that the policy's code may rely on.
        name: The function to write; the first one if the tests call several.
        tests: The tests that grade it.
    """

    question: str
    context: str
    name: str
    tests: Tests


def code_task(row: Mapping[str, Any]) -> CodeTask:
    """Read a row.

    Raises:
        DataError: It lacks a field, or its tests cannot be read, failed or passed; the message
            names the row.
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
    imports = "\n".join([*(row.get("test_imports") or []), *standard_modules_in(tests)])
    setup = row.get("test_setup_code") or ""
    before = [_parsed(row, "test_imports", imports), _parsed(row, "test_setup_code", setup)]
    names, helpers = _names(row, before, tests, question)
    depends = Dependence([node for tree in (*before, *tests) for node in tree.body], names)
    for tree in tests:
        _check_test(row, "test_list", tree, depends)
    example = _first_call(tests, names[0])
    if not names_function(question, names[0]):
        question += f"\nThe function is called `{names[0]}`"
        question += f", as in `{example}`." if example else "."
    context = "\n".join(part for part in (imports, setup, helpers) if part)
    beside = [*ast.parse(context).body, *(node for tree in tests for node in tree.body)]
    sendable = Sendable(beside, names)
    for tree in tests:
        _check_values(row, "test_list", tree, sendable)
    steps = tuple((text, True) for text in listed)
    return CodeTask(question, imports, names[0], Tests(context, names, steps))


def _names(
    row: Mapping[str, Any],
    before: Sequence[ast.Module],
    tests: Sequence[ast.Module],
    question: str,
) -> tuple[tuple[str, ...], str]:
    """The functions that the policy is to write, and Python that defines the tests' helpers."""
    defined = set(dir(builtins)).union(*map(bound, before))
    if needed := [name for tree in before for name in read(tree) if name not in defined]:
        raise _error(
            row,
            f"'test_setup_code' uses {needed[0]}, which the solution would have to define: only "
            "plain values pass between tests and solution, no objects of its classes",
        )
    given = row.get("entry_point") or ()
    given = (given,) if isinstance(given, str) else tuple(given)
    reference = row.get("code") or ""
    _parsed(row, "code", reference)
    names = names_in_tests(tests, before, given, reference, question)
    if not names.written and len(names.free) > 1:
        raise _error(
            row,
            f"every test calls {' and '.join(names.free)}; name in 'entry_point' the one to be "
            "written; the others are taken from 'code'",
        )
    if not names.written:
        raise _error(row, "'test_list' calls no function that the solution would define")
    if names.missing:
        raise _error(
            row,
            f"the tests use {names.missing[0]} as well as {names.written[0]}, and code must not "
            f"supply what it is compared with: define {names.missing[0]} in 'test_setup_code' or "
            "'code', or list all the functions to be written in 'entry_point'",
        )
    return names.written, names.helpers


def _of_check(row: Mapping[str, Any]) -> CodeTask:
    """HumanEval: `check` calls the solution as `candidate`."""
    prompt, name = _text(row, "prompt"), _text(row, "entry_point")
    module = _parsed(row, "test", _text(row, "test"))
    _parsed(row, "prompt", prompt)
    checks = [node for node in module.body if _is_check(node)]
    if not checks or not checks[-1].args.args:  # type: ignore[attr-defined]
        raise _error(row, "'test' defines no function check(candidate)")
    check: Any = checks[-1]
    rest = [node for node in module.body if node is not check and not _calls_check(node)]
    argument = check.args.args[0].arg
    depends = Dependence([*rest, *check.body], (argument, name))
    _check_test(row, "test", check, depends)
    # A statement that runs the code is a step: what it raises is the code's failure, not the row's.
    first = next((i for i, node in enumerate(rest) if depends.may_run_code(node)), len(rest))
    steps = [(ast.unparse(node), False) for node in rest[first:]]
    steps += [(f"{argument} = {name}", False)]
    parts = _parts(check, depends) if _can_be_parted(check) else []
    steps += parts or [(ast.unparse(check), False), (f"{check.name}({name})", True)]
    context = "\n".join([prompt, *map(ast.unparse, rest[:first])])
    before = [*ast.parse(context).body, *rest[first:], *check.body]
    _check_values(row, "test", check, Sendable(before, (argument, name)))
    question = f"Complete this function.\n```python\n{prompt.rstrip()}\n```"
    return CodeTask(question, prompt, name, Tests(context, (name,), tuple(steps)))


def _is_check(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "check"


def _calls_check(node: ast.AST) -> bool:
    """`check(name)` after the definition, as some data sets have it."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "check"
    )


def _can_be_parted(check: ast.FunctionDef) -> bool:
    """Whether the statements of a function do the same when run one by one in a module."""
    if check.decorator_list or len(ast.unparse(check.args).split(",")) > 1:
        return False
    parts = (ast.Return, ast.Global)
    inner = (node for top in check.body for node in ast.walk(top))
    return not any(isinstance(node, parts) for top in check.body for node in _own(top)) and not any(
        isinstance(node, ast.Nonlocal) for node in inner
    )


def _parts(check: ast.FunctionDef, depends: Dependence) -> list[tuple[str, bool]]:
    """The statements of a check, each with whether it is a test; [] if none is."""
    steps = [(ast.unparse(n), depends.judges(n)) for n in check.body if not _says_nothing(n)]
    last = max((place for place, (_, counts) in enumerate(steps) if counts), default=None)
    if last is None:
        return []
    # What follows the last test belongs to it: it must not fail either.
    return [*steps[:last], ("\n".join(source for source, _ in steps[last:]), True)]


def _own(top: ast.AST) -> list[ast.AST]:
    """The nodes of a statement, without those of functions within it."""
    nodes: list[ast.AST] = []
    todo = [top]
    while todo:
        node = todo.pop()
        nodes.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return nodes


def _check_test(row: Mapping[str, Any], field: str, tree: Any, depends: Dependence) -> None:
    """Refuse a test that any code would pass; HumanEval's `assert True` is skipped instead."""
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for top in tree.body for node in _own(top)):
        raise _error(row, f"{field!r} has a `yield`, so that calling it would run no test")
    idle = [
        *idle_assertions(tree),
        *(
            (node, "it depends on nothing that the code returns")
            for node in ast.walk(tree)
            if isinstance(node, ast.Assert) and depends.is_constant(node.test)
        ),
    ]
    for node, why in idle:
        if not (isinstance(node.test, ast.Constant) and node.test.value):
            raise _error(
                row, f"{field!r} has `{ast.unparse(node)!s:.100}`, which cannot fail: {why}"
            )
    if call := depends.text_that_runs(tree):
        raise _error(
            row,
            f"{field!r} has `{ast.unparse(call)!s:.100}`, which would run what the code returns "
            "beside the tests",
        )
    if not depends.may_judge(tree.body):
        raise _error(
            row,
            f"{field!r} has no assertion that runs and depends on what the code returns, in "
            f"{ast.unparse(tree)!r:.200}",
        )


def _check_values(row: Mapping[str, Any], field: str, tree: Any, sendable: Sendable) -> None:
    """Refuse a test that no code can pass because it needs more than plain values."""
    for statement in tree.body:
        if why := sendable.why_never_passes(statement):
            raise _error(
                row,
                f"{field!r} has `{ast.unparse(statement)!s:.100}`, which no code can pass: {why}, "
                "and only plain values (numbers, texts, lists, ...) pass between tests and code",
            )


def _says_nothing(node: ast.AST) -> bool:
    """Whether it is a docstring, or `assert True`, which any code would pass."""
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


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
