"""Whatever user code raises is answered or named; only Ctrl-C and cancellation pass."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from gymnast.envs import Environment, Outcome, tool
from gymnast.errors import UserCodeError
from gymnast.threads import Contained

ANSWER = {"role": "assistant", "content": "Done."}
ROW = {"prompt": "Go."}


class Own(BaseException):
    """An exception of the user's that is not an `Exception`."""


class Silent(Exception):
    """Its message raises."""

    def __str__(self) -> str:
        raise RuntimeError("no message")

    __repr__ = __str__


class SilentExit(SystemExit):
    """Its message raises."""

    def __str__(self) -> str:
        raise SystemExit(2)


ERRORS: dict[str, Callable[[], BaseException]] = {
    "group": lambda: BaseExceptionGroup("g", [SystemExit(1)]),
    "nested group": lambda: BaseExceptionGroup("g", [BaseExceptionGroup("h", [Own()])]),
    "generator exit": GeneratorExit,
    "exit": lambda: SystemExit(3),
    "cancelled": asyncio.CancelledError,
    "own": lambda: Own("mine"),
    "stop": StopIteration,
    "async stop": StopAsyncIteration,
    "silent": Silent,
    "silent exit": SilentExit,
    "timeout": lambda: TimeoutError("mine"),
}
EACH = pytest.mark.parametrize("make_error", ERRORS.values(), ids=ERRORS)


def raising(name: str, make_error: Callable[[], BaseException], how: str) -> Callable[..., Any]:
    """A function that raises: sync, async, or async after it has waited."""

    def sync(*arguments: Any) -> Any:
        """Raise."""
        raise make_error()

    async def at_once(*arguments: Any) -> Any:
        """Raise."""
        raise make_error()

    async def later(*arguments: Any) -> Any:
        """Raise, later."""
        await asyncio.sleep(0)
        raise make_error()

    function = {"sync": sync, "at once": at_once, "later": later}[how]
    function.__name__ = name
    return function


async def episode(env: Environment, *messages: Any) -> list[Outcome]:
    await env.areset(options={"row": ROW})
    return [await env.act(message) for message in messages]


@EACH
def test_exceptions_of_tools_are_answered(
    make_error: Callable[[], BaseException], calls: Callable[..., Any]
) -> None:
    def sync() -> str:
        """Raise."""
        raise make_error()

    async def at_once() -> str:
        """Raise."""
        raise make_error()

    @tool(timeout_s=60)
    async def later() -> str:
        """Raise."""
        await asyncio.sleep(0)
        raise make_error()

    @tool(concurrent=True)
    async def together() -> str:
        """Raise."""
        await asyncio.sleep(0)
        raise make_error()

    env = Environment.from_tools([sync, at_once, later, together])()
    named = ("sync", "at_once", "later", "together", "together")
    turn, last = asyncio.run(episode(env, calls(*((name, {}) for name in named)), ANSWER))
    assert [error.kind for error in turn.info["errors"]] == ["exception"] * 5
    assert all(message["content"].startswith("Error: ") for message in turn.messages)
    assert last.terminated


@EACH
@pytest.mark.parametrize("how", ["sync", "at once", "later"])
@pytest.mark.parametrize(
    "hook", ["setup", "turn_reward", "text_rewards", "reward", "metrics", "respond", "cleanup"]
)
def test_exceptions_of_hooks_name_hook_and_row(
    hook: str, how: str, make_error: Callable[[], BaseException]
) -> None:
    env = type("Odd", (Environment,), {hook: raising(hook, make_error, how)})()
    with pytest.raises(UserCodeError) as caught:
        asyncio.run(episode(env, ANSWER))
    assert caught.value.hook == hook and caught.value.row == ROW


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError()])]
)
def test_ctrl_c_in_async_code_stops_the_run(
    error: BaseException, calls: Callable[..., Any]
) -> None:
    async def leave() -> str:
        """Be interrupted."""
        await asyncio.sleep(0)
        raise error

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(episode(Environment.from_tools([leave])(), calls(("leave", {}))))


def test_an_interrupt_on_a_tool_thread_is_the_tools_own(calls: Callable[..., Any]) -> None:
    """Ctrl-C reaches the main thread alone; a policy's code may raise one on another."""

    def leave() -> str:
        """Raise what Ctrl-C raises."""
        raise KeyboardInterrupt

    turn, _ = asyncio.run(episode(Environment.from_tools([leave])(), calls(("leave", {})), ANSWER))
    assert [error.kind for error in turn.info["errors"]] == ["exception"]


@pytest.mark.parametrize("swallows", [False, True])
def test_a_cancelled_tool_cancels_the_turn(swallows: bool, calls: Callable[..., Any]) -> None:
    async def wait() -> str:
        """Wait for ever."""
        waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if swallows:
                raise GeneratorExit from None
            raise
        return ""

    env = Environment.from_tools([wait])()

    async def run() -> None:
        global waiting
        waiting = asyncio.Event()
        task = asyncio.create_task(episode(env, calls(("wait", {}))))
        await waiting.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or swallows

    asyncio.run(run())


waiting: asyncio.Event


class Never:
    """Is never there."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def test_a_coroutine_that_is_closed_closes_what_it_awaits() -> None:
    ended: list[str] = []

    async def inner() -> None:
        try:
            await Never()
        finally:
            ended.append("inner")

    async def outer() -> None:
        try:
            await Contained(inner())
        except Exception:  # a close is no exception of the code's
            ended.append("wrong")

    coroutine = outer()
    coroutine.send(None)
    coroutine.close()
    assert ended == ["inner"]


def test_contained_code_gets_and_gives_what_it_would_alone() -> None:
    async def adds() -> int:
        first = [*await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0.001, 2))]
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError:
            first.append(3)
        return sum(first)

    async def run() -> tuple[int, int]:
        return await Contained(adds()), await Contained(asyncio.ensure_future(adds()))

    assert asyncio.run(run()) == (6, 6)


@pytest.mark.parametrize("how", ["list", "generator", "async generator"])
@EACH
def test_exceptions_of_solutions_name_the_hook(
    make_error: Callable[[], BaseException], how: str
) -> None:
    from gymnast.envs.environment.solution import solve_episode

    class Solved(Environment):
        def solve(self, row: Any) -> Any:
            if how == "list":
                raise make_error()
            return self.later() if how == "async generator" else self.at_once()

        def at_once(self) -> Any:
            raise make_error()
            yield ""

        async def later(self) -> Any:
            await asyncio.sleep(0)
            raise make_error()
            yield ""

    async def run() -> None:
        env = Solved()
        await env.areset(options={"row": ROW})
        await solve_episode(env)

    with pytest.raises(UserCodeError) as caught:
        asyncio.run(run())
    assert caught.value.hook == "solve" and caught.value.row == ROW
