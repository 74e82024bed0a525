"""What `==` means in a test for what the policy's code returns: the same value, of the same type.

Python's own finds `True == 1`, `{1} == {1: 0}.keys()` and `b"" == bytearray()`. Numbers count as of
one type all the same, as solutions return 2.0 for 2; and 0 and 1 may be returned for a truth value,
though no truth value for a number. What is expected may be more than a plain value (a Counter, an
array): then Python's word holds.
"""

import ast
from typing import Any, Callable, Optional, Sequence

NAME = "__same__"  # no name that a test has

_KINDS = (bool, str, bytes, bytearray, list, tuple, set, frozenset, dict)


def typed(tree: ast.Module) -> ast.Module:
    """The same tests, in which `f(x) == y` is a call of `NAME`."""
    _Comparisons().visit(tree)
    return tree


class _Comparisons(ast.NodeTransformer):
    """Has them made by `NAME`, with the function that one side calls."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """See the class."""
        self.generic_visit(node)
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
            return node
        sides = node.left, node.comparators[0]
        for place, side in enumerate(sides):
            if isinstance(side, ast.Call) and isinstance(side.func, ast.Name):
                same, function = (ast.Name(n, ast.Load()) for n in (NAME, side.func.id))
                call = ast.Call(same, [function, ast.Constant(place), *sides], [])
                return ast.copy_location(call, node)
        return node


def same_for(functions: Sequence[Any]) -> Callable[..., Any]:
    """What compares, given one of these functions, the side that it is on, and both sides."""

    def same(function: Any, place: int, *sides: Any) -> Any:
        equal = sides[0] == sides[1]
        if equal is not True or not any(function is own for own in functions):
            return equal
        return _alike(sides[place], sides[1 - place])

    return same


def _alike(value: Any, expected: Any) -> bool:
    """Whether equal values are of the same kinds throughout."""
    kind, wanted = _kind(value), _kind(expected)
    if wanted is None or (wanted is bool and kind is complex):
        return True
    if kind is not wanted:
        return False
    if wanted in (list, tuple):
        return all(map(_alike, value, expected))
    if wanted in (dict, set, frozenset):
        keys = {key: key for key in expected}
        if not all(_alike(key, keys[key]) for key in value):
            return False
    return wanted is not dict or all(_alike(value[key], expected[key]) for key in expected)


def _kind(value: Any) -> Optional[type]:
    if isinstance(value, (int, float, complex)) and not isinstance(value, bool):
        return complex
    return next((kind for kind in _KINDS if isinstance(value, kind)), None)
