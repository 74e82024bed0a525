"""The waiting line of a pool: first come, first served, threads and coroutines alike."""

import heapq
import itertools
import time
from concurrent.futures import Future

from gymnast.sandboxes.contract.base import Sandbox

_numbers = itertools.count()


class Ticket(Future[Sandbox]):
    """A place in the line; its result is the backend's box.

    Attributes:
        number: The smallest one is served first.
        came: When it was drawn, in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = next(_numbers)
        self.came = time.monotonic()

    def __lt__(self, other: "Ticket") -> bool:
        return self.number < other.number

    def give(self, outcome: Sandbox | BaseException) -> bool:
        """Set its box, or the error to raise; return False if its owner has cancelled it."""
        if not self.set_running_or_notify_cancel():
            return False
        if isinstance(outcome, BaseException):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)
        return True


class Line:
    """Tickets in the order of their numbers. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._heap: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._heap)

    def join(self, ticket: Ticket) -> None:
        """Put a ticket at the place of its number, which need not be the last."""
        heapq.heappush(self._heap, ticket)

    def first(self) -> Ticket | None:
        """Remove and return the ticket that has waited longest."""
        return heapq.heappop(self._heap) if self._heap else None

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket if it is in the line."""
        if ticket in self._heap:
            self._heap.remove(ticket)
            heapq.heapify(self._heap)

    def clear(self) -> list[Ticket]:
        """Remove and return all tickets."""
        tickets, self._heap = self._heap, []
        return tickets
