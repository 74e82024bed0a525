"""Which packed tokens attend to which: calls of a kernel, each on a slice of queries and of keys.

The tokens of a tree stand in depth-first order, so those below a segment follow it directly. So
each segment takes two calls at most: its tokens attend to themselves, causally, and all tokens
below it attend to it, as one long query. The keys of a prompt are never repeated for those who
share it, and no score that a mask would hide is computed.

A sliding window cuts the second call into one for each segment below, of the queries whose window
reaches up to the ancestor and of the keys that they reach: positions run on from an ancestor to
its descendants, so what is hidden is a band. In every call, every query sees some key.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, TypeVar

import torch

Divided = TypeVar("Divided")


@dataclass(frozen=True)
class Subtree:
    """A segment and all that lies below it: `start < end <= last`, of packed tokens.

    Attributes:
        start: Its first token.
        end: Where its tokens end.
        last: Where the segments below it end.
        position: Of its first token in the trajectories that hold it.
    """

    start: int
    end: int
    last: int
    position: int

    @property
    def own(self) -> slice:
        """Its tokens."""
        return slice(self.start, self.end)

    @property
    def below(self) -> slice:
        """The tokens of all its descendants."""
        return slice(self.end, self.last)

    @property
    def end_position(self) -> int:
        """The position after its last token's."""
        return self.position + self.end - self.start


@dataclass(frozen=True)
class Call:
    """Some queries attend to some keys.

    Attributes:
        queries: Of the packed tokens.
        keys: Of the packed tokens.
        first: Whether the queries have attended to nothing before.
        distance: The first query's position less the first key's, where a query sees no later
            position than its own; None where every query sees every key.
        window: How many positions back a query sees, its own included; None sees all.
    """

    queries: slice
    keys: slice
    first: bool = False
    distance: int | None = None
    window: int | None = None

    @property
    def asked(self) -> int:
        """How many queries."""
        return self.queries.stop - self.queries.start

    @property
    def length(self) -> int:
        """How many keys."""
        return self.keys.stop - self.keys.start

    @property
    def causal(self) -> bool:
        """Whether the queries are the keys, and each sees all that stand before it."""
        return self.distance == 0 and self.window is None and self.asked == self.length

    def seen(self, device: torch.device) -> torch.Tensor | None:
        """Which keys a query sees, [queries, keys]; None where all see all."""
        if self.distance is None:
            return None
        asked = torch.arange(self.asked, device=device)[:, None] + self.distance
        back = asked - torch.arange(self.length, device=device)
        return (back >= 0) if self.window is None else (back >= 0) & (back < self.window)

    def blocks(self, size: int) -> Iterator["Call"]:
        """Divide the queries into blocks of this many, each with the keys that it reaches."""
        for start in range(0, self.asked, size):
            end = min(start + size, self.asked)
            queries = slice(self.queries.start + start, self.queries.start + end)
            if self.distance is None:
                yield replace(self, queries=queries)
                continue
            window = self.window or self.distance + end
            first = max(0, self.distance + start - window + 1)
            last = min(self.length, self.distance + end)
            keys = slice(self.keys.start + first, self.keys.start + last)
            yield _call(queries, keys, self.first, self.distance + start - first, self.window)


def _call(queries: slice, keys: slice, first: bool, distance: int, window: int | None) -> Call:
    """A call that hides no more than it has to."""
    asked, length = queries.stop - queries.start, keys.stop - keys.start
    if window is not None and distance + asked <= window:
        window = None
    if window is None and distance >= length - 1:
        return Call(queries, keys, first)
    return Call(queries, keys, first, distance, window)


@dataclass(frozen=True)
class Tree:
    """The segments of a pack.

    Attributes:
        subtrees: In the order of their tokens, which they cover without a gap.
    """

    subtrees: Sequence[Subtree]
    _calls: dict[int | None, list[Call]] = field(default_factory=dict, compare=False)
    _divided: dict[Hashable, Any] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return self.subtrees[-1].end

    def calls(self, window: int | None) -> list[Call]:
        """What attends to what; own segments first, so that every token has a part to join.

        Layers with one window share it.
        """
        if window not in self._calls:
            own = [_call(s.own, s.own, True, 0, window) for s in self.subtrees]
            above = [
                call for number in range(len(own)) for call in self._from_below(number, window)
            ]
            self._calls[window] = own + above
        return self._calls[window]

    def divided(self, key: Hashable, divide: Callable[[], Divided]) -> Divided:
        """Return the result of the first call of `divide` for this key."""
        if key not in self._divided:
            self._divided[key] = divide()
        divided: Divided = self._divided[key]
        return divided

    def exceeds(self, window: int | None) -> bool:
        """Return whether a window hides some key from some token."""
        return window is not None and max(s.end_position for s in self.subtrees) > window

    def _from_below(self, number: int, window: int | None) -> Iterator[Call]:
        """What the tokens below a segment see of it."""
        above = self.subtrees[number]
        if above.last == above.end:
            return
        below = list(takewhile(lambda s: s.start < above.last, self.subtrees[number + 1 :]))
        if window is None or max(s.end_position for s in below) - above.position <= window:
            yield Call(above.below, above.own)
            return
        for subtree in below:
            reaching = above.end_position - 1 + window - subtree.position
            asked = min(subtree.end - subtree.start, reaching)
            if asked > 0:
                position = max(above.position, subtree.position - window + 1)
                keys = slice(above.start + position - above.position, above.end)
                queries = slice(subtree.start, subtree.start + asked)
                yield _call(queries, keys, False, subtree.position - position, window)
