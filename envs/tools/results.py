"""A tool's result as it is recorded and as the policy reads it.

A string stays as it is. Anything else becomes JSON (including dataclasses, pydantic models, numpy
values and sets; None is `null`), never Python's repr. Bytes, images and sounds are refused: a text
cannot represent them. A result that is too long for its tool keeps its head and its tail around a
note.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from gymnast.envs.records.messages import encodable

_CHARACTERS_PER_TOKEN = 16  # more than in any text; saves tokenizing what would be cut anyway
_CHANNELS = {1, 3, 4}  # grey, RGB, RGBA
_MEDIA = ("image", "image_url", "input_image", "audio", "input_audio", "video", "video_url")
_TEXT_TYPE = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml)\b")
_SUPPORTED = (
    "A tool returns a string, or what JSON can hold: numbers, lists, dicts, dataclasses, pydantic "
    "models, arrays of numbers"
)
_INSTEAD = "Return a text about it, or save it to a file and return the file's name"


class Written(NamedTuple):
    """A result as it was when the tool returned it.

    Attributes:
        value: A string, or the JSON value.
        text: The same as text, for the policy.
    """

    value: Any
    text: str


def written(result: Any) -> Written:
    """A copy of a tool's result, which later changes of the object do not reach.

    Raises:
        TypeError: It is not text, and JSON cannot hold it; the message says what a tool may return.
    """
    if isinstance(result, str):
        text = str(encodable(result))
        return Written(text, text)
    try:
        if any(isinstance(part, bytes | bytearray | memoryview) for part in _parts(result)):
            raise TypeError(
                f"{_described(result)} holds bytes, which are not text. {_SUPPORTED}. Decode bytes "
                f"that are text: data.decode(). Otherwise: {_INSTEAD.lower()}."
            )
        value = to_jsonable_python(result, fallback=_fallback)
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:
        raise
    except Exception as error:  # a cycle, a number too long, a mapping that raises
        raise TypeError(f"{_described(result)} cannot be written as JSON: {error}.") from error
    if (kind := next(filter(None, map(_media, _parts(value))), None)) is not None:
        raise TypeError(
            f"{_described(result)} holds a content part of type {kind!r}, which a text model "
            f"cannot read. {_SUPPORTED}. {_INSTEAD}."
        )
    if "NaN" in text or "Infinity" in text:  # JSON has no such numbers; they become strings
        value = json.loads(text, parse_constant=str)
        text = json.dumps(value, ensure_ascii=False)
    clean = str(encodable(text))
    return Written(value if clean == text else json.loads(clean), clean)


def _fallback(value: Any) -> Any:
    """The JSON of types that pydantic does not know: numpy arrays and scalars, torch tensors."""
    if _is_image(value):
        raise TypeError(
            f"{_described(value)} is an image, which a text model cannot read. {_SUPPORTED}. "
            f"{_INSTEAD}; for an array that is not an image, return array.tolist()."
        )
    if not hasattr(value, "tolist"):
        raise TypeError(f"{_described(value)} cannot be written as JSON. {_SUPPORTED}.")
    return value.tolist()


def _is_image(value: Any) -> bool:
    """Whether it is a PIL image, or an array of bytes of shape [H, W, C] or [C, H, W]."""
    if any(cls.__module__.startswith("PIL.") for cls in type(value).__mro__):
        return True
    shape: tuple[int, ...] = getattr(value, "shape", ())
    kind = str(getattr(value, "dtype", ""))
    return kind.endswith("uint8") and len(shape) == 3 and bool({shape[0], shape[2]} & _CHANNELS)


def _media(value: Any) -> str | None:
    """The type of a content part other than text, as OpenAI, Anthropic and MCP write them."""
    if not isinstance(value, dict):
        return None
    kind, mime = value.get("type"), value.get("mimeType")
    encoded = "blob" in value or ("data" in value and not _TEXT_TYPE.match(str(mime)))
    encoded = mime is not None and encoded
    if kind in _MEDIA:
        source = value.get("source")
        of_anthropic = isinstance(source, dict) and "type" in source
        is_media = encoded or of_anthropic or kind in value or "image_url" in value
        return str(kind) if is_media else None
    return str(mime) if encoded else None


def _parts(value: Any) -> Iterator[Any]:
    """A value and all values in it, each object once; pydantic models are not opened."""
    waiting, seen = [value], {}
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, str | int | float | None) or id(part) in seen:
            continue
        seen[id(part)] = part  # keeps it alive, so that no other object gets its id
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            waiting += part
        elif dataclasses.is_dataclass(part) and not isinstance(part, type):
            waiting += [getattr(part, f.name, None) for f in dataclasses.fields(part)]


def _described(value: Any) -> str:
    module, name = type(value).__module__, type(value).__name__
    of_a_file = module in ("builtins", "__main__") or module.startswith("gymnast_file_")
    return f"a result of type {name if of_a_file else f'{module}.{name}'}"


def cut_middle(text: str, max_tokens: int, encode: Callable[[str], Sized]) -> str:
    """Keep the head and the tail of a text that is too long.

    Args:
        text: A tool's result.
        max_tokens: How many tokens may be left, including the note.
        encode: Tokenizes a text.

    Returns:
        The text itself if it fits; else the longest head and tail of equal length around a note
        that says how many characters were left out. The note alone may exceed a tiny limit.
    """
    bound = max_tokens * _CHARACTERS_PER_TOKEN
    if len(text) <= 2 * bound and len(encode(text)) <= max_tokens:
        return text
    low, high = 0, min(bound, len(text) // 2)
    while low < high:  # bisection: token counts grow with length, give or take a token or two
        middle = (low + high + 1) // 2
        if len(encode(_joined(text, middle))) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return _joined(text, low)


def shortened(text: str, most: int) -> str:
    """The text if it has at most this many characters, else its head and its tail."""
    return text if len(text) <= most else _joined(text, most // 2)


def _joined(text: str, keep: int) -> str:
    left_out = len(text) - 2 * keep
    note = f"[... {left_out} characters left out ...]"
    return f"{text[:keep]}\n{note}\n{text[len(text) - keep :]}" if keep else note
