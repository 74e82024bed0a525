"""Many episodes at once: groups of trajectories for a list of rows.

Every episode is a task of its own, so neither a slow tool nor a long answer makes another wait.
Which runs when is `schedule.py`; one with its attempts, `episodes.py`; how it
goes, `one_episode.py`; what is counted, `metrics.py`; what `deterministic`
does, `rounds.py`.
"""

import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from gymnast.agents.base import Agent
from gymnast.threads import in_background
from gymnast.trainers.data.inputs import check_rows_kind, check_sampling_kind
from gymnast.trainers.rollouts.episodes import Environments, Episodes, MakeEnvironment
from gymnast.trainers.rollouts.metrics import Counts, summarise
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.trainers.rollouts.rounds import Rounds
from gymnast.trainers.rollouts.schedule import Group, Limits, Schedule
from gymnast.types import Sampling, Trajectory

__all__ = ["Counts", "Group", "MakeEnvironment", "Rollouts", "collect", "stream"]


class Rollouts(list[Group]):
    """Groups, entry i for row i.

    Attributes:
        metrics: Means and counts over all episodes; see `metrics.py`.
    """

    def __init__(self, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        super().__init__(groups)
        self.metrics = metrics

    @property
    def trajectories(self) -> list[Trajectory]:
        """All of them, group by group."""
        return [trajectory for group in self for trajectory in group]

    def __repr__(self) -> str:
        episodes = self.trajectories
        mean = sum(t.reward for t in episodes) / len(episodes) if episodes else math.nan
        stops = Counter(t.stop_reason for t in episodes).most_common()
        ended = ", ".join(f"{reason}: {number}" for reason, number in stops)
        return (
            f"<Rollouts rows={len(self)} episodes={len(episodes)} mean_reward={mean:g} "
            f"stop_reasons={{{ended}}}>"
        )


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
    max_waiting_groups: int = 16,
    deadline_s: float | None = None,
    deterministic: bool = False,
    rewards: Sequence[Reward] = (),
    counts: Counts | None = None,
    row_numbers: Sequence[int] | None = None,
) -> AsyncGenerator[Group, None]:
    """Run `group_size` episodes of every row; yield each group when its last one ends.

    Whoever stops before the last group closes the stream (`contextlib.aclosing`), which cancels
    the episodes under way. A cancelled episode frees its place in the agent at once and cleans up;
    its environment is not used again. One that has not cleaned up after 10 s is left behind, with
    a warning.

    Sampling seeds derive from (seed, row index, member, attempt, turn), the environment's from
    (seed, row index): members of a group differ in sampling, never in the start.

    Args:
        make_env: Makes an environment; called at most `concurrency` times. They are reused
            through `reset`, and closed at the end.
        agent: Who acts.
        rows: The dataset rows; there may be many, and each is looked up when it begins.
        group_size: Episodes a row.
        sampling: How to sample; its own seed is not used.
        concurrency: How many episodes run at once.
        seed: Of this collection.
        max_failed_episodes: In how many episodes the user's code may raise.
        max_waiting_groups: No row begins while this many finished groups wait for the consumer;
            those that have begun go on.
        deadline_s: Seconds, from when the first group is asked for, after which what has not
            finished is cancelled, left out and counted. Groups that had begun come as they are,
            short or empty; rows that had not begun give none. None waits for all.
        deterministic: Sample in rounds, so that equal arguments give equal trajectories bit for
            bit, however long tools take, where the agent starts in an equal state (after
            `weights_changed`, say). Slower: each round waits for the slowest tool. A deadline
            is timing: what it leaves out may differ between runs.
        rewards: Reward functions besides the environment's own reward; see `rewards.py`.
        counts: Where to count what was retried, left out, skipped and finished.
        row_numbers: What the seeds of each row derive from in place of its index: where `rows` is
            a share of more rows, their places among all of them.

    Raises:
        UserCodeError: The first one, when there are more than `max_failed_episodes`.
        ConfigError: A number is out of its range; or the environment has fewer boxes than a round
            has episodes.
    """
    check_rows_kind(rows)
    check_sampling_kind(sampling)
    counts = counts if counts is not None else Counts()
    limits = Limits(len(rows), group_size, concurrency, max_waiting_groups, deadline_s)
    together = min(concurrency, limits.episodes) if deterministic else 1
    environments = Environments(make_env, together)
    rounds = Rounds(agent) if deterministic else None
    episodes = Episodes(
        environments=environments,
        agent=rounds or agent,
        rows=rows,
        row_numbers=range(len(rows)) if row_numbers is None else row_numbers,
        sampling=sampling,
        seed=seed,
        max_failed_episodes=max_failed_episodes,
        counts=counts,
        rewards=rewards,
    )
    schedule = Schedule(episodes.play, limits, counts, rounds.expect if rounds else None)
    schedule.start()
    try:
        while (group := await schedule.next_group()) is not None:
            yield group
    finally:
        await schedule.stop()
        if rounds is not None:
            await rounds.close()
        await in_background(environments.close)


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
    deadline_s: float | None = None,
    deterministic: bool = False,
    rewards: Sequence[Reward] = (),
    counts: Counts | None = None,
    row_numbers: Sequence[int] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Run `group_size` episodes of every row and return their groups, entry i for `rows[i]`.

    Takes and raises what `stream` does; `on_progress`, if given, is called with (episodes of whole
    groups, episodes in all) after every group.
    """
    check_rows_kind(rows)
    counts = counts if counts is not None else Counts()
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
        deadline_s=deadline_s,
        deterministic=deterministic,
        rewards=rewards,
        counts=counts,
        row_numbers=row_numbers,
    )
    done = 0
    async with aclosing(arriving):
        async for group in arriving:
            groups[group.row_index] = group
            done += group_size
            if on_progress is not None:
                on_progress(done, len(rows) * group_size)
    trajectories = [trajectory for group in groups for trajectory in group]
    return Rollouts(groups, summarise(trajectories, counts))
