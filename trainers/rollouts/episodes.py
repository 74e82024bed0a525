"""One member of one group: its environment, its attempts, and what is counted.

An episode that the infrastructure broke is tried again, then left out. One in which the user's
own code raised, reward functions included, is left out too, and more of those than
`max_failed_episodes` stop everything.
Left out: when it begins (`schedule.py`) and how it goes (`one_episode.py`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from gymnast.agents.base import Agent
from gymnast.errors import ConfigError, InfrastructureError, PromptTooLong, UserCodeError
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.rollouts.drivers import Driver, driver_of, max_boxes
from gymnast.trainers.rollouts.metrics import Counts, LeftOut
from gymnast.trainers.rollouts.one_episode import drive
from gymnast.trainers.rollouts.rewards import Reward, add_rewards
from gymnast.types import Sampling, StopReason, Trajectory
from gymnast.visible import visible_logger

MakeEnvironment = Callable[[], gymnasium.Env[Any, Any]]
ATTEMPTS = 2
logger = visible_logger(__name__)


class Environments:
    """Environments that are free; more are made when there is none.

    One whose episode was cancelled is not given back: a thread of it may still be at work.

    Args:
        make_env: Makes one.
        waiting_together: How many episodes wait for one another, each with its box if it has one.
    """

    def __init__(self, make_env: MakeEnvironment, waiting_together: int = 1) -> None:
        self._make_env = make_env
        self._waiting_together = waiting_together
        self._free: list[Driver] = []
        self._all: list[Driver] = []

    def take(self) -> Driver:
        """A free one, or a new one.

        Raises:
            ConfigError: It has fewer boxes than episodes that wait for one another.
        """
        if not self._free:
            driver = driver_of(self._make_env())
            self._all.append(driver)
            _check_boxes(driver.env, self._waiting_together)
            return driver
        return self._free.pop()

    def give_back(self, driver: Driver) -> None:
        """Its episode is over."""
        self._free.append(driver)

    def close(self) -> None:
        """Close them all, and only then raise what one of them raised."""
        with ExitStack() as stack:
            for driver in self._all:
                stack.callback(driver.close)


def _check_boxes(env: gymnasium.Env[Any, Any], waiting_together: int) -> None:
    """Who has a box must not wait for who waits for a box."""
    most = max_boxes(env)
    if most is not None and most < waiting_together:
        raise ConfigError(
            f"deterministic: a round waits for all {waiting_together} episodes, but the sandbox of "
            f"{type(env.unwrapped).__name__} has max_boxes: {most}: the others never get theirs. "
            f"Lower concurrency to {most}, or raise its max_boxes to {waiting_together}."
        )


@dataclass(frozen=True)
class Episodes:
    """Plays the episodes of a collection.

    Attributes:
        environments: Where they take place.
        agent: Who acts.
        rows: The dataset rows.
        row_numbers: Of each row, what its seeds derive from.
        sampling: How to sample, apart from the seed.
        seed: Of the collection.
        max_failed_episodes: In how many episodes the user's code may raise.
        counts: Where to count.
        rewards: Called on every episode that has ended.
    """

    environments: Environments
    agent: Agent
    rows: Sequence[Mapping[str, Any]]
    row_numbers: Sequence[int]
    sampling: Sampling
    seed: int
    max_failed_episodes: int
    counts: Counts
    rewards: Sequence[Reward] = ()

    async def play(self, index: int, member: int) -> Trajectory | None:
        """The trajectory of a member of row `index`, or None where it was left out or skipped.

        Raises:
            UserCodeError: The first one, when there are more than `max_failed_episodes`.
        """
        counts = self.counts
        if index in counts.rows_skipped:
            return None
        driver = self.environments.take()
        scored = None
        failing: LeftOut = "user_code"
        try:
            trajectory = await self._with_attempts(driver, index, member)
            if trajectory is not None:
                failing = "reward"
                scored = await self._scored(trajectory)
        except PromptTooLong:
            counts.rows_skipped.add(index)
        except UserCodeError as error:
            logger.warning("row %d, member %d is left out: %s", index, member, error)
            counts.user_errors.append(error)
            counts.left_out_for[failing] += 1
        if len(counts.user_errors) > self.max_failed_episodes:
            raise counts.user_errors[0]
        self.environments.give_back(driver)
        return scored

    async def _with_attempts(self, driver: Driver, index: int, member: int) -> Trajectory | None:
        for attempt in range(ATTEMPTS):
            trajectory = await self._attempt(driver, index, member, attempt)
            if trajectory is not None:
                return trajectory
            self.counts.retried += attempt + 1 < ATTEMPTS
        self.counts.left_out_for["infrastructure"] += 1
        return None

    async def _scored(self, trajectory: Trajectory) -> Trajectory | None:
        """With the reward functions' values, or None where one of them leaves the episode out."""
        counts = self.counts
        try:
            scored = await add_rewards(trajectory, self.rewards)
        except InfrastructureError as error:
            logger.warning("an episode is left out, for a reward function: %r", error)
            counts.left_out_for["infrastructure"] += 1
            return None
        counts.left_out_for["no_reward"] += scored is None
        return scored

    async def _attempt(
        self, driver: Driver, index: int, member: int, attempt: int
    ) -> Trajectory | None:
        """The trajectory, or None where the infrastructure broke."""
        number = self.row_numbers[index]
        member_seed = derive(self.seed, "row", number, "member", member, attempt)
        try:
            trajectory = await drive(
                driver,
                self.agent,
                self.rows[index],
                derive(self.seed, "row", number),
                replace(self.sampling, seed=member_seed),
            )
        except (InfrastructureError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                raise  # this episode is cancelled, not something that it waited for
            logger.warning("row %d, member %d, attempt %d: %r", index, member, attempt, error)
            return None
        return None if trajectory.stop_reason is StopReason.error else trajectory
