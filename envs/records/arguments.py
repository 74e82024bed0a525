"""Decoding the arguments of a call, which may be an object or a string of JSON.

JSON decoders keep the last value of a key that an object has twice, and drop the others without a
word. The arguments of a call must not have one: `json_object` marks such objects while they are
decoded, and `repeated_key` finds them. `tools/validation.py` checks whether arguments fit the tool.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

_MAX_SHOWN = 80


class BadArguments(Exception):
    """The arguments do not fit the tool; the message says what is wrong and what is right."""


class RepeatedKeys(dict[str, Any]):
    """A decoded object that was written with a key twice.

    Attributes:
        key: The first key that is repeated.
    """

    def __init__(self, values: Mapping[str, Any], key: str) -> None:
        super().__init__(values)
        self.key = key


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of some pairs, as an `object_pairs_hook` of `json`.

    Takes time linear in the number of pairs.
    """
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            break
        seen.add(key)
    return RepeatedKeys(values, key)


def repeated_key(value: Any) -> str | None:
    """Return a key that an object anywhere in a decoded value was written with twice, or None."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, RepeatedKeys):
            return part.key
        if isinstance(part, Mapping):
            left += part.values()
        elif isinstance(part, list):
            left += part
    return None


def repetition(arguments: Any) -> str:
    """Describe what the decoded arguments of a call give twice; "" if nothing."""
    if isinstance(arguments, RepeatedKeys):
        return argument_repetition(arguments.key)
    return "" if (key := repeated_key(arguments)) is None else element_repetition(key)


def argument_repetition(name: str) -> str:
    """Describe an argument that a call gives twice."""
    return f"the argument {name!r} is given twice"


def element_repetition(key: str) -> str:
    """Describe a key that an object within an argument has twice."""
    return f"the element {key!r} is given twice"


def reject_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, as a `parse_constant` of `json`.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"{name} is not JSON")


def finite_number(digits: str) -> float:
    """Return a number, as a `parse_float` of `json`.

    Raises:
        ValueError: It is too large for a float.
    """
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number


def load_json(text: str) -> Any:
    """Decode a whole string of JSON; objects with repeated keys become `RepeatedKeys`.

    Raises:
        ValueError: It is not JSON, NaN and numbers beyond those of a float included.
        RecursionError: It is nested too deeply.
    """
    return json.loads(
        text,
        object_pairs_hook=json_object,
        parse_constant=reject_constant,
        parse_float=finite_number,
    )


def decode_arguments(raw: Any) -> dict[str, Any]:
    """The arguments of a call as an object, given an object or a string of JSON.

    Raises:
        BadArguments: They are neither, or give an argument twice.
    """
    value = raw
    for _ in range(2):  # some models quote twice
        if not isinstance(value, str):
            break
        try:
            value = load_json(value) if value.strip() else {}
        except (ValueError, RecursionError) as error:
            raise BadArguments(f"the arguments are not valid JSON ({error})") from error
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadArguments(f"the arguments must be a JSON object, got {shown_value(value)}")
    if isinstance(raw, str) and (problem := repetition(value)):
        raise BadArguments(problem)
    return {str(name): argument for name, argument in value.items()}


def shown_value(value: Any) -> str:
    """A value as short JSON, for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
