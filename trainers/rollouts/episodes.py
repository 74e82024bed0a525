"""One member of one group: its environment, its attempts, and what is counted.

An episode that the infrastructure broke is tried again, then left out. One in which the user's
own code raised, reward functions included, or whose program ended before it asked for anything, is
left out at once; more than `max_failed_episodes` of those stop the collection. `schedule.py`
decides when an episode begins, `one_episode.py` how it goes.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gymnast.agents.base import Agent
from gymnast.errors import InfrastructureError, NoRequest, PromptTooLong, UserCodeError
from gymnast.threads import in_background
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.rollouts.environments import Environments, MakeEnvironment
from gymnast.trainers.rollouts.metrics import Counts, LeftOut
from gymnast.trainers.rollouts.one_episode import drive
from gymnast.trainers.rollouts.rewards import add_rewards
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.types import Sampling, StopReason, Trajectory
from gymnast.visible import visible_logger

ATTEMPTS = 2
logger = visible_logger(__name__)


class Players(Protocol):
    """Plays the episodes of a collection: `Episodes` in this process, or workers elsewhere."""

    async def play(self, row_index: int, member: int) -> Trajectory | None:
        """The trajectory of a member of a row; see `Episodes.play`."""
        ...

    async def close_lost(self) -> None:
        """Close the environments of episodes that were cancelled; others may be under way."""
        ...

    async def close(self) -> None:
        """End what the collection alone needs; no episode is under way any more."""
        ...


class Workers(Protocol):
    """Processes elsewhere that play episodes: `gymnast.trainers.RayWorkers`."""

    def __enter__(self) -> Any:
        """Start them, or keep them if they run already."""
        ...

    def __exit__(self, *raised: object) -> None:
        """End them, unless they ran before the block."""
        ...

    def players(self, task: "Task") -> Players:
        """Who plays the episodes of a collection; within the block only."""
        ...


@dataclass(frozen=True)
class Task:
    """What a collection plays.

    Attributes:
        make_env: Makes an environment.
        agent: Acts in all episodes.
        rows: The dataset rows.
        seed_indices: For each row, the row index that its seeds derive from.
        settings: How to play.
        counts: Where to count.
        waiting_together: How many episodes wait for one another, each in a box if it has one.
    """

    make_env: MakeEnvironment
    agent: Agent
    rows: Sequence[Mapping[str, Any]]
    seed_indices: Sequence[int]
    settings: RolloutSettings
    counts: Counts
    waiting_together: int = 1

    def here(self) -> "Episodes":
        """Those who play it in this process."""
        environments = Environments(self.make_env, self.waiting_together)
        given = (self.rows, self.seed_indices, self.settings, self.counts)
        return Episodes(environments, self.agent, *given)


@dataclass(frozen=True)
class Episodes:
    """Plays the episodes of a collection.

    Attributes:
        environments: The pool that lends an environment to each episode.
        agent: Acts in all of them.
        rows: The dataset rows, by row index.
        seed_indices: For each row, the row index that its seeds derive from.
        settings: How to play.
        counts: Where to count.
    """

    environments: Environments
    agent: Agent
    rows: Sequence[Mapping[str, Any]] | Mapping[int, Mapping[str, Any]]
    seed_indices: Sequence[int] | Mapping[int, int]
    settings: RolloutSettings
    counts: Counts

    async def play(self, row_index: int, member: int) -> Trajectory | None:
        """The trajectory of a member of a row; None if it was left out, or the row skipped.

        Raises:
            UserCodeError: The first one, when there are more than `max_failed_episodes`.
        """
        counts = self.counts
        if row_index in counts.rows_skipped:
            return None
        driver = self.environments.take()
        row, env_seed = self.rows[row_index], self._seed(row_index)
        scored = None
        failing: LeftOut = "user_code"
        try:
            for attempt in range(ATTEMPTS):
                counts.retried += attempt > 0
                trajectory = None
                sampling = self._sampling(row_index, member, attempt)
                with _infrastructure_may_break(row_index, member, attempt):
                    trajectory = await drive(
                        *(driver, self.agent, row, env_seed, sampling),
                        hint=self.settings.hints,
                        parallel_requests=not self.settings.deterministic,
                    )
                if trajectory is not None and trajectory.stop_reason is not StopReason.error:
                    failing = "reward"
                    scored = await self._scored(trajectory)
                    break
            else:
                counts.left_out_for["infrastructure"] += 1
        except PromptTooLong:
            counts.rows_skipped.add(row_index)
        except UserCodeError as error:
            logger.warning("row %d, member %d is left out: %s", row_index, member, error)
            counts.user_errors.append(error)
            no_request = isinstance(error, NoRequest)
            counts.left_out_for["no_request" if no_request else failing] += 1
        if len(counts.user_errors) > self.settings.max_failed_episodes:
            raise counts.user_errors[0]
        self.environments.give_back(driver)
        return scored

    async def close_lost(self) -> None:
        """See `Players`."""
        await self.environments.close_lost()

    async def close(self) -> None:
        """Close the environments."""
        await in_background(self.environments.close)

    async def _scored(self, trajectory: Trajectory) -> Trajectory | None:
        """With the reward functions' values; None if one of them leaves the episode out."""
        counts = self.counts
        try:
            scored = await add_rewards(trajectory, self.settings.rewards)
        except InfrastructureError as error:
            logger.warning("an episode is left out because a reward function failed: %r", error)
            counts.left_out_for["infrastructure"] += 1
            return None
        counts.left_out_for["no_reward"] += scored is None
        return scored

    def _seed(self, row_index: int, *path: str | int) -> int:
        return derive(self.settings.seed, "row", self.seed_indices[row_index], *path)

    def _sampling(self, row_index: int, member: int, attempt: int) -> Sampling:
        return replace(
            self.settings.sampling, seed=self._seed(row_index, "member", member, attempt)
        )


@contextmanager
def _infrastructure_may_break(row_index: int, member: int, attempt: int) -> Iterator[None]:
    """Log what the infrastructure raised, and go on."""
    try:
        yield
    except (InfrastructureError, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            raise  # this episode is cancelled, not something that it waited for
        logger.warning("row %d, member %d, attempt %d: %r", row_index, member, attempt, error)
