"""How episodes are collected: each setting with its default, its check and its documentation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gymnast.agents.backends import most_at_once
from gymnast.shared_threads import MAX_THREADS
from gymnast.trainers.base.settings import (
    AutoPositive,
    Count,
    Limit,
    Positive,
    Settings,
    check_at_least,
    check_positive,
)
from gymnast.trainers.data.inputs import check_sampling_kind
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.types import Sampling, Trajectory


class RolloutLimits(Settings):
    """What bounds the episodes of a step, as a run's YAML says it."""

    concurrency: AutoPositive = 64
    """Episodes that run at once, in each process. "auto", or None, runs all episodes of a step at
    once, up to 256 on a GPU and 64 elsewhere."""
    max_threads: Positive = MAX_THREADS
    """Threads for sync tools and hooks, in each process. More episodes than that share them: each
    stays on one, and its calls wait for those of the others on it. `async def` needs none."""
    rollout_deadline_s: Limit | None = None
    """Seconds that a step's episodes have; those unfinished by then are left out and counted.
    Evaluations wait for all. None waits for all."""
    kv_budget_bytes: AutoPositive = None
    """Memory that the keys and values of all contexts may take; a setting of
    `gymnast.agents.TransformersAgent`. "auto", or None, takes a quarter of what weights, optimizer
    and gradients leave where keys and values stay while a step is learned from: on a GPU, and with
    `max_staleness` above 0. Elsewhere they take nothing then, and it is a quarter of the memory
    while episodes are sampled."""
    max_failed_episodes: Count | None = None
    """In how many episodes of a step, or of an evaluation, the user's code may raise. By default a
    tenth of them, and 0 in the first step."""

    def episodes_at_once(self, episodes: int, device: torch.device) -> int:
        """Return the number of episodes that run at once.

        Args:
            episodes: Of a step, in this process.
            device: Of the model.
        """
        if self.concurrency is not None:
            return self.concurrency
        return max(1, min(episodes, most_at_once(device)))

    def most_failed(self, step: int, episodes: int) -> int:
        """In how many episodes of a step the user's code may raise.

        Args:
            step: Its number; the first is 1.
            episodes: How many it has.
        """
        if self.max_failed_episodes is not None:
            return self.max_failed_episodes
        return 0 if step == 1 else episodes // 10

    def most_failed_of_evaluation(self, episodes: int) -> int:
        """Return in how many of an evaluation's episodes the user's code may raise."""
        return episodes // 10 if self.max_failed_episodes is None else self.max_failed_episodes


def rewards_differ(group: Sequence[Trajectory]) -> bool:
    """Whether the episodes of a group have different rewards."""
    return len({trajectory.reward for trajectory in group}) > 1


@dataclass(frozen=True)
class DynamicSampling:
    """Groups without spread are replaced by further rows, until enough groups have spread.

    Dynamic sampling of DAPO (Yu et al. 2025, arXiv:2503.14476, section 3.2), row by row: as many
    rows begin as groups are wanted, and one more for each finished group without spread. So no
    episode is given up, and which rows are played does not depend on which episodes end first:
    they are the first rows of which as many have spread as are wanted.

    Attributes:
        groups: How many groups with spread are wanted; those of the rows that are left replace
            groups without.
        has_spread: Whether there is anything to learn from a group that is over; it may be short
            where episodes were left out, but is not empty: an empty group has no spread.

    Raises:
        ConfigError: `groups` is below 0.
    """

    groups: int
    has_spread: Callable[[Sequence[Trajectory]], bool] = rewards_differ

    def __post_init__(self) -> None:
        check_at_least(0, groups=self.groups)


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """What `collect` and `stream` take by keyword, and pass on as one value.

    Attributes:
        group_size: Episodes per row.
        sampling: How to sample; its own seed is not used.
        concurrency: How many episodes run at once.
        seed: All seeds derive from it. Sampling seeds derive from (seed, row index, member,
            attempt, turn), those of the environment from (seed, row index): members of a group
            differ in sampling, never in the start.
        max_failed_episodes: In how many episodes the user's code may raise.
        max_waiting_groups: No row begins while this many finished groups wait for the consumer;
            rows that have begun go on.
        deadline_s: Seconds, from when the first group is asked for, after which unfinished
            episodes are cancelled, left out and counted. Groups that had begun come as they are,
            short or empty; rows that had not begun give none. None waits for all.
        deterministic: Sample in rounds (`rounds.py`), so that equal arguments give equal
            trajectories bit for bit, however long tools take, if the agent starts in an equal
            state (with nothing cached, say). Slower: each round waits for the slowest tool.
            A deadline depends on timing: what it leaves out may differ between runs.
        rewards: Reward functions besides the environment's own reward; see `rewards.py`.
        dynamic_sampling: Play as many of the rows, in their order, as it takes to have so many
            groups with spread; None plays all rows.
        hints: Whether the environment is asked for what only a teacher sees
            (`Trajectory.teacher_prompt_ids`).

    Raises:
        ConfigError: A value is out of its range.
    """

    group_size: int
    sampling: Sampling
    concurrency: int = 64
    seed: int = 0
    max_failed_episodes: int = 0
    max_waiting_groups: int = 16
    deadline_s: float | None = None
    deterministic: bool = False
    rewards: Sequence[Reward] = ()
    dynamic_sampling: DynamicSampling | None = None
    hints: bool = False

    def __post_init__(self) -> None:
        check_sampling_kind(self.sampling)
        check_at_least(
            1,
            group_size=self.group_size,
            concurrency=self.concurrency,
            max_waiting_groups=self.max_waiting_groups,
        )
        if self.deadline_s is not None:
            check_positive(deadline_s=self.deadline_s)

    def rows_at_first(self, rows: int) -> int:
        """How many of so many rows are to be played before any group is over."""
        wanted = self.dynamic_sampling
        return rows if wanted is None else min(wanted.groups, rows)
