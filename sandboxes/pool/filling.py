"""Opening the boxes of a pool ahead of the demand, on a few threads.

When a failed opening is tried again is up to `breaker.py`.
"""

import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from gymnast.errors import SandboxTemporarilyUnavailable, SandboxUnavailable
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.lifetime.living import before_discarding
from gymnast.sandboxes.pool.breaker import Breaker
from gymnast.sandboxes.pool.stock import Stock
from gymnast.visible import visible_logger

THREADS = 4
JITTER_S = 0.02  # before each opening, so that many processes do not open in step
END_S = 10.0  # for openings under way to end, when all is closed

log = visible_logger("gymnast.sandboxes")

_all: "weakref.WeakSet[Filling]" = weakref.WeakSet()


class Filling:
    """Keeps a stock filled until it is closed.

    Args:
        stock: Where boxes go.
        open_box: Opens a box.
        max_threads: How many boxes may be opened at once.

    Attributes:
        opened: How many boxes have been opened.
        failures: How often opening one has failed.
        later: What must not run where a garbage collection finds it; a thread of its own does.
    """

    def __init__(self, stock: Stock, open_box: Callable[[], Sandbox], max_threads: int) -> None:
        self.opened = self.failures = 0
        self.later: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stock, self._changed = stock, stock.changed
        self._open_box = open_box
        self._process = os.getpid()
        self._threads: list[threading.Thread] = []
        self._max_threads = min(THREADS, max_threads)
        self._opening = 0
        self._stopped = False
        self._breaker = Breaker()
        _all.add(self)

    def start(self) -> None:
        """Start the threads, unless they run.

        Raises:
            SandboxUnavailable: The stock is closed, or another process's.
        """
        if self._process != os.getpid():
            raise SandboxUnavailable(
                f"the pool belongs to process {self._process}, and this is {os.getpid()}, a fork "
                "of it; make another pool here"
            )
        with self._changed:
            self._stock.check_open()
            if self._threads:
                return
            self._threads = [_thread(self._fill) for _ in range(self._max_threads)]
            for thread in (*self._threads, _thread(self._run_later)):
                thread.start()

    def close(self) -> None:
        """Close the stock, and wait for openings under way, for `END_S` at most."""
        if self._process != os.getpid():
            return  # a fork's copy: what it holds is its parent's
        threads = [*self._stock.close(), *self._threads]
        deadline = time.monotonic() + END_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            first, self._stopped = not self._stopped, True
        if first:
            self.later.put(_stop)

    def why_waiting(self) -> str:
        """What those in the line wait for."""
        with self._changed:
            if self._breaker.reason is not None:
                return self._breaker.reason
            if self._stock.is_full:
                return (
                    f"all {self._stock.living} boxes are in use, and none was closed; close boxes "
                    "sooner, or allow more with max_boxes"
                )
            return "opening boxes takes long"

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
            while not self._stock.closed:
                pause = None
                if self._stock.wanted(self._opening, ahead=self._breaker.proven) > 0:
                    pause = self._breaker.pause_s(time.monotonic(), self._opening)
                    if pause == 0.0:
                        self._opening += 1
                        self._stock.living += 1
                        return True
                self._changed.wait(pause)
            return False

    def _opening_succeeded(self, box: Sandbox) -> None:
        with self._changed:
            was_open = self._breaker.is_open
            self._breaker.succeeded()
            self.opened += 1
            self._opening -= 1
            ticket = self._stock.first_or_warm(box)
        if was_open:
            log.warning("sandboxes can be opened again")
        self._stock.pass_on(box, ticket)

    def _opening_failed(self, error: BaseException) -> None:
        now = time.monotonic()
        with self._changed:
            self._opening -= 1
            self._stock.living -= 1
            self.failures += 1
            was_open = self._breaker.is_open
            if self._may_pass(error) or self._breaker.proven:
                self._breaker.failed(now, str(error))
            hopeless = not self._may_pass(error) or self._breaker.gives_up(now)
            tickets = self._stock.clear_line() if hopeless else []
            opens = self._breaker.is_open and not was_open
            self._changed.notify_all()
        for ticket in tickets:
            ticket.give(error)
        if opens:
            log.warning("no sandbox can be opened; trying again until one can: %s", error)
            self._stock.check_warm()

    def _may_pass(self, error: BaseException) -> bool:
        """Whether what failed may succeed later. What has worked once may work again."""
        if isinstance(error, SandboxUnavailable):
            return self._breaker.proven or isinstance(error, SandboxTemporarilyUnavailable)
        return False

    def _run_later(self) -> None:
        """A thread: runs what a garbage collection has left to it."""
        while (run := self.later.get()) is not _stop:
            try:
                run()
            except Exception:
                log.exception("a box could not be closed")
            del run


def _thread(target: Callable[[], None]) -> threading.Thread:
    return threading.Thread(target=target, name="gymnast-pool", daemon=True)


def _stop() -> None:
    """The last thing to be done later."""


def _close_all() -> None:
    """Close what every pool of this process has: no box is opened any more."""
    for filling in list(_all):
        filling.close()


before_discarding(_close_all)
