"""Plain values as text: all that passes between the policy's code and the tests.

None, bool, int, float, complex, str, bytes, list, tuple, set, dict and a few relatives. A decoded
value is always exactly of one of these types, whatever was sent: no subclass with an `__eq__` of
its own, no object, no code. A value of a subclass is sent as one of the plain type, an iterator as
its items.

The text is JSON in ASCII. A JSON list is a tag and its parts; None, True, False and strings stand
for themselves.
"""

import itertools
import json
from collections import deque
from typing import Any, Callable, Dict, List, Tuple

MAX_CHARACTERS = 1 << 20
MAX_ITEMS = 100000  # in an iterator or a range

_TOO_DEEP = "values are nested too deeply"


class WireError(ValueError):
    """A value cannot be sent, or a text stands for no value."""


class NotPlain(WireError):
    """A value is, or contains, something other than plain values."""


class Opaque:
    """Stands for an object that is no plain value: only its truth value was sent."""

    def __init__(self, true: bool) -> None:
        self._true = true

    def __bool__(self) -> bool:
        return self._true


def encode(value: Any) -> str:
    """The text of a value.

    Raises:
        NotPlain: It is, or contains, something other than plain values.
        WireError: It is too large.
    """
    try:
        text = json.dumps(_packed(value))
    except RecursionError:
        raise WireError(_TOO_DEEP) from None
    if len(text) > MAX_CHARACTERS:
        raise WireError("a value has %d characters, more than %d" % (len(text), MAX_CHARACTERS))
    return text


def opaque(value: Any) -> str:
    """The text for an object that is no plain value."""
    return json.dumps(["opaque", bool(value)])


def decode(text: str) -> Any:
    """The value of a text, which may come from anyone.

    Raises:
        WireError: The text stands for no value.
    """
    try:
        return _unpacked(json.loads(text))
    except RecursionError:
        raise WireError(_TOO_DEEP) from None
    except WireError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise WireError("no value: %s" % error) from None


def _packed(value: Any) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return ["int", hex(int(value))]
    if isinstance(value, float):
        return ["float", float.hex(float(value))]
    if isinstance(value, complex):
        return ["complex", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes" if isinstance(value, bytes) else "bytearray", bytes(value).hex()]
    if isinstance(value, dict):
        return ["dict", *[[_packed(key), _packed(item)] for key, item in value.items()]]
    if isinstance(value, range):
        return ["range", *[hex(number) for number in (value.start, value.stop, value.step)]]
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return ["type", value.__name__]
    for kind, name in _SEQUENCES:
        if isinstance(value, kind):
            return [name, *map(_packed, value)]
    if hasattr(value, "__next__"):
        items = list(itertools.islice(value, MAX_ITEMS + 1))
        if len(items) > MAX_ITEMS:
            raise WireError("an iterator has more than %d items" % MAX_ITEMS)
        return ["iterator", *map(_packed, items)]
    raise NotPlain(
        "a value of type %s cannot be passed; plain values can" % type(value).__name__[:100]
    )


def _unpacked(packed: Any) -> Any:
    if packed is None or isinstance(packed, (bool, str)):
        return packed
    if not isinstance(packed, list):
        raise WireError("no value: %.50r" % (packed,))
    return _MAKE[packed[0]](packed[1:])


def _items(parts: List[Any]) -> List[Any]:
    return [_unpacked(part) for part in parts]


def _dict(parts: List[Any]) -> Dict[Any, Any]:
    return {_unpacked(key): _unpacked(item) for key, item in parts}


def _range(parts: List[Any]) -> range:
    numbers = range(*[int(part, 16) for part in parts])
    if numbers[MAX_ITEMS : MAX_ITEMS + 1]:  # a short text could make a list that fills the memory
        raise WireError("a range has more than %d items" % MAX_ITEMS)
    return numbers


_SEQUENCES: Tuple[Tuple[Any, str], ...] = (
    (list, "list"),
    (tuple, "tuple"),
    (frozenset, "frozenset"),
    (set, "set"),
    (deque, "deque"),
    (type({}.keys()), "dict_keys"),
    (type({}.values()), "dict_values"),
    (type({}.items()), "dict_items"),
)
_TYPES: Dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
}
_MAKE: Dict[str, Callable[[List[Any]], Any]] = {
    "type": lambda parts: _TYPES[parts[0]],
    "opaque": lambda parts: Opaque(bool(parts[0])),
    "int": lambda parts: int(parts[0], 16),
    "float": lambda parts: float.fromhex(parts[0]),
    "complex": lambda parts: complex(float.fromhex(parts[0]), float.fromhex(parts[1])),
    "bytes": lambda parts: bytes.fromhex(parts[0]),
    "bytearray": lambda parts: bytearray.fromhex(parts[0]),
    "dict": _dict,
    "range": _range,
    "list": _items,
    "tuple": lambda parts: tuple(_items(parts)),
    "frozenset": lambda parts: frozenset(_items(parts)),
    "set": lambda parts: set(_items(parts)),
    "deque": lambda parts: deque(_items(parts)),
    "dict_keys": lambda parts: dict.fromkeys(_items(parts)).keys(),
    "dict_values": lambda parts: dict(enumerate(_items(parts))).values(),
    "dict_items": lambda parts: dict(_items(parts)).items(),
    "iterator": lambda parts: iter(_items(parts)),
}
