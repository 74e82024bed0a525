"""More episodes than threads: they share, nobody's objects move, and no limit counts the wait."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import gymnast.threads
from gymnast.envs import Environment, Outcome, tool
from gymnast.errors import InfrastructureError, UsageError
from gymnast.shared_threads import limit_threads
from gymnast.threads import EpisodeThread, Overrun, run_blocking
from thread_fixtures import Database


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    # Episodes that other tests left open have threads too, which would count. These go on alone.
    gymnast.shared_threads._threads.clear()
    yield limit_threads
    limit_threads()


def stop(threads: list[EpisodeThread]) -> None:
    for thread in threads:
        thread.stop()


def test_up_to_the_limit_everybody_has_a_thread_and_beyond_it_the_emptiest_is_shared(
    limit: Callable[[int], None],
) -> None:
    limit(3)
    everybody = [EpisodeThread("test") for _ in range(8)]

    async def run() -> list[int]:
        return [await each.run(threading.get_ident) for each in everybody]

    first, again = asyncio.run(run()), asyncio.run(run())
    assert first == again  # everybody stays on one
    assert len(set(first[:3])) == 3
    assert sorted(map(first.count, set(first))) == [2, 3, 3]
    stop(everybody)


def test_a_thread_ends_when_the_last_one_leaves_it(limit: Callable[[int], None]) -> None:
    limit(1)
    users = [EpisodeThread("test"), EpisodeThread("test")]

    async def run() -> list[threading.Thread]:
        return [await user.run(threading.current_thread) for user in users]

    thread, same = asyncio.run(run())
    assert same is thread
    users.pop().stop()
    assert asyncio.run(run()) == [thread]
    users.clear()  # garbage leaves as well
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("most", [0, -1, True, 1.5])
def test_a_limit_is_a_whole_number(most: Any) -> None:
    with pytest.raises(UsageError, match="limit_threads: must be a whole number >= 1"):
        limit_threads(most)


async def notes(calls: Callable[..., Any]) -> float:
    env = Database()
    await env.areset(options={"row": {"prompt": "Go."}})
    for text in ("a", "b", "c"):
        outcome = await env.act(calls(("note", {"text": text})))
        assert not outcome.info["errors"]
    outcome = await env.act(calls(content="Done."))
    await env.aclose()
    return outcome.reward


def test_episodes_that_share_threads_keep_what_belongs_to_one(
    calls: Callable[..., Any], limit: Callable[[int], None]
) -> None:
    limit(2)

    async def run() -> list[float]:
        return await asyncio.gather(*(notes(calls) for _ in range(12)))

    assert asyncio.run(run()) == [3.0] * 12


def test_the_wait_for_a_shared_thread_is_in_no_time_limit(
    calls: Callable[..., Any], limit: Callable[[int], None]
) -> None:
    limit(1)

    @tool(timeout_s=0.2)
    def quick() -> str:
        """Return at once."""
        return "here"

    made = Environment.from_tools([quick])
    release, slow = threading.Event(), EpisodeThread("slow")

    async def run() -> Outcome:
        env = made()
        await env.areset(options={"row": {"prompt": "Go."}})
        waiting = asyncio.create_task(slow.run(release.wait))
        await asyncio.sleep(0)
        turn = asyncio.create_task(env.act(calls(("quick", {}))))
        await asyncio.sleep(0.4)  # twice its limit
        assert not turn.done()
        release.set()
        await waiting
        outcome = await turn
        await env.aclose()
        return outcome

    assert asyncio.run(run()).messages[0]["content"] == "here"
    slow.stop()


def test_a_limit_holds_once_a_call_has_its_turn(limit: Callable[[int], None]) -> None:
    limit(1)
    first, second = EpisodeThread("test"), EpisodeThread("test")
    release = threading.Event()

    async def run() -> None:
        await asyncio.gather(first.run(lambda: None), second.run(lambda: None))
        before = asyncio.create_task(first.run(partial(time.sleep, 0.05)))
        await asyncio.sleep(0)
        with pytest.raises(Overrun):
            await second.run(release.wait, timeout_s=0.05)
        await before
        release.set()

    asyncio.run(run())
    assert (first.abandoned, second.abandoned) == (0, 1)
    stop([first, second])


def test_who_shares_a_thread_that_hangs_fails_by_its_name_and_goes_on_elsewhere(
    limit: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(1)
    monkeypatch.setattr(gymnast.threads, "STUCK_S", 0.05)
    hanging, waiting = EpisodeThread("test"), EpisodeThread("test")
    release = threading.Event()

    async def run() -> tuple[int, int]:
        before = await waiting.run(threading.get_ident)
        with pytest.raises(Overrun):
            await hanging.run(release.wait, timeout_s=0.02)
        assert await hanging.run(threading.get_ident) != before
        with pytest.raises(InfrastructureError, match="a thread that hangs in the call of another"):
            await waiting.run(threading.get_ident)
        return before, await waiting.run(threading.get_ident)

    before, after = asyncio.run(run())
    assert before != after
    assert (hanging.abandoned, waiting.abandoned) == (1, 0)
    release.set()
    stop([hanging, waiting])


def test_who_is_cancelled_in_the_queue_keeps_its_thread(limit: Callable[[int], None]) -> None:
    limit(1)
    first, second = EpisodeThread("test"), EpisodeThread("test")
    release, made = threading.Event(), threading.Event()

    async def run() -> None:
        thread = await second.run(threading.get_ident)
        before = asyncio.create_task(first.run(release.wait))
        await asyncio.sleep(0)
        queued = asyncio.create_task(second.run(made.set))
        await asyncio.sleep(0.01)
        queued.cancel()
        await asyncio.wait((queued,))
        release.set()
        await before
        assert await second.run(threading.get_ident) == thread

    asyncio.run(run())
    assert second.abandoned == 0
    assert not made.is_set()
    stop([first, second])


def test_a_step_within_a_step_waits_for_no_thread_that_waits_for_it(
    limit: Callable[[int], None],
) -> None:
    limit(1)

    async def nested(levels: int) -> int:
        thread = EpisodeThread("test")
        inner = EpisodeThread("inner")
        await inner.run(lambda: None)  # which gets a thread on the level of its caller
        try:
            if not levels:
                return await thread.run(lambda: 1)
            call = lambda: run_blocking(inner.run(lambda: run_blocking(nested(levels - 1))))  # noqa: E731
            return 1 + await thread.run(call)
        finally:
            stop([thread, inner])

    async def run() -> list[int]:
        return await asyncio.wait_for(asyncio.gather(*(nested(2) for _ in range(4))), 20)

    assert asyncio.run(run()) == [3] * 4
