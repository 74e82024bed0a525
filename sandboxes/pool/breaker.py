"""When opening a box may be tried: at once, or after a pause and one at a time.

It knows no threads and no clock: `filling.py` asks it, and tells it the time.
"""

import random

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
OPENS_AFTER = 3  # failures in a row
GIVES_UP_AFTER_S = 10.0  # where nothing has ever succeeded


class Breaker:
    """A circuit breaker with exponential, jittered back-off.

    While all goes well, any number may try at once. Before the first success, and from a failure to
    the next success, one tries at a time, after a pause that doubles with every failure in a row.
    After `OPENS_AFTER` failures in a row the breaker is open: the backend counts as lost. A backend
    that has worked is waited for; one that never has is given up after `GIVES_UP_AFTER_S`.

    Attributes:
        proven: Whether any try has succeeded yet.
        reason: Why the latest try failed; None after a success.
    """

    def __init__(self) -> None:
        self.proven = False
        self.reason: str | None = None
        self._failures = 0  # in a row
        self._next_try = self._failing_since = 0.0

    @property
    def is_open(self) -> bool:
        """Whether so many tries have failed in a row that the backend counts as lost."""
        return self._failures >= OPENS_AFTER

    def gives_up(self, now: float) -> bool:
        """Whether nothing has succeeded for so long that nothing is likely to."""
        return (
            not self.proven and self._failures > 0 and now - self._failing_since >= GIVES_UP_AFTER_S
        )

    def pause_s(self, now: float, under_way: int) -> float | None:
        """How long to wait before another try, in seconds.

        Args:
            now: The time in seconds, by the clock that `failed` is told.
            under_way: How many tries have begun and not ended.

        Returns:
            Seconds, 0.0 for at once; None: until a try that is under way has ended.
        """
        if self.proven and not self._failures:
            return 0.0
        return None if under_way else max(0.0, self._next_try - now)

    def succeeded(self) -> None:
        """A try has succeeded."""
        self.proven = True
        self.reason = None
        self._failures = 0
        self._next_try = 0.0

    def failed(self, now: float, reason: str) -> None:
        """A try has failed for a reason that may pass."""
        self.reason = reason
        if self._failures == 0:
            self._failing_since = now
        self._failures += 1
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 30))
        self._next_try = now + random.uniform(longest / 2, longest)
