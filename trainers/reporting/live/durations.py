"""Durations in words, and how long a run is still going to take."""

from collections import deque

RECENT = 5


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Pace:
    """How long steps take: the last few of them, and what lies between steps.

    The first step takes longer than the others, so the mean of the last few is what the next ones
    are expected to take. Evaluations and checkpoints lie between steps: their time is divided over
    all steps that were taken since the first one began.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._began: float | None = None
        self._in_steps, self._steps = 0.0, 0
        self._last_end = 0.0

    def count(self, step_s: float, now: float) -> None:
        """Count a step that took so many seconds and ended now.

        Args:
            step_s: What the step took.
            now: In seconds, on a clock that goes on.
        """
        if self._began is None:
            self._began = now - step_s
        self._recent.append(step_s)
        self._in_steps += step_s
        self._steps += 1
        self._last_end = now

    def left_s(self, steps: int, now: float) -> float | None:
        """Seconds until so many more steps are done; None before the first one is.

        Args:
            steps: How many are left.
            now: On the clock of `count`; what has passed since the last step is taken off.
        """
        if self._began is None:
            return None
        between = max(0.0, (self._last_end - self._began - self._in_steps) / self._steps)
        each = sum(self._recent) / len(self._recent) + between
        return max(0.0, steps * each - (now - self._last_end))
