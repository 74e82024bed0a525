"""What `==` means in a test for what the policy's code returns: the same value, of the same type.

To Python, `True == 1`, `{1} == {1: 0}.keys()` and `b"" == bytearray()`. Numbers still count as one
type here, as solutions return 2.0 for 2; and 0 and 1 may stand for a truth value, but no truth
value for a number. If the expected value is more than a plain value (a Counter, an array), Python's
own `==` decides.
"""

import ast
from collections import deque
from typing import Any, Deque, Optional

NAME = "__same__"  # a name that no test uses

_KEPT = 16  # the latest results: a test compares a result soon
_KINDS = (bool, str, bytes, bytearray, list, tuple, set, frozenset, dict)


def typed(tree: ast.Module) -> ast.Module:
    """The same tests with each `x == y` replaced by a call of `NAME`."""
    _Comparisons().visit(tree)
    return tree


class _Comparisons(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Replace a comparison."""
        self.generic_visit(node)
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
            return node
        call = ast.Call(ast.Name(NAME, ast.Load()), [node.left, *node.comparators], [])
        return ast.copy_location(call, node)


class Returned:
    """The latest results of the policy's functions, and what is equal to them."""

    def __init__(self) -> None:
        self._values: Deque[Any] = deque(maxlen=_KEPT)

    def keep(self, value: Any) -> Any:
        """Remember a value, and give it back."""
        self._values.append(value)
        return value

    def same(self, left: Any, right: Any) -> Any:
        """The value of `left == right`, compared by type too if one of them was returned."""
        equal = left == right
        if equal is True:
            for value, expected in ((left, right), (right, left)):
                if any(value is one for one in self._values):
                    return _alike(value, expected)
        return equal


def _alike(value: Any, expected: Any) -> bool:
    """Whether equal values have the same kinds throughout."""
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
