"""Gymnasium's spaces in JSON: the schema of an action, its value, and observations as text."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

Schema = dict[str, Any]
_DIGITS = 4  # of a number in an observation's text


class _Kind(NamedTuple):
    """How actions of one kind of space are written."""

    schema: Callable[[Any], Schema]
    value: Callable[[Any, Any], Any]


def is_supported(space: Space[Any]) -> bool:
    """Whether actions of a space can be written in JSON."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.values() if isinstance(space, spaces.Dict) else space.spaces
        return all(map(is_supported, parts))
    return type(space) in _KINDS


def schema(space: Space[Any]) -> Schema:
    """The JSON schema of a space that is supported."""
    return _KINDS[type(space)].schema(space)


def value(space: Space[Any], given: Any) -> Any:
    """An element of a space, made of JSON that its schema allows.

    Raises:
        ValueError: The space does not hold it, although its schema allows it.
    """
    made = _KINDS[type(space)].value(space, given)
    if not space.contains(made):
        raise ValueError(f"{json.dumps(given)} is not in {space}")
    return made


def plain(element: Any) -> Any:
    """An element of a space as JSON holds it: lists for arrays and tuples, numbers of Python."""
    if isinstance(element, Mapping):
        return {str(key): plain(part) for key, part in element.items()}
    if isinstance(element, Sequence) and not isinstance(element, str):
        return [plain(part) for part in element]
    return element.tolist() if isinstance(element, np.ndarray | np.generic) else element


def text(element: Any) -> str:
    """An element of a space as text; a mapping has a line for each of its parts."""
    if isinstance(element, str):
        return element
    if isinstance(element, Mapping):
        return "\n".join(f"{key}: {text(part)}" for key, part in element.items())
    return json.dumps(_rounded(plain(element)), ensure_ascii=False, default=str)


def size(element: Any) -> int:
    """How many numbers an element consists of, about."""
    if isinstance(element, np.ndarray):
        return element.size
    if isinstance(element, Mapping):
        return sum(map(size, element.values()))
    if isinstance(element, Sequence) and not isinstance(element, str | bytes):
        return sum(map(size, element))
    return 1


def numbers(space: Space[Any]) -> int:
    """How many numbers an element of a space consists of, about."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.values() if isinstance(space, spaces.Dict) else space.spaces
        return sum(map(numbers, parts))
    return math.prod(space.shape or ())


def _rounded(element: Any) -> Any:
    if isinstance(element, list):
        return [_rounded(part) for part in element]
    if isinstance(element, dict):
        return {key: _rounded(part) for key, part in element.items()}
    if not isinstance(element, float):
        return element
    return float(f"{element:.{_DIGITS}g}") if math.isfinite(element) else str(element)


# ---- schemas


def _whole(low: Any, count: Any) -> Schema:
    return {"type": "integer", "minimum": int(low), "maximum": int(low) + int(count) - 1}


def _number(low: Any, high: Any, dtype: Any) -> Schema:
    made: Schema = {"type": "integer" if np.issubdtype(dtype, np.integer) else "number"}
    read = int if made["type"] == "integer" else float
    # As they are written: the nearest number of Python's to a float32 has more digits.
    bounds = {"minimum": low, "maximum": high}
    return made | {key: read(str(bound)) for key, bound in bounds.items() if np.isfinite(bound)}


def _array(shape: Sequence[int], entries: list[Schema]) -> Schema:
    """An array of some shape, whose entries, in C order, have these schemas."""
    if not shape:
        return entries[0]
    length = len(entries) // shape[0] if shape[0] else 0
    parts = [_array(shape[1:], entries[i * length : (i + 1) * length]) for i in range(shape[0])]
    return _list(parts)


def _list(parts: list[Schema]) -> Schema:
    made: Schema = {"type": "array", "minItems": len(parts), "maxItems": len(parts)}
    if parts and all(part == parts[0] for part in parts):
        return made | {"items": parts[0]}
    return made | {"prefixItems": parts}


def _of_discrete(space: spaces.Discrete) -> Schema:
    return _whole(space.start, space.n)


def _of_multi_discrete(space: spaces.MultiDiscrete) -> Schema:
    entries = map(_whole, space.start.flat, space.nvec.flat)
    return _array(space.nvec.shape, list(entries))


def _of_multi_binary(space: spaces.MultiBinary) -> Schema:
    return _array(space.shape, [_whole(0, 2)] * math.prod(space.shape))


def _of_box(space: spaces.Box) -> Schema:
    pairs = zip(space.low.flat, space.high.flat, strict=True)
    return _array(space.shape, [_number(low, high, space.dtype) for low, high in pairs])


def _of_text(space: spaces.Text) -> Schema:
    characters = "".join(re.escape(c) for c in sorted(space.character_set))
    lengths = {"minLength": space.min_length, "maxLength": space.max_length}
    return {"type": "string", **lengths, "pattern": f"^[{characters}]*$"}


def _of_dict(space: spaces.Dict) -> Schema:
    properties = {str(key): schema(part) for key, part in space.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _of_tuple(space: Any) -> Schema:
    return _list([schema(part) for part in space.spaces])


# ---- values


def _scalar(space: Any, given: Any) -> Any:
    return space.dtype.type(given)


def _filled(space: Any, given: Any) -> Any:
    with np.errstate(over="ignore"):
        made = np.asarray(given, dtype=space.dtype)
    if not np.isfinite(made).all():
        raise ValueError(f"{json.dumps(given)} has numbers that are not finite, or too large")
    return made


def _as_it_is(space: Any, given: Any) -> Any:
    return given


def _each(space: Any, given: Any) -> Any:
    return {key: value(part, given[str(key)]) for key, part in space.items()}


def _in_order(space: Any, given: Any) -> Any:
    return tuple(value(part, one) for part, one in zip(space.spaces, given, strict=True))


_KINDS: dict[type, _Kind] = {
    spaces.Discrete: _Kind(_of_discrete, _scalar),
    spaces.MultiDiscrete: _Kind(_of_multi_discrete, _filled),
    spaces.MultiBinary: _Kind(_of_multi_binary, _filled),
    spaces.Box: _Kind(_of_box, _filled),
    spaces.Text: _Kind(_of_text, _as_it_is),
    spaces.Dict: _Kind(_of_dict, _each),
    spaces.Tuple: _Kind(_of_tuple, _in_order),
}
