"""The pool: fresh boxes, alive, one to a taker; capped, fair, and patient with an engine."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.errors import SandboxDead, SandboxUnavailable, UsageError
from gymnast.sandboxes import Sandbox, SandboxPool, SandboxSpec
from gymnast.sandboxes.pool.pool import PooledSandbox, close_shared_pools, shared_pool
from pool_fixtures import MemoryBox, MemoryEngine, eventually, in_thread, local_workers

pytestmark = pytest.mark.usefixtures("impatient")

MakePool = Callable[..., SandboxPool]


@pytest.fixture
def make_pool(engine: MemoryEngine) -> Iterator[MakePool]:
    pools = []

    def make_pool(**settings: Any) -> SandboxPool:
        pools.append(SandboxPool("local", open_box=engine.open, **settings))
        return pools[-1]

    yield make_pool
    engine.gate.set()
    for pool in pools:
        pool.close()
    assert eventually(lambda: engine.living == sum(p.statistics().taken for p in pools))


def inner(box: Sandbox) -> MemoryBox:
    assert isinstance(box, PooledSandbox) and isinstance(box.box, MemoryBox)
    return box.box


# --- A fresh box for everyone


def test_nobody_sees_anothers_files_processes_or_variables() -> None:
    with SandboxPool("local", warm=1) as pool:
        with pool.take() as box:
            box.write_file("left.txt", "secret")
            box.python("secret = 1")
            pid = int(box.python("import os; os.getpid()").stdout)
            folder = box.exec("pwd").stdout.strip()
        assert not Path(folder).exists() and not Path(f"/proc/{pid}").exists()
        with pool.take() as box:
            assert box.exec("ls").stdout == ""
            assert "NameError" in box.python("secret").stderr
            assert box.exec("pwd").stdout.strip() != folder


def test_every_call_is_handed_on() -> None:
    async def use(pool: SandboxPool, tmp_path: Path) -> None:
        async with await pool.atake() as box:
            assert (await box.aexec("cat; exit 3", stdin="x")).exit_code == 3
            assert (await box.apython("1 + 1")).stdout == "2\n"
            await box.awrite_file("a", "text")
            assert await box.aread_file("a") == b"text"
            assert box.ping()
        assert not box.ping()
        with pytest.raises(SandboxDead, match="it was closed"):
            box.exec("true")

    with SandboxPool("local") as pool:
        asyncio.run(use(pool, Path()))


def test_a_box_is_never_lent_twice(make_pool: MakePool) -> None:
    pool = make_pool(max_boxes=3)
    lent = []
    for _ in range(20):
        with pool.take() as box:
            lent.append(inner(box).number)
    assert len(set(lent)) == 20


def test_whether_a_lent_box_is_alive_is_known_without_asking_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with SandboxPool("local", warm=1) as pool, pool.take() as box:
        with monkeypatch.context() as patch:
            patch.setattr("gymnast.sandboxes.worker.sandbox.WorkerSandbox._request", None)
            assert box.alive
        box.close()
        assert not box.alive


def test_a_warm_box_that_has_died_is_not_lent() -> None:
    with SandboxPool("local", warm=1) as pool:
        pool.take().close()
        assert eventually(lambda: pool.statistics().warm == 1)
        for pid in local_workers():
            os.kill(pid, signal.SIGKILL)
        with pool.take() as box:
            assert box.python("1").stdout == "1\n"
        assert pool.statistics().dropped == 1


def test_closing_frees_the_place_once(make_pool: MakePool, engine: MemoryEngine) -> None:
    pool = make_pool(max_boxes=1)
    box = pool.take()
    box.close()
    box.close()
    again = pool.take()
    assert (pool.statistics().taken, engine.most_living) == (1, 1)
    again.close()
    assert pool.statistics().taken == 0


def test_a_box_that_is_dropped_is_closed(make_pool: MakePool, engine: MemoryEngine) -> None:
    pool = make_pool(max_boxes=1)
    pool.take()
    gc.collect()
    assert eventually(lambda: engine.boxes[0].closed == 1)
    pool.take().close()


# --- The cap, and the line


def test_at_the_cap_takers_wait_for_a_box_to_be_closed(make_pool: MakePool) -> None:
    pool = make_pool(max_boxes=2)
    first, second = pool.take(), pool.take()
    third = in_thread(pool.take)
    assert eventually(lambda: pool.statistics().waiting == 1)
    second.close()
    assert third.result(30).ping()
    assert first.ping()


def test_who_waits_too_long_is_told_why(make_pool: MakePool) -> None:
    pool = make_pool(max_boxes=1, wait_s=0.05)
    with pool.take():
        with pytest.raises(SandboxUnavailable, match=r"no sandbox within 0.05 s: all 1 boxes are"):
            pool.take()
        with pytest.raises(SandboxUnavailable, match="max_boxes"):
            asyncio.run(pool.atake())
    pool.take().close()


def test_first_come_first_served_threads_and_coroutines_alike(make_pool: MakePool) -> None:
    pool = make_pool(max_boxes=1)
    holder = pool.take()
    served = []

    def take(number: int) -> None:
        with pool.take():
            served.append(number)

    async def atake(number: int) -> None:
        async with await pool.atake():
            served.append(number)

    for number in range(8):
        threading.Thread(
            target=take if number % 2 else lambda n: asyncio.run(atake(n)), args=(number,)
        ).start()
        assert eventually(lambda: pool.statistics().waiting == number + 1)  # noqa: B023
    holder.close()
    assert eventually(lambda: len(served) == 8)
    assert served == list(range(8))


def test_a_cancelled_taker_loses_no_place_and_no_box(
    make_pool: MakePool, engine: MemoryEngine
) -> None:
    pool = make_pool(max_boxes=2)

    async def cancel_some() -> None:
        for rounds in range(60):
            tasks = [asyncio.create_task(pool.atake()) for _ in range(3)]
            for _ in range(rounds % 7):
                await asyncio.sleep(0)
            if rounds % 2:
                await asyncio.sleep(0.001)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Sandbox):
                    outcome.close()

    asyncio.run(cancel_some())
    assert eventually(lambda: pool.statistics().taken == pool.statistics().waiting == 0)
    boxes = [pool.take(), pool.take()]
    assert len({inner(box).number for box in boxes}) == 2
    assert engine.most_living <= 2
    for box in boxes:
        box.close()


def test_a_loop_that_ends_under_a_taker_loses_nothing(make_pool: MakePool) -> None:
    pool = make_pool(max_boxes=1)
    holder = pool.take()
    loop = asyncio.new_event_loop()
    task = loop.create_task(pool.atake())
    loop.run_until_complete(asyncio.sleep(0))
    assert pool.statistics().waiting == 1
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    holder.close()
    pool.take().close()


# --- The stock


def test_nothing_is_opened_before_the_first_take(make_pool: MakePool, engine: MemoryEngine) -> None:
    make_pool(warm=4)
    assert engine.tries == 0


def test_the_stock_follows_the_demand(make_pool: MakePool, engine: MemoryEngine) -> None:
    pool = make_pool(warm=4)
    for takes, ahead in ((1, 1), (2, 2), (3, 3), (4, 4), (9, 4)):
        while pool.statistics().opened - pool.statistics().warm < takes:
            pool.take().close()
        assert eventually(lambda: pool.statistics().warm == ahead)  # noqa: B023
    assert eventually(lambda: engine.trying == 0)
    assert pool.statistics().living == pool.statistics().warm == 4


def test_warm_boxes_count_towards_the_cap(make_pool: MakePool, engine: MemoryEngine) -> None:
    pool = make_pool(warm=8, max_boxes=5)
    boxes = [pool.take() for _ in range(4)]
    assert eventually(lambda: pool.statistics().living == 5)
    boxes.append(pool.take())
    assert engine.most_living == 5
    for box in boxes:
        box.close()


# --- When opening fails


@pytest.mark.parametrize(
    "error", [UsageError("wrong limit"), SandboxUnavailable("no such image"), TypeError("a bug")]
)
def test_what_can_never_work_is_raised_at_once(
    make_pool: MakePool, engine: MemoryEngine, error: Exception
) -> None:
    pool = make_pool()
    engine.failure = error
    for tries in (1, 2):  # and tried again for the next taker: an image may have been pulled
        with pytest.raises(type(error), match=str(error)):
            pool.take()
        assert engine.tries == tries
    engine.mend()
    pool.take().close()


def test_an_unknown_backend_is_raised_at_once() -> None:
    with pytest.raises(UsageError, match="no sandbox backend 'jail'"):
        SandboxPool("jail")


def test_all_wait_while_the_engine_is_down_and_go_on_when_it_is_back(
    make_pool: MakePool, engine: MemoryEngine, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(max_boxes=4)
    engine.break_down()
    takers = [in_thread(pool.take) for _ in range(4)]
    assert eventually(lambda: pool.statistics().failures > 20)
    assert engine.most_trying == 1  # one at a time
    assert pool.statistics().living <= 1
    engine.mend()
    for taker in takers:
        taker.result(30).close()
    assert caplog.text.count("no sandbox can be opened") == 1
    assert caplog.text.count("can be opened again") == 1


def test_what_has_worked_once_may_work_again(make_pool: MakePool, engine: MemoryEngine) -> None:
    pool = make_pool(warm=1)
    pool.take().close()
    assert eventually(lambda: pool.statistics().warm == 1)
    engine.failure = SandboxUnavailable("its image was removed")
    pool.take().close()
    taker = in_thread(pool.take)
    assert eventually(lambda: pool.statistics().failures > 3)
    engine.mend()
    taker.result(30).close()


def test_an_engine_that_stays_down_ends_the_wait_with_its_reason(
    make_pool: MakePool, engine: MemoryEngine
) -> None:
    pool = make_pool(wait_s=0.05)
    engine.break_down("no engine answers at /run/it")
    with pytest.raises(SandboxUnavailable, match=r"within 0.05 s: no engine answers at /run/it"):
        pool.take()
    assert pool.statistics().taken == pool.statistics().waiting == 0


def test_an_engine_that_never_came_up_is_told_soon(
    make_pool: MakePool, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.sandboxes.pool.breaker.GIVES_UP_AFTER_S", 0.05)
    pool = make_pool(wait_s=600.0)
    engine.break_down("no engine answers at /run/it")
    takers = [in_thread(pool.take) for _ in range(3)]
    for taker in takers:
        with pytest.raises(SandboxUnavailable, match="no engine answers at /run/it"):
            taker.result(30)
    engine.mend()
    pool.take().close()


def test_warm_boxes_that_died_with_their_engine_are_closed(
    make_pool: MakePool, engine: MemoryEngine
) -> None:
    pool = make_pool(warm=3)
    for box in [pool.take() for _ in range(3)]:
        box.close()
    assert eventually(lambda: pool.statistics().warm == 3)
    engine.break_down()
    for other in engine.boxes:
        other.lives = False
    taker = in_thread(pool.take)
    assert eventually(lambda: engine.living == 0)
    engine.mend()
    taker.result(30).close()


# --- The end


def test_closing_turns_away_who_waits_and_who_comes(
    make_pool: MakePool, engine: MemoryEngine
) -> None:
    pool = make_pool(max_boxes=1)
    box = pool.take()
    waiting = in_thread(pool.take)
    assert eventually(lambda: pool.statistics().waiting == 1)
    pool.close()
    pool.close()
    with pytest.raises(SandboxUnavailable, match="the pool was closed"):
        waiting.result(30)
    with pytest.raises(SandboxUnavailable, match="the pool is closed; make another"):
        pool.take()
    assert box.ping()
    box.close()
    assert (engine.living, pool.statistics().living) == (0, 0)


def test_closing_waits_for_what_is_being_opened(make_pool: MakePool, engine: MemoryEngine) -> None:
    pool = make_pool()
    engine.gate.clear()
    taker = in_thread(pool.take)
    assert eventually(lambda: engine.trying == 1)
    closing = in_thread(pool.close)
    with pytest.raises(SandboxUnavailable):
        taker.result(30)
    engine.gate.set()
    closing.result(30)
    assert (len(engine.boxes), engine.living) == (1, 0)


def test_a_pool_that_is_dropped_closes_its_stock(engine: MemoryEngine) -> None:
    before = threading.active_count()
    pool = SandboxPool("local", open_box=engine.open)
    pool.take().close()
    del pool
    gc.collect()
    assert eventually(lambda: engine.living == 0 and threading.active_count() <= before)


@pytest.mark.parametrize("settings", [{"warm": 0}, {"max_boxes": 0}, {"wait_s": 0}])
def test_numbers_have_rules(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        SandboxPool("local", **settings)


# --- One per process


def test_equal_boxes_share_a_pool() -> None:
    spec = SandboxSpec(processes=17)
    assert shared_pool("local", spec) is shared_pool("local", SandboxSpec(processes=17))
    assert shared_pool("local", spec) is not shared_pool("local", SandboxSpec(processes=18))
    assert shared_pool("local") is shared_pool("local", SandboxSpec())
    assert shared_pool("local", spec) is not shared_pool("local", spec, purpose="tests")
    assert shared_pool("local", spec) is not shared_pool("local", spec, max_boxes=2)


def test_a_shared_pool_that_was_closed_is_made_anew() -> None:
    first = shared_pool("local")
    first.take().close()
    close_shared_pools()
    with pytest.raises(SandboxUnavailable):
        first.take()
    with shared_pool("local").take() as box:
        assert box.alive


def run_program(program: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        timeout=60,
    )


def test_at_exit_nothing_is_left(tmp_path: Path) -> None:
    program = """
