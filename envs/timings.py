"""Seconds by kind, as `info["timings"]` has them."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Timings(Mapping[str, float]):
    """How many seconds each kind of work took: "parse", "tools", "render", "tool/multiply", ...

    Two of them are equal when they measured the same kinds of work. How long it took is no part
    of what an environment does: equal actions after equal seeds give equal infos, which
    Gymnasium's `check_env` requires.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Add the time the block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(kind, time.perf_counter() - start)

    def add(self, kind: str, seconds: float) -> None:
        """Add some seconds to a kind."""
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    def __getitem__(self, kind: str) -> float:
        return self._seconds[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._seconds)

    def __len__(self) -> int:
        return len(self._seconds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timings) and self._seconds.keys() == other._seconds.keys()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Timings({self._seconds})"
