"""The interface between the engine's scheduler and the code that computes its steps.

The scheduler (`engine.py`) decides which requests run and what each of them computes next. An
executor holds keys and values, runs the model and samples:

    match = executor.find(ids)               how much of a context is there already
    row = executor.allocate(request, match)  memory for the request
    executor.reserve(row, count)             memory for its next tokens
    launch = executor.launch(parts, steps)   begin to compute; a GPU goes on by itself
    executor.read(launch)                    wait for the sampled tokens
    executor.append(row, tokens)             the request goes on from tokens that were read
    executor.release(row)                    it is over
    executor.forget()                        the weights changed

`rows_executor.py` holds each context in one piece and computes when it is launched: for CPUs, and
for devices and models that the other cannot serve. `paged_executor.py` holds pages, shares them
between contexts, and replays CUDA graphs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gymnast.agents.engine.request import Request


@dataclass(eq=False)
class Row:
    """The context of one running request.

    Attributes:
        request: The request that it serves; None while it waits for another one.
        length: Tokens of the context, those that are being sampled included.
        computed: Of these, how many have keys and values once all that was launched is done.
    """

    request: Request | None = None
    length: int = 0
    computed: int = 0

    @property
    def missing(self) -> int:
        """Tokens that must be computed before the next one is sampled; 1 while decoding."""
        return self.length - self.computed


@dataclass(frozen=True)
class Match:
    """The longest beginning of a context that other contexts share.

    Attributes:
        shared: Its tokens.
        ready: Of these, how many are computed; another request is about to compute the rest.
    """

    shared: int
    ready: int


@dataclass(frozen=True)
class Part:
    """The tokens that one row computes in one step.

    Attributes:
        row: The row.
        count: The number of its tokens, from `row.computed` on.
    """

    row: Row
    count: int

    @property
    def samples(self) -> bool:
        """True if the row samples after these tokens."""
        return self.row.computed + self.count == self.row.length


class Launch(Protocol):
    """One or several steps that were begun."""

    @property
    def done(self) -> bool:
        """True if `Executor.read` would not wait."""
        ...


@dataclass(frozen=True)
class Sampled:
    """The tokens that one row sampled in a launch.

    Attributes:
        row: The row.
        ids: One token for each step.
        logprobs: Their log-probabilities.
    """

    row: Row
    ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class EngineTimes:
    """Seconds, and a count, since the executor was made.

    Attributes:
        device_s: Of the device computing steps.
        wait_s: Of the engine's thread waiting for the device; a CPU is waited for all the time.
        capture_s: Of that thread capturing CUDA graphs.
        captures: The number of graphs that were captured.
    """

    device_s: float = 0.0
    wait_s: float = 0.0
    capture_s: float = 0.0
    captures: int = 0


class Executor(Protocol):
    """Holds keys and values, runs the model and samples.

    Attributes:
        max_unread: Launches that may be under way while the next one is begun.
        steps: Numbers of steps that a launch may have, from 1 on; more where Python cannot keep up
            with the device.
        max_rows: Requests that run at once at most.
        tokens_pushed: Tokens that entered the model so far.
        context_length: The longest context with its completion that fits, in tokens.
    """

    max_unread: int
    steps: tuple[int, ...]
    max_rows: int
    tokens_pushed: int
    context_length: int

    @property
    def nbytes(self) -> int:
        """Bytes that the keys and values take now."""
        ...

    @property
    def times(self) -> EngineTimes:
        """The time spent so far."""
        ...

    def find(self, ids: np.ndarray) -> Match:
        """Find the longest beginning of a context, [T], that is there or about to be computed."""
        ...

    def allocate(self, request: Request, match: Any) -> Row | None:
        """Make a row for a request's tokens, of which `match.ready` need not be computed.

        Args:
            request: With the tokens that it sampled already, if it was preempted.
            match: Of these tokens but the last, found since the last call of any other method.

        Returns:
            The row; None if there is no memory for it now.
        """
        ...

    def reserve(self, row: Any, count: int) -> bool:
        """Make sure that the next `count` tokens of a row have memory; return False if not."""
        ...

    def launch(self, parts: Sequence[Part], steps: int) -> Launch:
        """Begin to compute; `computed` and `length` of the rows go on at once.

        Args:
            parts: At least one. Rows that decode come before others.
            steps: How often every row samples: one of `self.steps`; above 1 if all of them
                decode.
        """
        ...

    def read(self, launch: Any) -> list[Sampled]:
        """Wait for a launch, the oldest that was not read; rows may have been released since.

        Returns:
            The tokens of each row that sampled. A log-probability is NaN where a logit is.
        """
        ...

    def append(self, row: Any, ids: Sequence[int]) -> None:
        """Take tokens that were read as the next ones of a row."""
        ...

    def experts(self, row: Any, count: int) -> np.ndarray | None:
        """The experts of a row's first tokens, [count, layers, chosen]; None if none are kept."""
        ...

    def release(self, row: Any) -> None:
        """End a row. What it computed may serve other requests."""
        ...

    def forget(self) -> int:
        """Let nothing that was computed serve another request.

        Returns:
            How many rows in use go on with what they have.
        """
        ...
