r"""What can stand between the delimiters of a call: the contract of a payload kind.

A payload is what a dialect's `open` and `close` enclose. A kind is a small frozen class that
recognises itself in a template's rendering of a marked call (`derive`) and then reads what a model
wrote (`read`). The kinds have files of their own:

    json_payloads.py   {"name": "f", "arguments": {"x": 1}}     any keys, nested or in a list
                       f<sep>{"x": 1}                           a name, a separator, JSON
    parameters.py      <function=f><parameter=x>1</parameter>   each argument in its own markup
    keyword_calls.py   [f(x=1)]   f{x:1}                        keywords in one pair of brackets

`rendering/template/derivation.py` tries them in turn; a new kind is added to its `KINDS`. Here is
also how JSON is read, which most kinds need.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gymnast.types import ToolCall

Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schema of every offered tool's parameters, by the tool's name."""


class Malformed(ValueError):
    """What a model wrote breaks a rule.

    Attributes:
        position: Where in the text, in characters.
        name: The tool's name, as far as it could be read.
    """

    def __init__(self, position: int, rule: str, name: str = "") -> None:
        super().__init__(rule)
        self.position = position
        self.name = name


class Payload(Protocol):
    """One kind of payload."""

    def read(
        self, text: str, start: int, schemas: Schemas, close: str
    ) -> tuple[list[ToolCall], int]:
        """Read the payload that begins at `start`; give its calls and where it ends.

        Args:
            text: The whole completion.
            start: Where the payload begins; white space is skipped.
            schemas: What types the arguments have, as far as that is known.
            close: The markup that comes right after a payload; "" where there is none.

        Raises:
            Malformed: If it breaks a rule. A call in it that can be told from the others carries
                its own error instead.
        """

    def begins(self, text: str, start: int) -> bool:
        """Whether what begins at `start` means to be such a payload, without any delimiter."""

    def continues(self, text: str, start: int) -> bool:
        """Whether one more begins at `start`, behind another in the same pair of delimiters."""


@dataclass(frozen=True)
class Sample:
    """A template's rendering of the first marked call, for a kind to recognise itself in.

    Attributes:
        region: From the assistant's header on. It holds the call of `probes.NAMES[0]` with
            `probes.ARGUMENTS[0]`, and perhaps more after it.
        write: Renders the same call with other arguments; None where the template refuses.
        added: The contents of the tokenizer's added tokens, which nothing may be cut inside of.
    """

    region: str
    write: Callable[[Mapping[str, Any]], str | None]
    added: Collection[str] = ()


@dataclass(frozen=True)
class Found:
    """A payload that was recognised in a rendering: its kind, and where it lies.

    Attributes:
        payload: The payload's kind.
        start: Where it begins.
        end: Where it ends.
        header: Markup of its own that a model may also write before it; "" where there is none.
    """

    payload: Payload
    start: int
    end: int
    header: str = ""


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number


_DECODER = json.JSONDecoder(strict=False, parse_constant=_reject_constant, parse_float=_finite)


def read_json(text: str, start: int) -> tuple[Any, int]:
    """Read the JSON value at `start`; give it and where it ends.

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
    """The arguments as a dict; a string of JSON is decoded, null means none.

    Raises:
        Malformed: If they are not an object.
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
    return value
