r"""Payloads, what stands between the delimiters of a call: the contract of each kind.

A payload is what a dialect's `open` and `close` enclose. A kind is a small frozen class that
recognises itself in a template's rendering of a marked call, and then reads what a model writes.
Each kind has a file of its own, and a line in the table of `kinds.py`; nothing else knows it.

How JSON is read, which most kinds need, is here as well.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gymnast.envs.records.arguments import (
    finite_number,
    json_object,
    reject_constant,
    repetition,
)
from gymnast.types import ToolCall

Tools = Sequence[Mapping[str, Any]] | None
"""The schemas of the offered tools, in OpenAI's shape; None where none are offered."""

Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schema of every offered tool's parameters, by the tool's name."""


class Malformed(ValueError):
    """What a model wrote breaks a rule of the dialect.

    Attributes:
        position: Where in the text, in characters.
        name: The tool's name; "" where it could not be read.
    """

    def __init__(self, position: int, rule: str, name: str = "") -> None:
        super().__init__(rule)
        self.position = position
        self.name = name


@dataclass(frozen=True)
class MarkedCall:
    """A template's rendering of the first marked call, for a kind to recognise itself in.

    Attributes:
        text: From the assistant's header on. It holds the call of `probes.NAMES[0]` with
            `probes.ARGUMENTS[0]`, and perhaps more after it.
        write: Renders the same call with other arguments; None where the template refuses them.
        added: The contents of the tokenizer's added tokens, none of which may be cut in two.
    """

    text: str
    write: Callable[[Mapping[str, Any]], str | None]
    added: Collection[str] = ()


@dataclass(frozen=True)
class PayloadMatch:
    """A payload that was recognised in a rendering, and where it stands.

    Attributes:
        payload: The payload.
        start: Where it begins, in characters.
        end: Where it ends.
        header: Markup that a model may also write before it; "" where there is none.
    """

    payload: "Payload"
    start: int
    end: int
    header: str = ""


@dataclass(frozen=True)
class PayloadMarkup:
    """The markup and keys inside a payload: outside of a call, they betray a call gone wrong.

    Attributes:
        after_name: What comes right after the tool's name.
        open: What comes before an argument's key.
        assign: What stands between a key and its value.
        close: What follows a value.
        name_key: The JSON key of the tool's name.
        arguments_key: The JSON key of the arguments.
    """

    after_name: str = ""
    open: str = ""
    assign: str = ""
    close: str = ""
    name_key: str = ""
    arguments_key: str = ""


class Payload(ABC):
    """One kind of payload: a frozen dataclass that holds what differs between templates.

    Attributes:
        label: What calls of this kind look like, in a few words for an error message.
        markup: What betrays a call outside of its delimiters; nothing, unless a kind says more.

    Example:
        A name, a bar and the arguments as JSON: `add|{"a": 1}`.

        >>> @dataclass(frozen=True)
        ... class BarCalls(Payload):
        ...     label: ClassVar[str] = "a name, a bar and JSON"
        ...
        ...     @classmethod
        ...     def recognise(cls, call):
        ...         start = call.text.find(f"{probes.NAMES[0]}|{{")
        ...         if start < 0:
        ...             return None
        ...         return PayloadMatch(cls(), start, read_json(call.text, start + 8)[1])
        ...
        ...     def read(self, text, start, schemas, close):
        ...         bar = text.find("|", start)
        ...         if bar < 0:
        ...             raise Malformed(start, "a bar must follow the tool's name")
        ...         arguments, end = read_json(text, bar + 1)
        ...         return [ToolCall("", text[start:bar], arguments)], end
    """

    label: ClassVar[str]

    @classmethod
    @abstractmethod
    def recognise(cls, call: MarkedCall) -> PayloadMatch | None:
        """Find a payload of this kind in a rendering of the first marked call, or None."""

    @abstractmethod
    def read(
        self, text: str, start: int, schemas: Schemas, close: str
    ) -> tuple[list[ToolCall], int]:
        """Read the payload that begins at `start`; return its calls and where it ends.

        Args:
            text: The whole completion.
            start: Where the payload begins; white space is skipped.
            schemas: The types of the arguments, as far as they are known.
            close: The markup that comes right after a payload; "" where there is none.

        Raises:
            Malformed: If it breaks a rule. Where several calls can be told from each other, a
                broken one carries its own error instead.
        """

    def begins(self, text: str, start: int) -> bool:
        """Whether such a payload begins at `start`, though no delimiter says so."""
        return False

    def continues(self, text: str, start: int) -> bool:
        """Whether one more begins at `start`, after another between the same delimiters."""
        return self.begins(text, start)

    @property
    def markup(self) -> PayloadMarkup:
        """The markup inside of it."""
        return PayloadMarkup()


_DECODER = json.JSONDecoder(
    strict=False,
    object_pairs_hook=json_object,
    parse_constant=reject_constant,
    parse_float=finite_number,
)


def read_json(text: str, start: int) -> tuple[Any, int]:
    """Read the JSON value at `start`; return it and where it ends.

    An object that has a key twice becomes `RepeatedKeys`.

    Raises:
        Malformed: If there is none.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        rule = "the text ends inside the JSON" if at_end else f"not JSON: {error.msg}"
        raise Malformed(error.pos, rule) from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Malformed(start, f"not JSON: {reason}") from error


def read_arguments(value: Any, position: int, name: str) -> dict[str, Any]:
    """The arguments as a dict; a JSON string is decoded, and null means none.

    Raises:
        Malformed: If they are not an object, or give an argument twice.
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            value, end = read_json(text, 0)
        except Malformed as error:
            raise Malformed(position, f"the arguments are a string; {error}", name) from error
        if end != len(text):
            raise Malformed(position, "the arguments have text after their JSON", name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise Malformed(position, f"the arguments must be a JSON object, not {kind}", name)
    if problem := repetition(value):
        raise Malformed(position, problem, name)
    return value
