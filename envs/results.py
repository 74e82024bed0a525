"""The text of a tool's result: what the policy reads.

A string is given as it is. Anything else is written as JSON (dataclasses, pydantic models, numpy
values and sets included; None is `null`), never as Python's repr. A result longer than its tool
allows keeps its head and its tail around a note.
"""

import json
from collections.abc import Callable, Sized
from typing import Any

from pydantic_core import to_jsonable_python

from gymnast.envs.messages import encodable

_CHARACTERS_PER_TOKEN = 16  # more than any text needs; cuts what would only cost time to tokenize


def result_text(value: Any) -> str:
    """Write a result as text.

    Raises:
        TypeError: JSON cannot express it.
        ValueError: It refers to itself, or holds a number too long to write.
    """
    if isinstance(value, str):
        return str(encodable(value))
    try:
        plain = to_jsonable_python(value, fallback=_fallback)
    except TypeError:
        raise
    except Exception as error:  # pydantic's own serialization error, a ValueError
        raise TypeError(f"a result of type {type(value).__name__}: {error}") from error
    text = json.dumps(plain, ensure_ascii=False)
    if "NaN" in text or "Infinity" in text:  # JSON has no such numbers: "NaN", in quotes
        text = json.dumps(json.loads(text, parse_constant=str), ensure_ascii=False)
    return str(encodable(text))


def _fallback(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy arrays and scalars, torch tensors
        return value.tolist()
    raise TypeError(
        f"a result of type {type(value).__name__} cannot be written as JSON; return a string, "
        "numbers, lists, dicts, a dataclass or a pydantic model"
    )


def cut_middle(text: str, max_tokens: int, encode: Callable[[str], Sized]) -> str:
    """Keep the head and the tail of a text that is too long.

    Args:
        text: What a tool returned.
        max_tokens: How many tokens may be left, the note included.
        encode: Tokenizes a text.

    Returns:
        The text itself where it fits; else the longest head and tail of equal length around a
        note that says how many characters were left out. The note alone may exceed a tiny limit.
    """
    bound = max_tokens * _CHARACTERS_PER_TOKEN
    if len(text) <= 2 * bound and len(encode(text)) <= max_tokens:
        return text
    low, high = 0, min(bound, len(text) // 2)
    while low < high:  # the longest that fits; token counts grow with length up to a token or two
        middle = (low + high + 1) // 2
        if len(encode(_joined(text, middle))) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return _joined(text, low)


def shortened(text: str, most: int) -> str:
    """The text where it has at most so many characters; else its head and its tail."""
    return text if len(text) <= most else _joined(text, most // 2)


def _joined(text: str, keep: int) -> str:
    left_out = len(text) - 2 * keep
    note = f"[... {left_out} characters left out ...]"
    return f"{text[:keep]}\n{note}\n{text[len(text) - keep :]}" if keep else note
