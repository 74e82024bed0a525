"""Beside the tests: runs them, one after another, on a thread that stops at every call.

A call of one of the policy's functions becomes a request, which `start`, `resume` or `wait` prints
for the host; the answer, a text of `wire.py`, comes with `resume`. No code of the policy's runs
here, so the outcome of the tests can be relied on. If a test compares a call with `==`, the types
must agree as well (`equality.py`).
"""

import ast
import builtins
import json
import os
import queue
import sys
import threading
import traceback
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from gymnast.envs.builtin.code.judging import equality, wire

Event = Dict[str, Any]

# If the code raised these, `all(map(f, ...))` in a test would end as if nothing were left to check.
_ENDS_OF_LOOPS = (StopIteration, StopAsyncIteration)


class NoAnswer(BaseException):
    """A call has no outcome, as after a timeout. No `except Exception` of a test can swallow it."""


class CodeRaised(Exception):
    """The code raised something other than a built-in exception, which a test may expect."""


class Judge:
    """One run of some tests.

    Args:
        context: Run before the tests; it is trusted, as they are.
        names: The policy's functions.
        steps: Sources, each with whether it is a test; the others prepare the tests after them.
    """

    def __init__(
        self, context: str, names: Sequence[str], steps: Sequence[Tuple[str, bool]]
    ) -> None:
        self._events: "queue.Queue[Event]" = queue.Queue()
        self._answers: "queue.Queue[str]" = queue.Queue()
        self._calling = threading.Lock()
        self._output = os.dup(1)
        self._context, self._names, self._steps = context, names, steps
        self._returned = equality.Returned()
        self._passed: List[int] = []
        self._why: Dict[int, str] = {}
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")

    def start(self) -> None:
        """Run up to the first call, or the end of a test or of all tests, and print which."""
        threading.Thread(target=self._run, daemon=True).start()
        self.wait()

    def resume(self, answer: str) -> None:
        """Go on with the answer to the last call."""
        self._answers.put(answer)
        self.wait()

    def wait(self) -> None:
        """Go on after a test."""
        event = {"passed": self._passed, "why": self._why, **self._events.get()}
        data = b"\n" + json.dumps(event).encode() + b"\n"
        while data:
            data = data[os.write(self._output, data) :]

    def _run(self) -> None:
        functions = {name: self._function(name) for name in self._names}
        namespace: Dict[str, Any] = {"__name__": "tests", **functions}
        try:
            exec(_compiled(ast.parse(self._context)), namespace)
            steps = [
                (source, _compiled(equality.typed(ast.parse(source))), counts)
                for source, counts in self._steps
            ]
        except BaseException:
            self._events.put({"broken": traceback.format_exc()[-2000:]})
            return
        namespace.update(functions)
        namespace[equality.NAME] = self._returned.same
        number = 0
        broken: Optional[str] = None  # what a step between the tests came to
        for source, code, counts in steps:
            error = broken or _error_of(code, namespace)
            if error is not None:
                _unbind(source, namespace)
            if counts:
                if error is None:
                    self._passed.append(number)
                else:
                    self._why[number] = error
                number += 1
                self._events.put({})  # so that it counts, whatever becomes of the next one
            elif error is not None and broken is None:
                broken = "what comes before it failed: %s" % error
        self._events.put({"done": True})

    def _function(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            request = wire.encode([name, list(arguments), named])
            with self._calling:
                self._events.put({"call": request})
                answer = self._answers.get()
            return self._returned.keep(_outcome(answer))

        call.__name__ = call.__qualname__ = name
        return call


def _compiled(tree: ast.Module) -> Any:
    """The compiled code, with its assertions even if Python was started with -O."""
    tree = ast.fix_missing_locations(tree)
    return compile(tree, "<test>", "exec", dont_inherit=True, optimize=0)


def _error_of(code: Any, namespace: Dict[str, Any]) -> Optional[str]:
    """What a step raised, in words; None if it raised nothing."""
    try:
        exec(code, namespace)
    except BaseException as error:
        try:
            return ("%s: %s" % (type(error).__name__, error))[:300]
        except BaseException:
            return type(error).__name__
    return None


def _unbind(source: str, namespace: Dict[str, Any]) -> None:
    """Remove the names that a failed step would have set: no later step may read older values."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            namespace.pop(node.id, None)


def _outcome(answer: str) -> Any:
    """Return or raise what the code returned or raised."""
    try:
        outcome = wire.decode(answer)
        kind = outcome[0]
        if kind == "value":
            return wire.decode(outcome[1])
        name, text = str(outcome[1]), str(outcome[2])
    except (ValueError, TypeError, LookupError):  # a WireError is a ValueError
        raise NoAnswer("the code's process gave no answer that can be read") from None
    if kind != "raised":
        raise NoAnswer("%s: %s" % (name, text))
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception) and known not in _ENDS_OF_LOOPS:
        try:
            error = known(text)
        except Exception:  # UnicodeDecodeError wants five arguments
            error = CodeRaised("%s: %s" % (name, text))
        raise error
    raise CodeRaised("%s: %s" % (name, text))
