"""Boxes that are ready before they are needed, and never used twice.

`stock.py` hands them out, and `filling.py` opens them. `backends/sweep.py` removes what killed runs
have left behind.
"""

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes.backends.open import check_backend, open_sandbox
from gymnast.sandboxes.backends.sweep import sweep_in_background
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.forwarding import ForwardingSandbox
from gymnast.sandboxes.contract.spec import SandboxSpec, check_seconds, check_whole
from gymnast.sandboxes.pool.filling import Filling
from gymnast.sandboxes.pool.line import Ticket
from gymnast.sandboxes.pool.stock import Stock

WARM = 4
MAX_BOXES = 64


@dataclass(frozen=True)
class PoolStatistics:
    """The boxes of a pool now, and its counts so far.

    Attributes:
        living: Boxes that are being opened, warm, or taken: never more than `max_boxes`.
        warm: Boxes that are ready.
        taken: Boxes that are with takers.
        waiting: Takers that wait for a box.
        opened: Boxes that have been opened so far.
        failures: Openings that have failed.
        dropped: Warm boxes that turned out to be dead.
        waited_s: How long takers have waited for the boxes they got, in seconds, all together.
    """

    living: int
    warm: int
    taken: int
    waiting: int
    opened: int
    failures: int
    dropped: int
    waited_s: float


class SandboxPool:
    """Lends a fresh box to every taker, from a stock that a few threads fill ahead.

        with SandboxPool("docker", warm=8) as pool:
            with pool.take() as box:  # closing the box frees its place
                box.python("print(1)")

    A box is lent once: nobody sees another's files, processes or variables. It is pinged before it
    is lent. One that is dropped without `close` is closed when it is garbage. Calls may come from
    any thread and any event loop; takers are served in the order in which they ask.

    No box is opened before the first `take`. From then on as many boxes are kept ahead as were
    taken in the last minute, at least 1 and at most `warm`: when many episodes end together, as
    many begin together. A warm box stays warm until it is taken. Openings are spread over some
    milliseconds, so that many processes do not open boxes at the same moment.

    An error that will never pass is raised at once. While opening fails for a reason that may pass
    (`SandboxTemporarilyUnavailable`; after the first box any `SandboxUnavailable`), takers wait,
    and one opening at a time is tried, at growing intervals of at most 5 s, until one succeeds. If
    no box was ever opened, they wait 10 s, as the engine may never have been started. Warm boxes
    that died along with their engine are closed. "auto" chooses with the first box, and the pool
    stays with that backend.

    Args:
        backend: As for `open_sandbox`.
        spec: The image and the limits; None: the defaults.
        warm: How many boxes to keep ahead at most.
        max_boxes: How many boxes may live at once, warm ones and those being opened included.
        wait_s: How long a taker waits for a box, in seconds.
        open_box: Opens a box, in place of `open_sandbox(backend, spec=spec)`.

    Raises:
        UsageError: There is no such backend, or a number breaks its rule.
    """

    def __init__(
        self,
        backend: str = "auto",
        *,
        spec: SandboxSpec | None = None,
        warm: int = WARM,
        max_boxes: int = MAX_BOXES,
        wait_s: float = 600.0,
        open_box: Callable[[], Sandbox] | None = None,
    ) -> None:
        check_whole("warm", warm, 1)
        check_whole("max_boxes", max_boxes, 1)
        self._wait_s = check_seconds("wait_s", wait_s)
        self._may_use_docker = open_box is None and backend in ("auto", "docker")
        open_box = open_box or _Opener(backend, spec or SandboxSpec())
        self._stock = Stock(warm, max_boxes)
        self._filling = Filling(self._stock, open_box, max_threads=max_boxes)
        # A garbage collection must not wait for locks: another thread closes what is left.
        weakref.finalize(self, self._filling.later.put, self._filling.close).atexit = False

    def take(self) -> Sandbox:
        """Take a fresh box that is alive; closing it frees its place.

        Raises:
            SandboxUnavailable: The backend cannot make boxes here, none came within `wait_s` (the
                message has the backend's reason), or the pool is closed.
            UsageError: A limit breaks its rule.
        """
        ticket, box = self._ask()
        try:
            self._stock.hand_over(ticket, box)
            wait([ticket], self._left_s(ticket))
            return self._outcome(ticket)
        except BaseException:
            self._filling.later.put(partial(self._stock.step_out, ticket))
            raise

    async def atake(self) -> Sandbox:
        """`take` without blocking the event loop; cancelled, it leaves its place to the next."""
        ticket, box = self._ask()
        try:
            if box is not None:
                hand_over = partial(self._stock.hand_over, ticket, box)
                threading.Thread(target=hand_over, name="gymnast-pool", daemon=True).start()
            await _settled(ticket, self._left_s(ticket))
            return self._outcome(ticket)
        except BaseException:  # GeneratorExit, too, which may come from a garbage collection
            self._filling.later.put(partial(self._stock.step_out, ticket))
            raise

    def statistics(self) -> PoolStatistics:
        """The boxes of the pool now, and its counts so far."""
        stock = self._stock
        return PoolStatistics(
            living=stock.living,
            warm=stock.warm,
            taken=stock.taken,
            waiting=stock.waiting,
            opened=self._filling.opened,
            failures=self._filling.failures,
            dropped=stock.dropped,
            waited_s=stock.waited_s,
        )

    def close(self) -> None:
        """Close warm boxes and turn away waiting takers; taken boxes stay with their takers.

        May be called again. Every pool is closed at exit.
        """
        self._filling.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self) -> tuple[Ticket, Sandbox | None]:
        self._filling.start()
        asked = self._stock.ask()
        sweep_in_background(containers=self._may_use_docker)
        return asked

    def _left_s(self, ticket: Ticket) -> float:
        return max(0.0, ticket.came + self._wait_s - time.monotonic())

    def _outcome(self, ticket: Ticket) -> Sandbox:
        """The box of a ticket whose wait is over, or its error."""
        if self._stock.withdraw(ticket):
            why = self._filling.why_waiting()
            raise SandboxUnavailable(f"no sandbox within {self._wait_s:g} s: {why}")
        box = ticket.result()
        return PooledSandbox(box, partial(self._stock.end, box), self._filling.later)


