"""Which servers have computed the beginning of a context: where its keys and values are cached."""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

BLOCK_TOKENS = 64
MOST_BLOCKS = 100_000

Holder = TypeVar("Holder")


class Prefixes(Generic[Holder]):
    """Remembers who computed which beginnings, in whole blocks; forgets the oldest first.

    Args:
        holders: Who may.
        most: How many blocks to remember.
    """

    def __init__(self, holders: Sequence[Holder], most: int = MOST_BLOCKS) -> None:
        self._bits = {holder: 1 << place for place, holder in enumerate(holders)}
        self._most = most
        self._held: OrderedDict[int, int] = OrderedDict()  # a block's key: the bits of its holders

    def keep(self, keys: Sequence[int], holder: Holder) -> None:
        """Remember that somebody has computed, or begins to compute, these blocks."""
        bit, held = self._bits[holder], self._held
        for key in keys:
            held[key] = held.get(key, 0) | bit
            held.move_to_end(key)
        while len(held) > self._most:
            held.popitem(last=False)

    def find(self, keys: Sequence[int]) -> dict[Holder, int]:
        """How many of the first blocks each has, in a row from the beginning."""
        found = dict.fromkeys(self._bits, 0)
        having = (1 << len(self._bits)) - 1
        for number, key in enumerate(keys, 1):
            having &= self._held.get(key, 0)
            if not having:
                break
            for holder, bit in self._bits.items():
                if having & bit:
                    found[holder] = number
        return found

    def forget(self, holder: Holder) -> None:
        """Forget what somebody has computed."""
        others = ~self._bits[holder]
        for key, bits in list(self._held.items()):
            if bits & others:
                self._held[key] = bits & others
            else:
                del self._held[key]


def block_keys(ids: Sequence[int], salt: str) -> list[int]:
    """A number for every whole block, which depends on all tokens up to its end.

    Args:
        ids: The tokens.
        salt: What is cached under another one does not count.
    """
    return list(_keys(array("q", ids).tobytes(), hash(salt)))


def _keys(data: bytes, key: int) -> Iterator[int]:
    width = 8 * BLOCK_TOKENS
    for end in range(width, len(data) + 1, width):
        key = hash((key, data[end - width : end]))
        yield key
