"""Boxes that are ready before they are needed, and never used twice.

`stock.py` hands them out, `filling.py` opens them. What runs that were killed have left is removed
by `backends/sweep.py`.
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
    """What a pool has and has done.

    Attributes:
        living: Boxes that are being opened, warm, or taken: never more than `max_boxes`.
        warm: Boxes that are ready.
        taken: Boxes that are with takers.
        waiting: Takers that wait for a box.
        opened: Boxes that have been opened so far.
        failures: Openings that have failed.
        dropped: Warm boxes that were found dead.
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

    A box is lent once: nobody sees another's files, processes or variables. It was asked for a sign
    of life when it was taken. One that is dropped without `close` is closed when it is garbage.
    Calls may come from any thread and any event loop; who asks first is served first.

    Nothing is opened before the first `take`. From then on as many boxes are kept ahead as were
    taken in the last minute, at least 1 and at most `warm`: episodes that end together are followed
    by as many that begin together. What is warm stays warm until it is taken. Openings are spread
    by some milliseconds, so that many processes do not open in step.

    What can never work is raised at once. While opening fails for a reason that may pass
    (`SandboxTemporarilyUnavailable`; after the first box any `SandboxUnavailable`), takers wait,
    and one opening at a time is tried, at growing intervals of at most 5 s, until one succeeds;
    where none was ever opened they wait 10 s, as the engine was perhaps never started. Warm boxes
    that died along with their engine are closed. "auto" chooses with the first box, and the pool
    stays with that backend.

    Args:
        backend: As for `open_sandbox`.
        spec: The image and the limits; None: the defaults.
        warm: How many boxes to keep ahead at most.
        max_boxes: How many boxes may live at once, those that are warm or being opened included.
        wait_s: How long a taker waits for a box, in seconds.
        open_box: Opens a box, instead of `open_sandbox(backend, spec=spec)`.

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
        """A fresh box that is alive; closing it frees its place.

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
        """What the pool has, and has done so far."""
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
        """Close what is warm, and turn away who waits; boxes that are taken stay with their takers.

        May be called again. At exit it is called for every pool.
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
        """The box, or the error, of a ticket whose time is over."""
        if self._stock.withdraw(ticket):
            why = self._filling.why_waiting()
            raise SandboxUnavailable(f"no sandbox within {self._wait_s:g} s: {why}")
        box = ticket.result()
        return PooledSandbox(box, partial(self._stock.end, box), self._filling.later)


class PooledSandbox(ForwardingSandbox):
    """Hands every call on to the backend's box; `close` also tells the pool, once.

    One that is dropped without `close` is closed when it is garbage.

    Args:
        box: The backend's box.
        end: Closes that box and frees its place. Must not refer to this object.
        later: Where to leave `end` when this is garbage: a collection may come at any line of any
            thread, in one that holds the pool's lock, too. Putting into this queue needs none.

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
    """Wait until a ticket has its outcome, or time is over."""
    loop, settled = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(settled.set)

    ticket.add_done_callback(wake)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await settled.wait()


class _Opener:
    """Opens boxes of one backend; "auto" is whichever the first box is of."""

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
        purpose: What its boxes are for. Who holds one while waiting for another takes that from
            the pool of another purpose: in one pool all could hold one, and wait for ever.
        warm: See `SandboxPool`.
        max_boxes: See `SandboxPool`; of each purpose.
    """
    spec = spec or SandboxSpec()
    key = backend, spec, purpose, warm, max_boxes
    with _shared_lock:
        if key not in _shared:
            _shared[key] = SandboxPool(backend, spec=spec, warm=warm, max_boxes=max_boxes)
        return _shared[key]


def close_shared_pools() -> None:
    """Close what `shared_pool` has made; the next call of it makes new ones."""
    with _shared_lock:
        pools = list(_shared.values())
        _shared.clear()
    for pool in pools:
        pool.close()


def _forget_shared() -> None:
    """In a fork: the pools are the parent's, and a thread of it may have held the lock."""
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)
