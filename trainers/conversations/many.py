"""Many episodes in messages: demonstrations by a solution or by another speaker, several at once.

Nothing here decides what a demonstration is worth: `Demonstration.kept` compares with a reward that
the caller names.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gymnast.envs import Environment
from gymnast.errors import DataError, InfrastructureError, UserCodeError
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.conversations.play import play_solution
from gymnast.types import Branch, Message, Trajectory

Row = Mapping[str, Any]
Play = Callable[..., Awaitable[Trajectory]]
T = TypeVar("T")


@dataclass(frozen=True)
class Demonstration:
    """What came of one row.

    Attributes:
        row: The row.
        trajectory: The episode; None where it did not come to its end.
        problem: Why it did not, without the row; "" where it did.
    """

    row: Row
    trajectory: Trajectory | None
    problem: str = ""

    def kept(self, min_reward: float) -> bool:
        """Whether the episode has a reward, and at least this one."""
        ended = self.trajectory
        return ended is not None and not ended.no_reward and ended.reward >= min_reward


async def play_many(
    make_env: Callable[[], Environment],
    rows: Sequence[Row],
    play: Play = play_solution,
    *,
    seed: int = 0,
    concurrency: int = 8,
) -> list[Demonstration]:
    """Play an episode of each row.

    Args:
        make_env: Makes an environment; it is called at most `concurrency` times.
        rows: The rows.
        play: Plays one, as `play_solution(env, row, seed=...)` does.
        seed: That of each episode derives from it and from the row's place.
        concurrency: How many episodes run at once; fewer where there are fewer boxes.

    Returns:
        One for each row, in the order of the rows.

    Raises:
        ConfigError: The environment cannot be played so: it has no `solve`, say.
    """

    async def demonstrate(env: Environment, index: int, row: Row) -> Demonstration:
        return await _one(play, env, row, derive(seed, "demonstration", index))

    return await for_each_row(make_env, rows, demonstrate, concurrency=concurrency)


async def for_each_row(
    make_env: Callable[[], Environment],
    rows: Sequence[Row],
    work: Callable[[Environment, int, Row], Awaitable[T]],
    *,
    concurrency: int,
) -> list[T]:
    """Do some work with each row in an environment, several at once.

    Args:
        make_env: Makes an environment; it is called at most `concurrency` times.
        rows: The rows.
        work: Gets an environment that nothing else uses meanwhile, the row's place and the row.
        concurrency: How many are worked with at once; fewer where there are fewer boxes.

    Returns:
        What `work` returned for each row, in the order of the rows. The first exception in it
        ends the others, and is raised.
    """
    if not rows:
        return []
    done: dict[int, T] = {}
    waiting = iter(enumerate(rows))

    async def work_on(env: Environment) -> None:
        for index, row in waiting:
            done[index] = await work(env, index, row)

    envs = [make_env()]
    try:
        at_once = min(concurrency, len(rows), envs[0].max_boxes or concurrency)
        envs += [make_env() for _ in range(at_once - 1)]
        await _together([work_on(env) for env in envs])
    finally:
        for env in envs:
            await env.aclose()
    return [done[index] for index in range(len(rows))]


def tools_called(trajectory: Trajectory) -> Counter[str]:
    """How often each tool was called in the episode itself, worked turns in its prompt left out."""
    return Counter(
        str(call.get("function", {}).get("name"))
        for context in trajectory.contexts
        for message in _said(context)
        for call in message.get("tool_calls") or ()
    )


def _said(context: Trajectory | Branch) -> list[Message]:
    """What the policy said in a context."""
    turns = len(context.turns)
    said = [message for message in context.messages if message["role"] == "assistant"]
    return said[-turns:] if turns else []


async def _together(works: Sequence[Any]) -> None:
    """Run all; the first exception cancels the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one(play: Play, env: Environment, row: Row, seed: int) -> Demonstration:
    try:
        trajectory = await play(env, row, seed=seed)
    except UserCodeError as error:
        return Demonstration(row, None, error.problem)
    except (InfrastructureError, DataError) as error:
        return Demonstration(row, None, str(error))
    return Demonstration(row, trajectory)
