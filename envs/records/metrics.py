"""Numbers about an episode: counts (`info["metrics"]`) and seconds (`info["timings"]`)."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gymnast.envs.records.episode import CallRecord, Episode

_OF_A_TOOL = ("bad_arguments", "exception", "timeout", "bug")  # the model may write any other name


def episode_metrics(episode: Episode) -> dict[str, float]:
    """Count an episode's calls and errors.

    Returns:
        `tools/calls`, `tools/calls/<tool>` (those that could be run, whether or not the tool then
        raised or was out of time), `tools/failures/<tool>` (those of a tool that there is, and
        that did not succeed), `tools/errors` and `tools/errors/<kind>`, of which `bug` counts
        what is the author's to mend; a count of one tool or kind is there where it is not 0.
    """
    ran = Counter(record.call.name for record in episode.calls if _ran(record))
    failed = Counter(error.tool for error in episode.errors if error.kind in _OF_A_TOOL)
    kinds = Counter(error.kind for error in episode.errors)
    metrics = {
        "tools/calls": len(episode.calls),
        "tools/errors": len(episode.errors),
        **{f"tools/calls/{name}": count for name, count in ran.items()},
        **{f"tools/failures/{name}": count for name, count in failed.items()},
        **{f"tools/errors/{kind}": count for kind, count in kinds.items()},
    }
    return {name: float(value) for name, value in metrics.items()}


def _ran(record: CallRecord) -> bool:
    return record.error is None or record.error.kind in ("exception", "timeout", "bug")


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
