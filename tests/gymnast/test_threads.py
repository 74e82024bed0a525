"""The worker thread and the sync doors: one thread an episode, none of them hung."""

import asyncio
import contextvars
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gymnast.blocking import run_blocking
from gymnast.envs import Environment, Outcome, tool
from gymnast.threads import Overrun, Worker


def test_functions_run_in_order_on_one_daemon_thread() -> None:
    worker = Worker("test")

    async def run() -> list[threading.Thread]:
        return [await worker.run(threading.current_thread) for _ in range(3)]

    threads = asyncio.run(run()) + asyncio.run(run())  # two event loops, one thread
    assert len(set(threads)) == 1
    assert threads[0].daemon and threads[0] is not threading.main_thread()
    worker.stop()
    threads[0].join(5)
    assert not threads[0].is_alive()


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(3), SystemExit(1)])
def test_what_a_function_raises_comes_back_as_an_exception(error: BaseException) -> None:
    worker = Worker("test")

    def fail() -> None:
        raise error

    with pytest.raises((ValueError, RuntimeError)):
        asyncio.run(worker.run(fail))
    assert asyncio.run(worker.run(lambda: 1)) == 1
    worker.stop()


def test_context_variables_are_seen() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    worker = Worker("test")

    async def run() -> int:
        variable.set(5)
        return await worker.run(variable.get)

    assert asyncio.run(run()) == 5
    worker.stop()


def test_an_overrun_has_its_thread_abandoned_and_replaced() -> None:
    worker, release = Worker("test"), threading.Event()

    async def run() -> threading.Thread:
        first = await worker.run(threading.current_thread)
        with pytest.raises(Overrun):
            await worker.run(release.wait, timeout_s=0.02)
        assert await worker.run(threading.current_thread) is not first
        return first

    first = asyncio.run(run())
    assert worker.abandoned == 1
    release.set()  # its loop is closed by now, which must not matter
    first.join(5)
    assert not first.is_alive()
    worker.stop()


class Database(Environment):
    """Objects such as sqlite3 connections may only be used by the thread that made them."""

    def setup(self, row: Any) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create table notes (text)")

    @tool
    def note(self, text: str) -> str:
        """Write a note."""
        self.connection.execute("insert into notes values (?)", (text,))
        return "noted"

    def reward(self, episode: Any) -> float:
        found: tuple[int] = self.connection.execute("select count(*) from notes").fetchone()
        return float(found[0])

    def cleanup(self) -> None:
        self.connection.close()


def test_setup_tools_reward_and_cleanup_share_a_thread(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    note = ("note", {"text": "a"})
    outcome: Outcome = play(Database(), calls(note, note), calls(content="Done."))[-1]
    assert outcome.reward == 2.0
    assert outcome.info["metrics"]["tools/errors"] == 0.0


def test_a_hung_sync_tool_does_not_block(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    release = threading.Event()

    @tool(timeout_s=0.02)
    def hang() -> str:
        """Never return."""
        release.wait()
        return ""

    def quick() -> str:
        """Return at once."""
        return "here"

    env = Environment.from_tools([hang, quick])()
    first, last = play(env, calls(("hang", {}), ("quick", {})), calls(content="Done."))
    release.set()
    assert [error.kind for error in first.info["errors"]] == ["timeout"]
    assert "0.02 s" in first.messages[0]["content"]
    assert first.messages[1]["content"] == "here"
    assert last.info["metrics"]["tools/abandoned_threads"] == 1.0


def test_other_episodes_go_on_while_a_sync_tool_is_slow(calls: Callable[..., Any]) -> None:
    """Sixteen tools that each wait for all the others: one thread fewer, and they never meet."""
    meeting = threading.Barrier(16)

    @tool(timeout_s=30)
    def meet() -> str:
        """Wait for the others."""
        meeting.wait()
        return "met"

    made = Environment.from_tools([meet])

    async def episode() -> str:
        env = made()
        await env.areset(options={"row": {"prompt": "Go."}})
        outcome = await env.act(calls(("meet", {})))
        await env.aclose()
        return str(outcome.messages[0]["content"])

    async def run() -> list[str]:
        return await asyncio.gather(*(episode() for _ in range(16)))

    assert asyncio.run(run()) == ["met"] * 16


def test_the_time_of_an_episode_cuts_a_sync_and_an_async_tool(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    release = threading.Event()

    def hang() -> str:
        """Never return."""
        release.wait()
        return ""

    async def ahang() -> str:
        """Never return."""
        await asyncio.Event().wait()
        return ""

    made = Environment.from_tools([hang, ahang])
    for name in ("hang", "ahang"):
        outcome: Outcome = play(made(episode_timeout_s=0.05), calls((name, {}), (name, {})))[0]
        assert outcome.truncated and outcome.info["stop_reason"] == "timeout"
        assert [error.kind for error in outcome.info["errors"]] == ["timeout", "timeout"]
        assert "was not run" in outcome.messages[1]["content"]
    release.set()


def test_waiting_works_inside_a_running_loop_and_nested() -> None:
    async def inner() -> int:
        await asyncio.sleep(0)
        return 1

    async def outer() -> int:
        return run_blocking(inner()) + 1  # as a step inside an async tool would

    async def notebook() -> int:
        return run_blocking(outer())

    assert asyncio.run(notebook()) == 2


def test_exceptions_pass_through_waiting() -> None:
    async def fail() -> None:
        raise KeyError("x")

    async def outer() -> None:
        run_blocking(fail())

    for coroutine in (fail, outer):
        with pytest.raises(KeyError):
            run_blocking(coroutine())
