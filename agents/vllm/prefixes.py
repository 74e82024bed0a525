"""Who has seen the longest beginning of a context: where its keys and values are cached."""

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
        most: How many blocks to remember.
    """

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._most = most
        self._holders: OrderedDict[int, Holder] = OrderedDict()

    def keep(self, ids: Sequence[int], holder: Holder) -> None:
        """Remember that somebody has computed these tokens."""
        for key in _blocks(ids):
            self._holders[key] = holder
            self._holders.move_to_end(key)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def find(self, ids: Sequence[int]) -> Holder | None:
        """Who has computed the longest beginning of these tokens; None where nobody has."""
        found = None
        for key in _blocks(ids):
            if key not in self._holders:
                break
            found = self._holders[key]
        return found

    def forget(self, holder: Holder) -> None:
        """Forget what somebody has computed."""
        for key in [key for key, each in self._holders.items() if each is holder]:
            del self._holders[key]


def _blocks(ids: Sequence[int]) -> Iterator[int]:
    """A number for every whole block, which depends on all tokens up to its end."""
    data, width, key = array("q", ids).tobytes(), 8 * BLOCK_TOKENS, 0
    for end in range(width, len(data) + 1, width):
        key = hash((key, data[end - width : end]))
        yield key
