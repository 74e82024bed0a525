"""How episodes are collected: each setting with its default, its check and its documentation."""

from collections.abc import Sequence
from dataclasses import dataclass

from gymnast.trainers.base.settings import check_at_least, check_positive
from gymnast.trainers.data.inputs import check_sampling_kind
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.types import Sampling


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
