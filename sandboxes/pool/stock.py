"""Boxes kept warm by a few threads, and who gets them: the inside of `SandboxPool`.

Every box is counted as living from before it is opened until it is closed. Whoever finds one
warm checks it and has it; who finds none joins the line, and gets the next that is opened. So
while somebody waits, none is warm. Left out: the line itself (`line.py`), and when to try again
what has failed (`breaker.py`).
"""

import contextlib
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from gymnast.errors import SandboxTemporarilyUnavailable, SandboxUnavailable
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.lifetime.living import before_finalizers
from gymnast.sandboxes.pool.breaker import Breaker
from gymnast.sandboxes.pool.line import Line, Ticket
from gymnast.visible import visible_logger

THREADS = 4
JITTER_S = 0.02  # before each opening, so that many processes do not open in step
LATELY_S = 60.0  # the stock follows the demand of this long
PING_S = 2.0
END_S = 10.0  # for openings under way to end, when all is closed

log = visible_logger("gymnast.sandboxes")

_open_stocks: set["Stock"] = set()


class Stock:
    """Opens boxes ahead of the demand, and hands them out once each.

    Args:
        open_box: Opens a box.
        warm: How many to keep ahead at most.
        max_boxes: How many may live at once.

    Attributes:
        closed: Whether no more boxes are given.
        opened: How many boxes have been opened.
        failures: How often opening one has failed.
        dropped: How many warm boxes were found dead.
        taken: How many boxes are with takers.
        waited_s: How long takers have waited for their boxes, in seconds, all together.
        later: What must not run where a garbage collection finds it; a thread of the stock does.
    """

    def __init__(self, open_box: Callable[[], Sandbox], warm: int, max_boxes: int) -> None:
        self.closed = False
        self.opened = self.failures = self.dropped = self.taken = 0
        self.waited_s = 0.0
        self.later: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open_box = open_box
        self._max_boxes = max_boxes
        self._process = os.getpid()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition(threading.Lock())
        # All below only with the lock.
        self._line = Line()
        self._warm: deque[Sandbox] = deque()
        self._living = self._opening = 0
        self._asked: deque[float] = deque(maxlen=warm)  # when; as many as can count
        self._breaker = Breaker()
        _open_stocks.add(self)

    @property
    def living(self) -> int:
        """Boxes that are being opened, warm, or taken."""
        return self._living

    @property
    def warm(self) -> int:
        """Boxes that nobody has taken."""
        return len(self._warm)

    @property
    def waiting(self) -> int:
        """Takers in the line."""
        return len(self._line)

    def ask(self) -> tuple[Ticket, Sandbox | None]:
        """Draw a ticket. If a box is warm it comes along, to be passed to `hand_over`.

        Raises:
            SandboxUnavailable: The stock is closed, or another process's.
        """
        self._check_process()
        ticket = Ticket()
        with self._changed:
            if self.closed:
                raise SandboxUnavailable("the pool is closed; make another")
            self._start_threads()
            self._asked.append(ticket.came)
            box = self._warm_or_line(ticket)
        return ticket, box

    def hand_over(self, ticket: Ticket, box: Sandbox | None) -> None:
        """Give the ticket a warm box that is alive, or put it in the line. Waits for a ping."""
        while box is not None:
            if _is_alive(box):
                if not self._give(ticket, box):
                    self._offer(box)
                return
            self._drop(box)
            with self._changed:
                box = None if ticket.cancelled() else self._warm_or_line(ticket)

    def step_out(self, ticket: Ticket) -> None:
        """Cancel a ticket. Whoever waits longest gets the box that it may have been given."""
        if not self.withdraw(ticket) and ticket.exception() is None:
            with self._changed:
                self.taken -= 1
            self._offer(ticket.result())

    def withdraw(self, ticket: Ticket) -> bool:
        """Cancel a ticket, unless it has its outcome already."""
        if not ticket.cancel():
            return False
        with self._changed:
            self._line.leave(ticket)
        return True

    def end(self, box: Sandbox) -> None:
        """Close a box that was taken, and free its place."""
        try:
            box.close()
        finally:
            with self._changed:
                self.taken -= 1
                self._living -= 1
                self._changed.notify_all()

    def why_waiting(self) -> str:
        """What those in the line wait for."""
        with self._changed:
            if self._breaker.reason is not None:
                return self._breaker.reason
            if self._living >= self._max_boxes:
                return (
                    f"all {self._max_boxes} boxes are in use, and none was closed; close boxes "
                    "sooner, or allow more with max_boxes"
                )
            return "opening boxes takes long"

    def close(self) -> None:
        """Close what is warm, and turn away who waits. Boxes that are taken stay open."""
        if self._process != os.getpid():
            return  # a fork's copy: what it holds is its parent's
        with self._changed:
            first, self.closed = not self.closed, True
            tickets = self._line.clear()
            self._changed.notify_all()
        for ticket in tickets:
            ticket.give(SandboxUnavailable("the pool was closed while a taker waited"))
        deadline = time.monotonic() + END_S
        for thread in [*self._empty(), *self._threads]:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        if first:
            self.later.put(_stop)
            _open_stocks.discard(self)

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise SandboxUnavailable(
                f"the pool belongs to process {self._process}, and this is {os.getpid()}, a fork "
                "of it; make another pool here"
            )

    def _start_threads(self) -> None:
        if not self._threads:
            work = [self._fill] * min(THREADS, self._max_boxes)
            self._threads = [
                threading.Thread(target=run, name="gymnast-pool", daemon=True) for run in work
            ]
            aside = threading.Thread(
                target=_run_later, args=(self.later,), name="gymnast-pool", daemon=True
            )
            for thread in (*self._threads, aside):
                thread.start()

    # --- Handing out

    def _warm_or_line(self, ticket: Ticket) -> Sandbox | None:
        """With the lock: a warm box, or else the ticket is in the line."""
        self._changed.notify_all()
        if self._warm:
            return self._warm.popleft()
        if self.closed:
            ticket.give(SandboxUnavailable("the pool was closed while a taker waited"))
        else:
            self._line.join(ticket)
        return None

    def _offer(self, box: Sandbox) -> None:
        """Give a box to who waits longest; if nobody does, keep it warm."""
        with self._changed:
            ticket = self._first_or_warm(box)
        self._pass_on(box, ticket)

    def _first_or_warm(self, box: Sandbox) -> Ticket | None:
        """With the lock: the ticket to give it to; or None, and the box is warm."""
        ticket = self._line.first()
        if ticket is None:
            self._warm.append(box)
        return ticket

    def _pass_on(self, box: Sandbox, ticket: Ticket | None) -> None:
        """Give a box to a ticket, or to the next if that was cancelled."""
        while ticket is not None:
            if self._give(ticket, box):
                return
            with self._changed:
                ticket = self._first_or_warm(box)
        if self.closed:
            for closing in self._empty():
                closing.join()

    def _empty(self) -> list[threading.Thread]:
        """Begin to close all that is warm."""
        with self._changed:
            boxes = list(self._warm)
            self._warm.clear()
        closing = []
        for box in boxes:
            thread = threading.Thread(target=self._forget, args=(box,))
            try:
                thread.start()
                closing.append(thread)
            except RuntimeError:  # no more threads: at exit, say
                self._forget(box)
        return closing

    def _give(self, ticket: Ticket, box: Sandbox) -> bool:
        with self._changed:  # before its taker can close it
            self.taken += 1
            self.waited_s += time.monotonic() - ticket.came
        if ticket.give(box):
            return True
        with self._changed:
            self.taken -= 1
        return False

    def _drop(self, box: Sandbox) -> None:
        """Close a warm box that is dead."""
        with self._changed:
            self.dropped += 1
        self._forget(box)

    def _forget(self, box: Sandbox) -> None:
        """Close a box that nobody has taken, and free its place."""
        try:
            box.close()
        except Exception:
            log.exception("a box could not be closed")
        finally:
            with self._changed:
                self._living -= 1
                self._changed.notify_all()

    # --- Filling

    def _fill(self) -> None:
        """A thread: opens boxes while more are wanted."""
        while self._wait_for_work():
            time.sleep(random.uniform(0, JITTER_S))
            try:
                box = self._open_box()
            except BaseException as error:
                self._opening_failed(error)
            else:
                self._opening_succeeded(box)
                del box  # an idle thread keeps none alive

    def _wait_for_work(self) -> bool:
        """Wait until a box is to be opened, and count it; False when the stock is closed."""
        with self._changed:
            while not self.closed:
                pause = None
                if self._wanted() > 0:
                    pause = self._breaker.pause_s(time.monotonic(), self._opening)
                    if pause == 0.0:
                        self._opening += 1
                        self._living += 1
                        return True
                self._changed.wait(pause)
            return False

    def _wanted(self) -> int:
        """How many more boxes are to be opened now."""
        since = time.monotonic() - LATELY_S
        ahead = max(1, sum(when >= since for when in self._asked)) if self._breaker.proven else 0
        wanted = len(self._line) + ahead - len(self._warm) - self._opening
        return min(wanted, self._max_boxes - self._living)

    def _opening_succeeded(self, box: Sandbox) -> None:
        with self._changed:
            was_open = self._breaker.is_open
            self._breaker.succeeded()
            self.opened += 1
            self._opening -= 1
            ticket = self._first_or_warm(box)
            self._changed.notify_all()
        if was_open:
            log.warning("sandboxes can be opened again")
        self._pass_on(box, ticket)

    def _opening_failed(self, error: BaseException) -> None:
        tickets = []
        now = time.monotonic()
        with self._changed:
            self._opening -= 1
            self._living -= 1
            self.failures += 1
            was_open = self._breaker.is_open
            if self._may_pass(error) or self._breaker.proven:
                self._breaker.failed(now, str(error))
            if not self._may_pass(error) or self._breaker.gives_up(now):
                tickets = self._line.clear()
            opens = self._breaker.is_open and not was_open
            self._changed.notify_all()
        for ticket in tickets:
            ticket.give(error)
        if opens:
            log.warning("no sandbox can be opened; trying again until one can: %s", error)
            self._check_warm()

    def _may_pass(self, error: BaseException) -> bool:
        """Whether what failed may succeed later. What has worked once may work again."""
        if isinstance(error, SandboxUnavailable):
            return self._breaker.proven or isinstance(error, SandboxTemporarilyUnavailable)
        return False

    def _check_warm(self) -> None:
        """Close the warm boxes that have died along with their engine."""
        with self._changed:
            boxes = list(self._warm)
            self._warm.clear()
        for box in boxes:
            if _is_alive(box):
                self._offer(box)
            else:
                self._drop(box)


def close_stocks() -> None:
    """Close every stock of this process: no box is opened any more."""
    for stock in list(_open_stocks):
        stock.close()


before_finalizers(close_stocks)


def _is_alive(box: Sandbox) -> bool:
    with contextlib.suppress(Exception):
        return box.ping(timeout_s=PING_S)
    return False


def _stop() -> None:
    """The last thing to be done later."""


def _run_later(later: "SimpleQueue[Callable[[], None]]") -> None:
    """A thread: does what others have left to it."""
    while (run := later.get()) is not _stop:
        try:
            run()
        except Exception:
            log.exception("a box could not be closed")
        del run
