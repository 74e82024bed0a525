"""Many episodes at once: groups of trajectories for a list of rows.

Every episode is a task of its own, so neither a slow tool nor a long answer makes another wait.
An episode that the infrastructure broke is tried again, then left out and counted. One in which
the user's own code raised is left out too, and more of those than `max_failed_episodes` stop
everything with the first traceback. How an episode goes is `trainers/rollout.py`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium

from gymnast.agents.base import Agent
from gymnast.errors import InfrastructureError, PromptTooLong, UserCodeError
from gymnast.trainers.rollout import rollout
from gymnast.trainers.seeds import derive
from gymnast.types import Sampling, StopReason, Trajectory

MakeEnvironment = Callable[[], gymnasium.Env[Any, Any]]
ATTEMPTS = 2
_log = logging.getLogger(__name__)


class Group(list[Trajectory]):
    """The trajectories of one row; fewer than `group_size` where episodes were left out.

    Attributes:
        row_index: Which of the rows they belong to.
    """

    def __init__(self, row_index: int, trajectories: Sequence[Trajectory] = ()) -> None:
        super().__init__(trajectories)
        self.row_index = row_index


class Rollouts(list[Group]):
    """Groups, entry i for row i.

    Attributes:
        metrics: Means and counts over all episodes, named by area.
    """

    def __init__(self, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        super().__init__(groups)
        self.metrics = metrics

    @property
    def trajectories(self) -> list[Trajectory]:
        """All of them, group by group."""
        return [trajectory for group in self for trajectory in group]


@dataclass
class Counts:
    """What happened beside the trajectories; `stream` adds to the one it is given.

    Attributes:
        retried: Attempts that the infrastructure broke and that were made again.
        left_out: Episodes without a trajectory, for any reason but a prompt that is too long.
        user_errors: What the user's code raised; each left one episode out.
        rows_skipped: Indices of rows whose prompt is too long.
        finished: Episodes that ended one way or the other.
    """

    retried: int = 0
    left_out: int = 0
    user_errors: list[UserCodeError] = field(default_factory=list)
    rows_skipped: set[int] = field(default_factory=set)
    finished: int = 0


class _Environments:
    """Environments that are free, and as many more as may still be made."""

    def __init__(self, make_env: MakeEnvironment, most: int) -> None:
        self._make_env = make_env
        self._places = asyncio.Semaphore(most)
        self._free: list[gymnasium.Env[Any, Any]] = []
        self._all: list[gymnasium.Env[Any, Any]] = []

    async def take(self) -> gymnasium.Env[Any, Any]:
        await self._places.acquire()
        if not self._free:
            try:
                env = self._make_env()
            except BaseException:
                self._places.release()
                raise
            self._all.append(env)
            return env
        return self._free.pop()

    def give_back(self, env: gymnasium.Env[Any, Any]) -> None:
        self._free.append(env)
        self._places.release()

    def close(self) -> None:
        """Close them all, and only then raise what one of them raised."""
        with ExitStack() as stack:
            for env in self._all:
                stack.callback(env.close)


async def stream(
    make_env: MakeEnvironment,
    agent: Agent,
    rows: Sequence[Mapping[str, Any]],
    *,
    group_size: int,
    sampling: Sampling,
    concurrency: int = 64,
    seed: int = 0,
    max_failed_episodes: int = 0,
    counts: Counts | None = None,
) -> AsyncGenerator[Group, None]:
    """Run `group_size` episodes of every row; yield each group when its last one ends.

    Whoever stops before the last group closes the stream (`contextlib.aclosing`), which cancels
    the episodes under way.

    Sampling seeds derive from (seed, row index, member, attempt, turn), the environment's from
    (seed, row index): members of a group differ in sampling, never in the start.

    Args:
        make_env: Makes an environment; called at most `concurrency` times. They are reused
            through `reset`, and closed at the end.
        agent: Who acts.
        rows: The dataset rows.
        group_size: Episodes a row.
        sampling: How to sample; its own seed is not used.
        concurrency: How many episodes run at once.
        seed: Of this collection.
        max_failed_episodes: In how many episodes the user's code may raise.
        counts: Where to count what was retried, left out, skipped and finished.

    Raises:
        UserCodeError: The first one, when there are more than `max_failed_episodes`.
    """
    counts = counts if counts is not None else Counts()
    environments = _Environments(make_env, concurrency)
    groups = [Group(index) for index in range(len(rows))]
    pending = Counter(dict.fromkeys(range(len(rows)), group_size))
    tasks: dict[asyncio.Task[Trajectory | None], tuple[int, int]] = {}
    results: dict[tuple[int, int], Trajectory] = {}
    for index, row in enumerate(rows):
        for member in range(group_size):
            episode = _Episode(environments, agent, row, sampling, seed, index, member, counts)
            tasks[asyncio.create_task(episode.run())] = (index, member)
    try:
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index, member = tasks.pop(task)
                trajectory = task.result()
                counts.finished += 1
                if trajectory is not None:
                    results[index, member] = trajectory
                if len(counts.user_errors) > max_failed_episodes:
                    raise counts.user_errors[0]
                pending[index] -= 1
                if pending[index] == 0:
                    members = sorted(key for key in results if key[0] == index)
                    groups[index].extend(results.pop(key) for key in members)
                    yield groups[index]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(environments.close)


async def collect(
    make_env: MakeEnvironment,
    agent: Agent,
    rows: Sequence[Mapping[str, Any]],
    *,
    group_size: int,
    sampling: Sampling,
    concurrency: int = 64,
    seed: int = 0,
    max_failed_episodes: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Run `group_size` episodes of every row and return their groups, entry i for `rows[i]`.

    Takes and raises what `stream` does; `on_progress`, if given, is called with (episodes done,
    episodes in all) after every group.
    """
    counts = Counts()
    groups = [Group(index) for index in range(len(rows))]
    arriving = stream(
        make_env,
        agent,
        rows,
        group_size=group_size,
        sampling=sampling,
        concurrency=concurrency,
        seed=seed,
        max_failed_episodes=max_failed_episodes,
        counts=counts,
    )
    async with aclosing(arriving):
        async for group in arriving:
            groups[group.row_index] = group
            if on_progress is not None:
                on_progress(counts.finished, len(rows) * group_size)
    trajectories = [trajectory for group in groups for trajectory in group]
    return Rollouts(groups, summarise(trajectories, counts))