from gymnast.sandboxes import SandboxPool
from gymnast.sandboxes.pool.pool import shared_pool
boxes = [shared_pool("local").take() for _ in range(3)]
own = SandboxPool("local")
own.take()
print(boxes[0].python("1").stdout)
"""
    ended = run_program(program, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "1\n\n"), ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_box_that_is_opened_while_the_process_ends_is_not_left(tmp_path: Path) -> None:
    program = """
import time
from gymnast.sandboxes import LocalSandbox, SandboxPool
def slowly():
    time.sleep(0.5)
    return LocalSandbox()
SandboxPool(open_box=slowly).take()
time.sleep(0.2)  # the next one is being opened
"""
    ended = run_program(program, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_fork_has_pools_of_its_own_and_leaves_its_parents_alone(tmp_path: Path) -> None:
    program = """
import os, sys
from gymnast.sandboxes.pool.pool import shared_pool
from gymnast.errors import SandboxUnavailable
pool = shared_pool("local")
box = pool.take()
if os.fork() == 0:
    assert shared_pool("local") is not pool
    try:
        pool.take()
    except SandboxUnavailable as error:
        assert "a fork of it" in str(error)
    with shared_pool("local").take() as own:
        print(own.python("'child'").stdout, flush=True)
    del box, pool
    sys.exit(0)
assert os.wait()[1] == 0
print(box.python("'parent'").stdout)
"""
    ended = run_program(program, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "'child'\n\n'parent'\n\n"), ended.stderr
    assert list(tmp_path.iterdir()) == []