class PooledSandbox(ForwardingSandbox):
    """A box that a pool has lent: forwards every call to it; `close` also frees its place.

    One that is dropped without `close` is closed when it is garbage.

    Args:
        box: The backend's box.
        end: Closes that box and frees its place. Must not refer to this object.
        later: Takes `end` when this is garbage. A garbage collection may interrupt any thread, one
            that holds the pool's lock included, and putting into this queue needs no lock.

    Attributes:
        box: The backend's box, for what only that backend has.
    """

    def __init__(
        self, box: Sandbox, end: Callable[[], None], later: "SimpleQueue[Callable[[], None]]"
    ) -> None:
        self.box = box
        self._end = end
        self._when_garbage = weakref.finalize(self, later.put, end)
        self._when_garbage.atexit = False  # then the box itself sees to it

    def target(self) -> Sandbox:
        """See `ForwardingSandbox.target`."""
        return self.box

    def close(self) -> None:
        """See `Sandbox.close`; the place in the pool is free when this returns."""
        if self._when_garbage.detach() is None:
            self.box.close()  # again
        else:
            self._end()


async def _settled(ticket: Ticket, timeout_s: float) -> None:
    """Wait until a ticket has its outcome, or the time is up."""
    loop, settled = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(settled.set)

    ticket.add_done_callback(wake)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await settled.wait()


class _Opener:
    """Opens boxes of one backend; with "auto" that is the backend of the first box."""

    def __init__(self, backend: str, spec: SandboxSpec) -> None:
        self._spec = spec
        backend = check_backend(backend)
        self._open: Callable[[], Sandbox] = partial(open_sandbox, backend, spec=spec)
        self._choose = backend == "auto"

    def __call__(self) -> Sandbox:
        box = self._open()
        if self._choose:
            kind: Callable[[SandboxSpec], Sandbox] = type(box)
            self._open = partial(kind, self._spec)
            self._choose = False
        return box


_shared: dict[tuple[str, SandboxSpec, str, int, int], SandboxPool] = {}
_shared_lock = threading.Lock()


def shared_pool(
    backend: str = "auto",
    spec: SandboxSpec | None = None,
    *,
    purpose: str = "",
    warm: int = WARM,
    max_boxes: int = MAX_BOXES,
) -> SandboxPool:
    """The pool of this process for boxes of this kind, made when first asked for.

    It is closed at exit, or by `close_shared_pools`. A fork of the process has pools of its own.

    Args:
        backend: As for `open_sandbox`.
        spec: The image and the limits; None: the defaults.
        purpose: What its boxes are for. A taker that holds one box while it waits for another must
            take that from a pool of another purpose: in one pool all takers could hold one each
            and wait for ever.
        warm: See `SandboxPool`.
        max_boxes: See `SandboxPool`; it holds for each purpose separately.
    """
    spec = spec or SandboxSpec()
    key = backend, spec, purpose, warm, max_boxes
    with _shared_lock:
        if key not in _shared:
            _shared[key] = SandboxPool(backend, spec=spec, warm=warm, max_boxes=max_boxes)
        return _shared[key]


def close_shared_pools() -> None:
    """Close the shared pools; the next call of `shared_pool` makes a new one."""
    with _shared_lock:
        pools = list(_shared.values())
        _shared.clear()
    for pool in pools:
        pool.close()


def _forget_shared() -> None:
    """Run in a fork: the pools are the parent's, one of whose threads may have held the lock."""
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)
