"""Tests that no code can pass, because they need values that cannot be sent between boxes.

Tests and code run in two boxes, and only plain values pass between them (`judging/wire.py`): a
test that passes a lambda to the code, or expects a date from it, fails whatever the code does. Such
tests are recognised by their form alone; nothing of a row is run here. If the form does not tell, a
value counts as plain.
"""

import ast
import builtins
import importlib
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from gymnast.envs.builtin.code.judging import wire
from gymnast.envs.builtin.code.names import STANDARD_MODULES

_NEVER_EQUAL = frozenset(
    {"datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "re.compile"}
)
_NUMBERS = {"decimal.Decimal": Decimal, "fractions.Fraction": Fraction}  # may equal a plain one
_MAKING = frozenset(
    {"combine", "fromisocalendar", "fromisoformat", "fromordinal", "fromtimestamp", "now"}
    | {"strptime", "today", "utcfromtimestamp", "utcnow"}
)
_DEEPEST = 20
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NOT_AT_ONCE = (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)


class Sendable:
    """Tells which expressions of some tests are surely no plain values.

    Args:
        statements: The tests and what is run before them, in one namespace.
        functions: The policy's functions, by all their names.
    """

    def __init__(self, statements: Iterable[ast.stmt], functions: Iterable[str]) -> None:
        self._functions = frozenset(functions)
        self._meanings: dict[str, Any] = {}
        for name, meaning in _bindings(statements):
            other = self._meanings.setdefault(name, meaning)
            if other is not meaning and other != meaning:  # it may hold either
                self._meanings[name] = None

    def why_never_passes(self, statement: ast.stmt) -> str:
        """Why a statement of a test fails whatever the code does; "" where it may succeed."""
        if not isinstance(statement, ast.Assert | ast.Assign | ast.AnnAssign | ast.Expr):
            return ""
        for node in _evaluated_at_once(statement):
            if self._is_call_of_code(node):
                for value in (*node.args, *(keyword.value for keyword in node.keywords)):
                    if self._is_unsendable(value):
                        return f"it passes {_shown(value)} to {ast.unparse(node.func)}"
        if isinstance(statement, ast.Assert):
            for returned, expected in self._equalities(statement.test):
                if self._is_unsendable(expected, returned=True):
                    name = ast.unparse(returned.func)
                    return f"it wants {_shown(expected)} from {name}"
        return ""

    def _is_call_of_code(self, node: Any) -> bool:
        return isinstance(node, ast.Call) and getattr(node.func, "id", None) in self._functions

    def _equalities(self, test: ast.expr) -> Iterator[tuple[Any, ast.expr]]:
        """The calls of the code that must equal something for an assertion to hold."""
        match test:
            case ast.BoolOp(ast.And(), operands):
                for operand in operands:
                    yield from self._equalities(operand)
            case ast.Compare(left, [ast.Eq()], [right]):
                for returned, expected in ((left, right), (right, left)):
                    if self._is_call_of_code(returned):
                        yield returned, expected

    def _is_unsendable(self, value: ast.AST, *, returned: bool = False, depth: int = 0) -> bool:
        """Whether a value is surely not plain; or, `returned`, surely equal to no plain one."""
        if depth > _DEEPEST:  # a name that is defined by itself
            return False
        match value:
            case ast.Lambda():
                return True
            case ast.List(parts) | ast.Tuple(parts) | ast.Set(parts):
                inner: list[ast.AST] = [*parts]
            case ast.Dict(keys, values):
                inner = [*filter(None, keys), *values]
            case ast.Call():
                return self._makes_unsendable(value, returned)
            case ast.Name(name) if name in self._functions:
                return not returned
            case ast.Name(name) if isinstance(self._meanings.get(name), _DEFINITIONS):
                return True
            case ast.Name(name) if isinstance(self._meanings.get(name), ast.expr):
                inner = [self._meanings[name]]
            case _:
                return _is_no_plain_object(self._full_name(value))
        return any(self._is_unsendable(each, returned=returned, depth=depth + 1) for each in inner)

    def _makes_unsendable(self, call: ast.Call, returned: bool) -> bool:
        """Whether a call makes such a value: an object of a class that is known."""
        made = self._meanings.get(getattr(call.func, "id", ""))
        if isinstance(made, ast.ClassDef):  # its objects may define what they are equal to
            return not returned and _is_plain_class(made)
        name = self._full_name(call.func)
        owner, _, method = name.rpartition(".")
        if name in _NUMBERS:
            return not returned or _equals_no_plain_number(_NUMBERS[name], call)
        return name in _NEVER_EQUAL or (owner in _NEVER_EQUAL and method in _MAKING)

    def _full_name(self, node: ast.AST) -> str:
        """The dotted name of something imported or built in; "" for everything else."""
        if isinstance(node, ast.Attribute):
            owner = self._full_name(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        if not isinstance(node, ast.Name):
            return ""
        if node.id not in self._meanings:
            return f"builtins.{node.id}" if hasattr(builtins, node.id) else ""
        meaning = self._meanings[node.id]
        return meaning if isinstance(meaning, str) else ""


def _bindings(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, Any]]:
    """Each name that is bound, with a definition, an expression, an imported name, or None."""
    assigned = {}
    for node in (node for statement in statements for node in ast.walk(statement)):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                made_of = {getattr(each, "id", "") for each in node.decorator_list}
                yield name, node if made_of <= {"dataclass"} else None
            case ast.Assign([ast.Name() as target], value):
                assigned[id(target)] = value
            case ast.Name(name, ast.Store() | ast.Del()):
                yield name, assigned.get(id(node))
            case ast.arg(name):
                yield name, None
            case ast.Import(aliases):
                for alias in aliases:
                    dotted = alias.name if alias.asname else alias.name.partition(".")[0]
                    yield alias.asname or dotted, dotted
            case ast.ImportFrom(module, aliases, 0):
                for alias in aliases:
                    yield alias.asname or alias.name, _home(f"{module}.{alias.name}")


def _home(full_name: str) -> str:
    """The name of a class in the module that defines it; any other name as it is."""
    value = _standard_object(full_name)
    return f"{value.__module__}.{value.__name__}" if isinstance(value, type) else full_name


def _standard_object(full_name: str) -> Any:
    """An object of Python's standard library by its dotted name; None if there is none."""
    module, _, name = full_name.rpartition(".")
    if module not in ("builtins", *STANDARD_MODULES):
        return None
    return getattr(importlib.import_module(module), name, None)


def _evaluated_at_once(node: ast.AST) -> Iterator[Any]:
    """The nodes that are evaluated whenever this one is: no later operands, no inner functions."""
    yield node
    match node:
        case ast.BoolOp(_, [first, *_]) | ast.IfExp(first, _, _):
            yield from _evaluated_at_once(first)
        case _ if not isinstance(node, _NOT_AT_ONCE):
            for child in ast.iter_child_nodes(node):
                yield from _evaluated_at_once(child)


def _is_plain_class(made: ast.ClassDef) -> bool:
    """Whether its objects are surely no kind of list, number, iterator or other plain value."""
    names = {getattr(node, "name", "") for node in made.body}
    bases = {getattr(base, "id", "") for base in made.bases}
    return bases <= {"object"} and not made.keywords and "__next__" not in names


def _is_no_plain_object(full_name: str) -> bool:
    """Whether an object of the standard library, by its dotted name, cannot be sent."""
    try:
        wire.encode(_standard_object(full_name))
    except wire.NotPlain:
        return True
    return False


def _equals_no_plain_number(kind: Any, call: ast.Call) -> bool:
    """Whether a Decimal or Fraction of constants equals no int or float."""
    if call.keywords or not all(isinstance(each, ast.Constant) for each in call.args):
        return False
    try:
        number = kind(*(each.value for each in call.args if isinstance(each, ast.Constant)))
        return bool(number != float(number))
    except (ArithmeticError, TypeError, ValueError):  # too large for a float, or an error anyway
        return False


def _shown(value: ast.AST) -> str:
    return f"`{ast.unparse(value)!s:.100}`"
