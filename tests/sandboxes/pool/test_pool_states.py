"""Whatever is done to a pool, in whatever order: no box twice, the cap, fairness, no lost place."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gymnast.sandboxes import Sandbox, SandboxPool
from gymnast.sandboxes.pool.pool import PooledSandbox
from pool_fixtures import MemoryBox, MemoryEngine, eventually, in_thread

MAX_BOXES = 3


@dataclass
class Taker:
    """Somebody who has asked, in the order of the list they are in."""

    future: "Future[Sandbox]"
    cancel: Callable[[], object] | None  # None: a thread, which cannot be cancelled
    cancelled: bool = False
    closed: bool = False

    @property
    def box(self) -> PooledSandbox | None:
        if self.future.done() and not self.future.cancelled() and not self.future.exception():
            box = self.future.result()
            assert isinstance(box, PooledSandbox)
            return box
        return None


class PoolStates(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            patch("gymnast.sandboxes.pool.breaker.LONGEST_PAUSE_S", 0.001),
            patch("gymnast.sandboxes.pool.filling.JITTER_S", 0.0),
        ]
        for each in self.patches:
            each.start()
        self.engine = MemoryEngine()
        self.pool = SandboxPool("local", open_box=self.engine.open, warm=2, max_boxes=MAX_BOXES)
        self.takers: list[Taker] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    # --- What happens to it

    @rule()
    def take_from_a_thread(self) -> None:
        self._ask(lambda: Taker(in_thread(self.pool.take), None))

    @rule()
    def take_from_a_coroutine(self) -> None:
        def begin() -> Taker:
            future = asyncio.run_coroutine_threadsafe(self.pool.atake(), self.loop)
            return Taker(future, future.cancel)

        self._ask(begin)

    def _ask(self, begin: Callable[[], Taker]) -> None:
        """Begin to take, and see to it that whoever comes next stands behind."""
        asked = self._asked()
        self.takers.append(begin())
        assert eventually(lambda: self._asked() > asked)

    def _asked(self) -> int:
        return self.pool.statistics().waiting + sum(t.box is not None for t in self.takers)

    @rule(number=st.integers(0, 20))
    def close(self, number: int) -> None:
        holders = self._holders()
        if holders:
            taker = holders[number % len(holders)]
            assert taker.box is not None
            taker.closed = True
            taker.box.close()
            self._settle()

    @rule(number=st.integers(0, 20))
    def cancel(self, number: int) -> None:
        takers = [t for t in self.takers if t.cancel and not t.cancelled and t.box is None]
        if takers:
            taker = takers[number % len(takers)]
            taker.cancelled = True
            assert taker.cancel is not None
            taker.cancel()
            assert eventually(taker.future.done)
            self._settle()

    @rule(number=st.integers(0, 20))
    def a_warm_box_dies(self, number: int) -> None:
        lent = {id(t.box.box) for t in self.takers if t.box is not None}
        warm = [b for b in self.engine.boxes if b.lives and id(b) not in lent]
        if warm:
            warm[number % len(warm)].lives = False

    @rule()
    def the_engine_breaks(self) -> None:
        self.engine.break_down()

    @rule()
    def the_engine_is_mended(self) -> None:
        self.engine.mend()
        self._settle()

    # --- What always holds

    @invariant()
    def the_cap_holds(self) -> None:
        assert self.engine.most_living <= MAX_BOXES

    @invariant()
    def no_box_is_lent_twice(self) -> None:
        lent = [taker.box.box for taker in self.takers if taker.box is not None]
        assert all(isinstance(box, MemoryBox) for box in lent)
        assert len({id(box) for box in lent}) == len(lent)

    @invariant()
    def who_came_first_is_served_first(self) -> None:
        self._settle()
        served = [taker.box is not None for taker in self.takers if not taker.cancelled]
        assert served == sorted(served, reverse=True)

    @precondition(lambda self: self.engine.failure is None)
    @invariant()
    def no_place_is_lost(self) -> None:
        self._settle()
        waiting = [t for t in self.takers if t.box is None and not t.cancelled]
        assert not waiting or len(self._holders()) == MAX_BOXES

    def teardown(self) -> None:
        self.engine.mend()
        self._settle()
        while self._holders():
            self.close(0)
        self.pool.close()
        assert all(t.cancelled or t.closed for t in self.takers)
        assert eventually(lambda: self.engine.living == 0)
        assert self.pool.statistics().living == self.pool.statistics().taken == 0
        assert {box.closed for box in self.engine.boxes} <= {1}
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        for each in self.patches:
            each.stop()

    def _holders(self) -> list[Taker]:
        return [taker for taker in self.takers if taker.box is not None and not taker.closed]

    def _settle(self) -> None:
        """Wait until nothing more happens, as far as anything can."""

        def settled() -> bool:
            has = self.pool.statistics()
            waiting = [t for t in self.takers if t.box is None and not t.cancelled]
            counted = has.waiting == len(waiting) and has.taken == len(self._holders())
            return counted and (
                not waiting or self.engine.failure is not None or has.taken == MAX_BOXES
            )

        assert eventually(settled), self.pool.statistics()


TestPoolStates = PoolStates.TestCase
TestPoolStates.settings = settings(max_examples=12, stateful_step_count=15, deadline=None)
