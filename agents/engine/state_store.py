"""The states that an engine keeps between requests, for contexts that begin with their tokens.

A state, the cache after exactly some tokens, can be continued but not cut. So it serves only the
contexts that begin with all of its tokens. The least recently used states go first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from gymnast.agents.caches.parts import nbytes


@dataclass(eq=False)
class State:
    """What a model keeps of the tokens it has seen.

    Attributes:
        tokens: These tokens.
        cache: Transformers' cache after exactly these tokens; None where there are none.
        shared: Whether several sequences may begin with it (it is the end of a prompt), so that
            none of them may change it.
        experts: Chosen for these tokens, [tokens, layers, chosen]; None where they are not kept.
    """

    tokens: list[int]
    cache: Any
    shared: bool = False
    experts: np.ndarray | None = None
    nbytes: int = 0
    used: int = 0
    ids: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.ids = np.array(self.tokens, dtype=np.int64)
        self.nbytes = nbytes(self.cache)


class StateStore:
    """Keeps states within a budget.

    Attributes:
        states: Those kept.
        epoch: How often they were forgotten; a state computed in an earlier one is not kept.
    """

    def __init__(self) -> None:
        self.states: list[State] = []
        self.epoch = 0
        self._clock = count(1)

    @property
    def nbytes(self) -> int:
        """What the kept states take, in bytes."""
        return sum(state.nbytes for state in self.states)

    def clear(self) -> None:
        """Forget all states, those in use included: they are not kept when they return."""
        self.states.clear()
        self.epoch += 1

    def keep(self, state: State, epoch: int) -> None:
        """Keep a state that was computed since `epoch`."""
        if epoch != self.epoch or state.cache is None:
            return
        state.used = next(self._clock)
        same = [s for s in self.states if np.array_equal(s.ids, state.ids)]
        if same:
            same[0].shared |= state.shared
            same[0].used = state.used
        else:
            self.states.append(state)

    def longest(self, ids: np.ndarray) -> State | None:
        """The longest state whose tokens all stand at the beginning of `ids`."""
        fitting = [state for state in self.states if begins_with(ids, state.ids)]
        return max(fitting, key=lambda state: len(state.ids), default=None)

    def take(self, state: State) -> Any:
        """The cache of a state, to be continued: in place if nobody else may want it."""
        state.used = next(self._clock)
        if not state.shared:
            self.states.remove(state)
        return state.cache

    def shrink(self, most_bytes: int) -> None:
        """Forget the least recently used states until the others take `most_bytes` or less."""
        self.states.sort(key=lambda state: state.used)
        while self.states and self.nbytes > most_bytes:
            self.states.pop(0)


def begins_with(ids: np.ndarray, prefix: np.ndarray) -> bool:
    """Whether `ids` begin with all of `prefix`."""
    return len(prefix) <= len(ids) and bool((ids[: len(prefix)] == prefix).all())


def shared_length(ids: np.ndarray, others: Sequence[np.ndarray], below: int) -> int:
    """The longest common prefix of `ids` with any of the others, among those below a length."""
    longest = 0
    for other in others:
        width = min(len(ids), len(other))
        different = ids[:width] != other[:width]
        length = int(different.argmax()) if different.any() else width
        if longest < length < below:
            longest = length
    return longest
