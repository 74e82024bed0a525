"""Decoding the arguments of a call, which may be an object or a string of JSON.

`tools/validation.py` checks whether they fit the tool.
"""

import json
from collections.abc import Mapping
from typing import Any

_MAX_SHOWN = 80


class BadArguments(Exception):
    """The arguments do not fit the tool; the message says what is wrong and what is right."""


def decode_arguments(raw: Any) -> dict[str, Any]:
    """The arguments of a call as an object, given an object or a string of JSON.

    Raises:
        BadArguments: They are neither.
    """
    value = raw
    for _ in range(2):  # some models quote twice
        if not isinstance(value, str):
            break
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError) as error:
            raise BadArguments(f"the arguments are not valid JSON ({error})") from error
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadArguments(f"the arguments must be a JSON object, got {shown_value(value)}")
    return {str(name): argument for name, argument in value.items()}


def shown_value(value: Any) -> str:
    """A value as short JSON, for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
