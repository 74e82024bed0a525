"""Which parts of hidden tests depend on the policy's code: only they tell good code from bad.

This is judged by their form alone. If the form does not tell, a test counts as dependent: keeping a
test that says nothing is better than refusing one that does.
"""

import ast
import builtins
import copy
import re
from collections.abc import Iterable, Iterator, Sequence

from gymnast.envs.builtin.code.assertions import is_surely
from gymnast.envs.builtin.code.names import bound

# Python's own functions whose result for a function does not depend on what that function does.
_NEVER_CALL = frozenset(
    {"ascii", "bool", "callable", "dir", "format", "hasattr", "hash", "id", "isinstance"}
    | {"issubclass", "len", "print", "repr", "str", "type", "vars"}
)
_RUN_TEXT = frozenset({"eval", "exec", "compile", "__import__"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.Lambda)
_CHECKING = re.compile(r"(?i)assert|raises|fail|check|expect|verify|equal")
_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


class Dependence:
    """Tells which expressions of some tests depend on what the policy's functions do.

    Args:
        statements: The tests and the code beside them, in one namespace.
        functions: The policy's functions, by all their names.
    """

    def __init__(self, statements: Sequence[ast.stmt], functions: Iterable[str]) -> None:
        self.functions = frozenset(functions)
        self._names: set[str] = set()
        self._checking = _checking(statements)
        self._referred = {
            node.id if isinstance(node, ast.Name) else node.attr
            for statement in statements
            for node in ast.walk(statement)
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        }
        changed = [(statement, _names_in(statement) - self.functions) for statement in statements]
        growing = True
        while growing:
            grown = self._names.union(*(names for s, names in changed if self._mentions(s)))
            growing = grown != self._names
            self._names = grown

    def of(self, node: ast.AST) -> bool:
        """Whether a part of a test depends on what the policy's functions do."""
        match node:
            case ast.Name(name):  # a function that is not called tells nothing
                return name in self._names
            case ast.Call(ast.Name(name), arguments, keywords) if (
                name in _NEVER_CALL and name not in self.functions
            ):
                return any(map(self.of, [*arguments, *keywords]))
            case ast.Call():
                return self._mentions(node)
        if isinstance(node, _COMPREHENSIONS):
            return self._mentions(node)
        return any(map(self.of, ast.iter_child_nodes(node)))

    def is_constant(self, expression: ast.expr) -> bool:
        """Whether an expression is about constants, or about the functions without calling them."""
        known = self.functions.union(dir(builtins))
        names = [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)]
        idle = not self.of(expression) and not is_surely(expression, False)
        return idle and known.issuperset(names)

    def running(self, body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements that may run, including inner ones."""
        for statement in body:
            if isinstance(statement, _DEFINITIONS) and statement.name not in self._referred:
                continue
            yield statement
            for block in _blocks(statement):
                yield from self.running(block)
            if isinstance(statement, _ENDS):
                return

    def judges(self, statement: ast.stmt) -> bool:
        """Whether a statement is a test by itself: it fails for some behaviour of the code."""
        if isinstance(statement, _DEFINITIONS) or not self._mentions(statement):
            return False
        for inner in self.running([statement]):
            if isinstance(inner, ast.Assert) and self._can_fail(inner.test):
                return True
            if _fails(inner) or any(map(self._checks, _own(inner))):
                return True
        return False

    def may_judge(self, body: Sequence[ast.stmt]) -> bool:
        """Whether a test may fail because of what the code does, perhaps in an unknown helper."""
        running = list(self.running(body))
        if not any(map(self._mentions, running)):
            return False
        calls = (node for inner in running for node in _own(inner))
        return (
            any(map(_fails, running))
            or any(map(self.judges, body))
            or any(map(self._hands_on, calls))
        )

    def may_run_code(self, statement: ast.stmt) -> bool:
        """Whether a statement of a module may call the policy's functions at once."""
        named = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        return not isinstance(statement, _DEFINITIONS) and not named.isdisjoint(self.functions)

    def text_that_runs(self, tree: ast.AST) -> ast.Call | None:
        """A call that runs text from the code beside the tests; None if there is none."""
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in _RUN_TEXT:
                continue
            if any(map(self.of, node.args)):
                return node
        return None

    def _mentions(self, node: ast.AST) -> bool:
        known = self.functions | self._names
        return any(isinstance(part, ast.Name) and part.id in known for part in ast.walk(node))

    def _can_fail(self, test: ast.expr) -> bool:
        """Whether an assertion may fail, taking all names of a function as one."""
        named = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        if len(self.functions & named) > 1:
            test = _OneName(self.functions).visit(copy.deepcopy(test))
        return self.of(test) and not is_surely(test, True)

    def _checks(self, node: ast.AST) -> bool:
        """Whether a node calls a helper that raises if a check fails."""
        if not isinstance(node, ast.Call) or _called(node) in self.functions:
            return False
        return _called(node) in self._checking or _CHECKING.search(_called(node)) is not None

    def _hands_on(self, node: ast.AST) -> bool:
        """Whether a node passes the code, or what it returned, to an unknown function."""
        if not isinstance(node, ast.Call) or _called(node) in self.functions:
            return False
        return not hasattr(builtins, _called(node)) and self._mentions(node)


class _OneName(ast.NodeTransformer):
    """Replaces all names of a function by one of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Replace a name."""
        alias = node.id in self._names
        return ast.Name(self._names[0], node.ctx) if alias else node


def _fails(statement: ast.stmt) -> bool:
    """Whether a statement fails whenever it is reached."""
    if isinstance(statement, ast.Assert):
        return is_surely(statement.test, False)
    return isinstance(statement, ast.Raise)


def _called(call: ast.Call) -> str:
    """The last name of the called function; "" if it has none."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _checking(statements: Sequence[ast.stmt]) -> frozenset[str]:
    """The functions defined here that assert or raise."""
    return frozenset(
        node.name
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, _DEFINITIONS)
        if any(isinstance(inner, ast.Assert | ast.Raise) for inner in ast.walk(node))
    )


def _names_in(statement: ast.stmt) -> set[str]:
    """The names that a statement sets or may change, without those of functions that it calls."""
    called = {id(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)}
    names = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and id(node) not in called and not hasattr(builtins, node.id)
    }
    return names | bound(statement)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, without those of statements within it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from ast.walk(child)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks within a statement that may run."""
    test = getattr(statement, "test", None)
    items = getattr(statement, "iter", None)
    never = (test is not None and is_surely(test, False)) or (
        items is not None and is_surely(items, False)
    )
    if not never:
        yield getattr(statement, "body", [])
    if not (isinstance(statement, ast.If) and is_surely(statement.test, True)):
        yield getattr(statement, "orelse", [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body
    for case in getattr(statement, "cases", []):
        yield case.body
    yield getattr(statement, "finalbody", [])
