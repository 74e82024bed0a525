"""What the endpoint knows of a dialect: how to read a request, and to write answers and errors."""

import itertools
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymnast.envs.programs.dialects.requests import Answer, Refused, Request
from gymnast.envs.programs.dialects.values import shown


@dataclass(frozen=True)
class Asked:
    """A request, and how its answer is to be written.

    Attributes:
        request: What is asked.
        model: The name of the model that was asked for.
        stream: Whether the answer is written as events.
        details: What else the dialect needs to write it.
    """

    request: Request
    model: str
    stream: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Parameters:
    """What becomes of each parameter of a request. Those that are in no table are unused.

    Attributes:
        used: Names of those that are read.
        unused: Names of those that change nothing.
        only: For those that are taken with some values alone: these, null among them, and why.
    """

    used: Sequence[str]
    unused: Sequence[str]
    only: Mapping[str, tuple[Sequence[Any], str]]

    def read(self, body: Mapping[str, Any]) -> tuple[str, ...]:
        """Check a request; return the names of the parameters that it gives and that are unused.

        Raises:
            Refused: A parameter asks for what cannot be given.
        """
        unused = []
        for name, value in body.items():
            if value is None or name in self.used:
                continue
            if name not in self.only:
                unused.append(name)
                continue
            values, why = self.only[name]
            if not any(type(value) is type(each) and value == each for each in values):
                raise Refused(f"{name}: {why}; got {shown(value)}.", param=name)
        return tuple(unused)


@dataclass(frozen=True)
class Dialect:
    """An API that programs speak.

    Attributes:
        name: What it is called in errors.
        parameters: What becomes of each parameter of a request.
        read: Reads the body of a request; raises `Refused`.
        write: Writes an answer: its body, of JSON or of events.
        error: The body of an error.
    """

    name: str
    parameters: Parameters
    read: Callable[[Mapping[str, Any]], Asked]
    write: Callable[[Asked, Answer], bytes]
    error: Callable[[Refused], Mapping[str, Any]]


_START = secrets.token_hex(6)
_numbers = itertools.count(1)


def new_id(prefix: str) -> str:
    """An id that nothing else has: "chatcmpl-..."."""
    return f"{prefix}{_START}{next(_numbers):012x}"


def dumped(value: Any) -> bytes:
    """A value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def event(data: Any, name: str = "") -> bytes:
    """A server-sent event."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + dumped(data) + b"\n\n"
