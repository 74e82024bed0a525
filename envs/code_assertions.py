"""Assertions that no code can fail: a test made of them would reward any code.

They are found by their form alone; nothing is run here.
"""

import ast
from collections.abc import Iterator

_CAUGHT = {"AssertionError", "Exception", "BaseException"}
_REFLEXIVE = (ast.Eq, ast.Is, ast.LtE, ast.GtE)


def idle_assertions(tree: ast.AST) -> Iterator[tuple[ast.Assert, str]]:
    """The assertions within a test that hold whatever the code does, each with the reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and (why := _holds(node.test)):
            yield node, why
        elif isinstance(node, ast.Try) and any(map(_swallows, node.handlers)):
            for inner in _assertions(node.body):
                yield inner, "the `except` around it catches its failure"
        elif isinstance(node, ast.With | ast.AsyncWith) and any(map(_suppresses, node.items)):
            for inner in _assertions(node.body):
                yield inner, "the `with suppress` around it catches its failure"


def _assertions(body: list[ast.stmt]) -> Iterator[ast.Assert]:
    for statement in body:
        yield from (node for node in ast.walk(statement) if isinstance(node, ast.Assert))


def _holds(test: ast.expr) -> str:
    """Why an assertion always holds; "" where it may fail."""
    if isinstance(test, ast.Tuple) and test.elts:
        return "a tuple that is not empty is true; write `assert condition, message`"
    return "its condition is true whatever the code returns" if _is(test, True) else ""


def _is(test: ast.expr, truth: bool) -> bool:
    """Whether an expression is surely true (or surely false)."""
    match test:
        case ast.Constant(value):
            return bool(value) is truth
        case ast.Tuple(elements) | ast.List(elements) | ast.Set(elements):
            full = any(not isinstance(element, ast.Starred) for element in elements)
            return full if truth else not elements
        case ast.Dict(keys):
            return any(key is not None for key in keys) if truth else not keys
        case ast.Lambda() | ast.GeneratorExp():
            return truth
        case ast.JoinedStr(parts):
            texts = (part for part in parts if isinstance(part, ast.Constant))
            return truth and any(part.value for part in texts)
        case ast.NamedExpr(_, value):
            return _is(value, truth)
        case ast.IfExp(_, yes, no):
            return _is(yes, truth) and _is(no, truth)
        case ast.UnaryOp(ast.Not(), operand):
            return _is(operand, not truth)
        case ast.BoolOp(joined, operands):
            every = isinstance(joined, ast.And) is truth
            return (all if every else any)(_is(operand, truth) for operand in operands)
        case ast.Compare(left, [operation], [right]):
            same = ast.dump(left) == ast.dump(right)
            return truth and same and isinstance(operation, _REFLEXIVE)
    return False


def _swallows(handler: ast.ExceptHandler) -> bool:
    """Whether it catches a failed assertion and raises nothing in its place."""
    caught = handler.type is None or any(
        isinstance(node, ast.Name) and node.id in _CAUGHT for node in ast.walk(handler.type)
    )
    raises = (ast.Raise, ast.Assert)
    return caught and not any(
        isinstance(node, raises) for statement in handler.body for node in ast.walk(statement)
    )


def _suppresses(item: ast.withitem) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call):
        return False
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return name == "suppress" and any(getattr(a, "id", "") in _CAUGHT for a in call.args)
