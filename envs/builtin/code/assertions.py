"""Assertions that no code can fail: a test made of them would reward any code.

They are recognised by their form alone; nothing is run here.
"""

import ast
from collections.abc import Iterator

_CAUGHT = {"AssertionError", "Exception", "BaseException"}
_RAISING = {"fail", "exit", "_exit", "quit", "abort"}
_REFLEXIVE = (ast.Eq, ast.Is, ast.LtE, ast.GtE)
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def idle_assertions(tree: ast.AST) -> Iterator[tuple[ast.Assert, str]]:
    """The assertions within a test that hold whatever the code does, each with the reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and (why := _holds(node.test)):
            yield node, why
        elif isinstance(node, ast.Try | ast.TryStar) and any(map(_swallows, node.handlers)):
            for inner in _assertions(node.body):
                yield inner, "the `except` around it catches its failure"
        elif isinstance(node, ast.Try | ast.TryStar) and any(map(_leaves, node.finalbody)):
            for inner in _assertions([*node.body, *node.orelse]):
                yield inner, "the `finally` around it leaves before its failure is seen"
        elif isinstance(node, ast.With | ast.AsyncWith) and any(map(_suppresses, node.items)):
            for inner in _assertions(node.body):
                yield inner, "the `with suppress` around it catches its failure"


def _assertions(body: list[ast.stmt]) -> Iterator[ast.Assert]:
    for statement in body:
        yield from (node for node in ast.walk(statement) if isinstance(node, ast.Assert))


def _holds(test: ast.expr) -> str:
    """Why an assertion always holds; "" if it may fail."""
    if isinstance(test, ast.Tuple) and test.elts:
        return "a tuple that is not empty is true; write `assert condition, message`"
    return "its condition is true whatever the code returns" if is_surely(test, True) else ""


def is_surely(test: ast.expr, truth: bool) -> bool:
    """Whether an expression is true (or false) whatever any code does."""
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
            return is_surely(value, truth)
        case ast.IfExp(_, yes, no):
            return is_surely(yes, truth) and is_surely(no, truth)
        case ast.UnaryOp(ast.Not(), operand):
            return is_surely(operand, not truth)
        case ast.BoolOp(joined, operands):
            every = isinstance(joined, ast.And) is truth
            sure = (all if every else any)(is_surely(operand, truth) for operand in operands)
            return sure or (not every and _opposed(operands))
        case ast.Call(ast.Name("type" | "repr" | "ascii"), [_], []):
            return truth
        case ast.Call(ast.Name("isinstance"), [_, ast.Name("object")], []):
            return truth
        case ast.Compare(left, [operation], [right]):
            alike = truth and isinstance(operation, _REFLEXIVE) and type(left) is type(right)
            return alike and ast.dump(left) == ast.dump(right)
    return False


def _opposed(operands: list[ast.expr]) -> bool:
    """Whether one operand is the negation of another: `x == 1 or x != 1`."""
    written = {ast.dump(operand) for operand in operands}
    return any(ast.dump(negation) in written for negation in map(_negation, operands))


def _negation(test: ast.expr) -> ast.expr:
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Compare(left, [operation], [right]) if type(operation) in _OPPOSITE:
            return ast.Compare(left, [_OPPOSITE[type(operation)]()], [right])
    return ast.UnaryOp(ast.Not(), test)


def _leaves(statement: ast.stmt) -> bool:
    leaving = (ast.Return, ast.Break, ast.Continue)
    return any(isinstance(node, leaving) for node in ast.walk(statement))


def _swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches a failed assertion and raises nothing in its place."""
    caught = handler.type is None or any(_name(n) in _CAUGHT for n in ast.walk(handler.type))
    inner = [node for statement in handler.body for node in ast.walk(statement)]
    return caught and not any(
        isinstance(node, ast.Raise | ast.Assert)
        or (isinstance(node, ast.Call) and _name(node.func) in _RAISING)
        for node in inner
    )


def _suppresses(item: ast.withitem) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call):
        return False
    return _name(call.func) == "suppress" and any(_name(each) in _CAUGHT for each in call.args)


def _name(node: ast.AST) -> str:
    """The last name of `name` or `module.name`; "" for anything else."""
    return str(getattr(node, "attr", getattr(node, "id", "")))
