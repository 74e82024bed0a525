"""Between sync and async: one thread an episode, no call that hangs, waiting at any depth."""

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gymnast.envs import Environment, Outcome, tool
from gymnast.threads import EpisodeThread, Overrun, in_background, run_blocking
from thread_fixtures import Database


def test_functions_run_in_order_on_one_daemon_thread() -> None:
    thread = EpisodeThread("test")

    async def run() -> list[threading.Thread]:
        return [await thread.run(threading.current_thread) for _ in range(3)]

    threads = asyncio.run(run()) + asyncio.run(run())  # two event loops, one thread
    assert len(set(threads)) == 1
    assert threads[0].daemon and threads[0] is not threading.main_thread()
    thread.stop()
    threads[0].join(5)
    assert not threads[0].is_alive()


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(3), SystemExit(1)])
def test_what_a_function_raises_comes_back_as_an_exception(error: BaseException) -> None:
    thread = EpisodeThread("test")

    def fail() -> None:
        raise error

    with pytest.raises((ValueError, RuntimeError)):
        asyncio.run(thread.run(fail))
    assert asyncio.run(thread.run(lambda: 1)) == 1
    thread.stop()

    async def once() -> None:
        await asyncio.wait_for(in_background(fail), 5)

    with pytest.raises((ValueError, RuntimeError)):
        asyncio.run(once())


def test_context_variables_are_seen() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    thread = EpisodeThread("test")

    async def read() -> int:
        return variable.get()

    def nested() -> int:
        return run_blocking(read())

    async def run() -> list[int]:
        variable.set(5)
        ways = [await in_background(variable.get), await thread.run(variable.get)]
        return [*ways, await thread.run(nested), run_blocking(read())]

    assert asyncio.run(run()) == [5, 5, 5, 5]
    thread.stop()


def test_an_overrun_has_its_thread_abandoned_and_replaced() -> None:
    thread, release = EpisodeThread("test"), threading.Event()

    async def run() -> threading.Thread:
        first = await thread.run(threading.current_thread)
        with pytest.raises(Overrun):
            await thread.run(release.wait, timeout_s=0.02)
        assert await thread.run(threading.current_thread) is not first
        return first

    first = asyncio.run(run())
    assert thread.abandoned == 1
    release.set()  # its loop is closed by now, which must not matter
    first.join(5)
    assert not first.is_alive()
    thread.stop()


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


def test_the_caller_of_a_background_call_can_be_cancelled() -> None:
    release, over = threading.Event(), threading.Event()

    def hang() -> None:
        release.wait()
        over.set()

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_background(hang), 0.02)

    asyncio.run(run())  # which does not wait for it
    release.set()
    assert over.wait(5)


def within_5_s(function: Callable[[], Any]) -> Any:
    """What a function returns; a test that would hang fails."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(5)
    assert results, "it hangs"
    return results[0]


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_waiting_works_inside_running_loops_at_any_depth(depth: int) -> None:
    async def step(inner: int) -> int:
        await asyncio.sleep(0)
        return 1 + run_blocking(step(inner - 1)) if inner else 0  # a step within a step

    assert within_5_s(lambda: asyncio.run(step(depth))) == depth


def test_waiting_works_on_an_episodes_thread_while_its_loop_waits() -> None:
    """An async tool steps an environment whose sync tool steps another."""
    threads = [EpisodeThread("first"), EpisodeThread("second")]

    async def episode(depth: int) -> int:
        if depth == len(threads):
            return depth
        return await threads[depth].run(lambda: run_blocking(outer(depth + 1)))

    async def outer(depth: int) -> int:
        return run_blocking(episode(depth))

    assert within_5_s(lambda: run_blocking(outer(0))) == 2
    for thread in threads:
        thread.stop()


def test_what_async_code_keeps_for_its_loop_lasts_from_step_to_step() -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert run_blocking(loop()) is run_blocking(loop())


def test_an_exit_in_a_coroutine_does_not_end_the_loop_for_others() -> None:
    async def leave() -> None:
        sys.exit("enough")

    def run() -> str:
        with pytest.raises(RuntimeError, match="SystemExit: enough"):
            run_blocking(leave())
        return run_blocking(asyncio.sleep(0, "still here"))

    assert within_5_s(run) == "still here"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    thread = EpisodeThread("test")
    parent = run_blocking(thread.run(os.getpid))
    child = os.fork()
    if child == 0:
        answer = []
        code = threading.Thread(
            target=lambda: answer.append(run_blocking(thread.run(os.getpid))), daemon=True
        )
        code.start()
        code.join(5)
        os._exit(0 if answer == [os.getpid()] != [parent] else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.stop()


def test_exceptions_pass_through_waiting() -> None:
    async def fail() -> None:
        raise KeyError("x")

    async def outer() -> None:
        run_blocking(fail())

    for coroutine in (fail, outer):
        with pytest.raises(KeyError):
            run_blocking(coroutine())
