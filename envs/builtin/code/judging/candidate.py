"""Beside the policy's code: loads it, and calls its functions with values that came as text.

The process belongs to that code, so nothing that it answers can be relied on. All that it gets is
the arguments of calls, and all that it can answer is a text of `wire.py`.
"""

import os
import sys
import types
from typing import Any, Sequence

from gymnast.envs.builtin.code.judging import wire


class Candidate:
    """The loaded code.

    Args:
        context: Imports and helpers that the code may rely on. Run first, in the same module.
        code: The policy's code.
        names: The functions that it must define.
    """

    def __init__(self, context: str, code: str, names: Sequence[str]) -> None:
        self._answers = os.dup(1)
        sys.stdout = sys.stderr = os.fdopen(
            os.open(os.devnull, os.O_WRONLY), "w"
        )  # nobody reads what the code prints
        self._module = types.ModuleType("solution")
        sys.modules["solution"] = self._module
        try:
            self._run(context)
            for name in names:  # not a stub or an import of the context: the code defines its own
                vars(self._module).pop(name, None)
            self._run(code)
            for name in names:
                if not callable(getattr(self._module, name, None)):
                    raise NameError("there is no function %s" % name)
        except BaseException as error:
            self._raised(error)
        else:
            self._say(["loaded"])

    def _run(self, text: str) -> None:
        exec(compile(text, "<solution>", "exec", dont_inherit=True), vars(self._module))

    def call(self, request: str) -> None:
        """Call a function and print the outcome.

        Args:
            request: A text of `wire.py`: `[name, [argument, ...], {name: argument, ...}]`.
        """
        try:
            name, arguments, named = wire.decode(request)
            result = getattr(self._module, name)(*arguments, **named)
            text = _text(result)
        except BaseException as error:
            self._raised(error)
        else:
            self._say(["value", text])

    def _raised(self, error: BaseException) -> None:
        try:
            text = str(error)[:500]
        except BaseException:
            text = ""
        self._say(["raised", type(error).__name__[:100], text])

    def _say(self, answer: Any) -> None:
        data = b"\n" + wire.encode(answer).encode() + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]


def _text(result: Any) -> str:
    try:
        return wire.encode(result)
    except wire.NotPlain:
        return wire.opaque(result)