@dataclass
class _Episode:
    """One member of one group, with its attempts."""

    environments: _Environments
    agent: Agent
    row: Mapping[str, Any]
    sampling: Sampling
    seed: int
    index: int
    member: int
    counts: Counts

    async def run(self) -> Trajectory | None:
        """The trajectory, or None where the episode was left out."""
        env = await self.environments.take()
        try:
            for attempt in range(ATTEMPTS):
                if self.index in self.counts.rows_skipped:
                    return None
                trajectory = await self._attempt(env, attempt)
                if trajectory is not None:
                    return trajectory
                self.counts.retried += attempt + 1 < ATTEMPTS
        except PromptTooLong:
            self.counts.rows_skipped.add(self.index)
            return None
        except UserCodeError as error:
            self.counts.user_errors.append(error)
        finally:
            self.environments.give_back(env)
        self.counts.left_out += 1
        return None

    async def _attempt(self, env: gymnasium.Env[Any, Any], attempt: int) -> Trajectory | None:
        member_seed = derive(self.seed, "row", self.index, "member", self.member, attempt)
        try:
            trajectory = await rollout(
                env,
                self.agent,
                self.row,
                seed=derive(self.seed, "row", self.index),
                sampling=replace(self.sampling, seed=member_seed),
            )
        except InfrastructureError as error:
            _log.warning(
                "row %d, member %d, attempt %d: %s", self.index, self.member, attempt, error
            )
            return None
        return None if trajectory.stop_reason is StopReason.error else trajectory


def summarise(trajectories: Sequence[Trajectory], counts: Counts) -> dict[str, float]:
    """Means and counts over episodes, named by area."""
    metrics: dict[str, float] = {
        "episodes/finished": len(trajectories),
        "episodes/retried": counts.retried,
        "episodes/left_out": counts.left_out,
        "episodes/rows_skipped": len(counts.rows_skipped),
    }
    if not trajectories:
        return metrics
    total = len(trajectories)
    rewards = [trajectory.reward for trajectory in trajectories]
    mean = sum(rewards) / total
    metrics["reward/mean"] = mean
    metrics["reward/std"] = (sum((reward - mean) ** 2 for reward in rewards) / total) ** 0.5
    metrics["episodes/turns"] = sum(len(t.turns) for t in trajectories) / total
    metrics["tokens/sampled"] = sum(t.action_tokens for t in trajectories)
    metrics["tokens/observed"] = sum(
        len(t.ids) - t.prompt_length - t.action_tokens for t in trajectories
    )
    for reason, number in Counter(t.stop_reason for t in trajectories).items():
        metrics[f"episodes/stop/{reason}"] = number / total
    for name in sorted({name for t in trajectories for name in t.metrics}):
        values = [t.metrics.get(name, 0.0) for t in trajectories]
        if name.startswith("tools/"):
            metrics[name] = sum(values)
        else:
            area = "" if "/" in name else "environment/"  # the environment's own
            metrics[area + name] = sum(values) / total
    return metrics
