"""The boxes of a pool that are warm, and the takers that wait for one.

Every box counts as living from before it is opened until it is closed. A taker that comes while a
box is warm checks it and gets it; otherwise it joins the line and gets the next box that is opened.
So no box is warm while a taker waits. `filling.py` opens the boxes.
"""

import contextlib
import threading
import time
from collections import deque

from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.pool.line import Line, Ticket
from gymnast.visible import visible_logger

LATELY_S = 60.0  # the stock follows the demand of this long
PING_S = 2.0

log = visible_logger("gymnast.sandboxes")


class Stock:
    """Hands out each box once.

    Args:
        warm: How many boxes to keep ahead at most.
        max_boxes: How many boxes may live at once.

    Attributes:
        changed: The lock of everything here; it is notified when boxes may be wanted or closed.
        closed: Whether no more boxes are handed out.
        living: Boxes that are being opened, warm, or taken.
        taken: How many boxes are with takers.
        dropped: How many warm boxes were dead when a taker came.
        waited_s: How long takers have waited for their boxes, in seconds, all together.
    """

    def __init__(self, warm: int, max_boxes: int) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.closed = False
        self.living = self.taken = self.dropped = 0
        self.waited_s = 0.0
        self._max_boxes = max_boxes
        self._line = Line()
        self._warm: deque[Sandbox] = deque()
        self._asked: deque[float] = deque(maxlen=warm)  # when; as many as can count

    @property
    def warm(self) -> int:
        """How many boxes are ready."""
        return len(self._warm)

    @property
    def waiting(self) -> int:
        """How many takers are in the line."""
        return len(self._line)

    @property
    def is_full(self) -> bool:
        """Whether no more boxes may be opened."""
        return self.living >= self._max_boxes

    # --- For takers

    def ask(self) -> tuple[Ticket, Sandbox | None]:
        """Draw a ticket. If a box is warm, it is returned too, to be passed to `hand_over`.

        Raises:
            SandboxUnavailable: The stock is closed.
        """
        ticket = Ticket()
        with self.changed:
            self.check_open()
            self._asked.append(ticket.came)
            box = self._warm_or_line(ticket)
        return ticket, box

    def check_open(self) -> None:
        """With the lock.

        Raises:
            SandboxUnavailable: The stock is closed.
        """
        if self.closed:
            raise SandboxUnavailable("the pool is closed; make another")

    def hand_over(self, ticket: Ticket, box: Sandbox | None) -> None:
        """Give the ticket a warm box that is alive, or put it in the line. Waits for a ping."""
        while box is not None:
            if _is_alive(box):
                if not self._give(ticket, box):
                    self._offer(box)
                return
            self._drop(box)
            with self.changed:
                box = None if ticket.cancelled() else self._warm_or_line(ticket)

    def step_out(self, ticket: Ticket) -> None:
        """Cancel a ticket; if it has a box already, that goes to the next in the line."""
        if not self.withdraw(ticket) and ticket.exception() is None:
            with self.changed:
                self.taken -= 1
            self._offer(ticket.result())

    def withdraw(self, ticket: Ticket) -> bool:
        """Cancel a ticket, unless it has its outcome already."""
        if not ticket.cancel():
            return False
        with self.changed:
            self._line.leave(ticket)
        return True

    def end(self, box: Sandbox) -> None:
        """Close a box that was taken, and free its place."""
        try:
            box.close()
        finally:
            with self.changed:
                self.taken -= 1
                self.living -= 1
                self.changed.notify_all()

    # --- For the threads that open boxes

    def wanted(self, opening: int, *, ahead: bool) -> int:
        """How many more boxes are to be opened now. With the lock.

        Args:
            opening: How many are being opened.
            ahead: Whether to open any for takers that have not come yet.
        """
        since = time.monotonic() - LATELY_S
        stocked = max(1, sum(when >= since for when in self._asked)) if ahead else 0
        wanted = len(self._line) + stocked - len(self._warm) - opening
        return min(wanted, self._max_boxes - self.living)

    def first_or_warm(self, box: Sandbox) -> Ticket | None:
        """With the lock: return the ticket to give a box to; or None, and keep the box warm."""
        ticket = self._line.first()
        if ticket is None:
            self._warm.append(box)
        self.changed.notify_all()
        return ticket

    def pass_on(self, box: Sandbox, ticket: Ticket | None) -> None:
        """Give a box to a ticket, or to the next if that was cancelled."""
        while ticket is not None:
            if self._give(ticket, box):
                return
            with self.changed:
                ticket = self.first_or_warm(box)
        if self.closed:
            for closing in self._close_warm():
                closing.join()

    def clear_line(self) -> list[Ticket]:
        """With the lock: remove and return all tickets in the line."""
        return self._line.clear()

    def check_warm(self) -> None:
        """Close the warm boxes that have died along with their engine."""
        for box in self._take_warm():
            if _is_alive(box):
                self._offer(box)
            else:
                self._drop(box)

    def close(self) -> list[threading.Thread]:
        """Turn away waiting takers, and begin to close warm boxes; taken boxes stay open.

        Returns:
            The threads that close boxes.
        """
        with self.changed:
            self.closed = True
            tickets = self.clear_line()
            self.changed.notify_all()
        for ticket in tickets:
            ticket.give(_closed_meanwhile())
        return self._close_warm()

    # --- Internal

    def _warm_or_line(self, ticket: Ticket) -> Sandbox | None:
        """With the lock: return a warm box, or None after putting the ticket in the line."""
        self.changed.notify_all()
        if self._warm:
            return self._warm.popleft()
        if self.closed:
            ticket.give(_closed_meanwhile())
        else:
            self._line.join(ticket)
        return None

    def _offer(self, box: Sandbox) -> None:
        """Give a box to the first in the line; if nobody waits, keep it warm."""
        with self.changed:
            ticket = self.first_or_warm(box)
        self.pass_on(box, ticket)

    def _give(self, ticket: Ticket, box: Sandbox) -> bool:
        with self.changed:  # counted before its taker can close it
            self.taken += 1
            self.waited_s += time.monotonic() - ticket.came
        if ticket.give(box):
            return True
        with self.changed:
            self.taken -= 1
        return False

    def _take_warm(self) -> list[Sandbox]:
        with self.changed:
            boxes = list(self._warm)
            self._warm.clear()
        return boxes

    def _close_warm(self) -> list[threading.Thread]:
        """Begin to close all warm boxes."""
        closing = []
        for box in self._take_warm():
            thread = threading.Thread(target=self._discard, args=(box,))
            try:
                thread.start()
                closing.append(thread)
            except RuntimeError:  # no more threads can start, as at exit
                self._discard(box)
        return closing

    def _drop(self, box: Sandbox) -> None:
        """Close a warm box that is dead."""
        with self.changed:
            self.dropped += 1
        self._discard(box)

    def _discard(self, box: Sandbox) -> None:
        """Close a box that no taker has, and free its place."""
        try:
            box.close()
        except Exception:
            log.exception("a box could not be closed")
        finally:
            with self.changed:
                self.living -= 1
                self.changed.notify_all()


def _closed_meanwhile() -> SandboxUnavailable:
    return SandboxUnavailable("the pool was closed while a taker waited")


def _is_alive(box: Sandbox) -> bool:
    with contextlib.suppress(Exception):
        return box.ping(timeout_s=PING_S)
    return False
