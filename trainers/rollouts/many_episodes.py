"""Many episodes at once: groups of trajectories for a list of rows.

Every episode is a task of its own, so neither a slow tool nor a long answer makes another wait.

    settings.py      what can be set
    environments.py  the pool of environments
    episodes.py      one member of one group, with its attempts
    schedule.py      which of them runs when
    rounds.py        what `deterministic` changes
    metrics.py       what is counted
"""

import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from typing import Any

from gymnast.agents.base import Agent
from gymnast.numbers import mean
from gymnast.trainers.conversations.play import SpeakingAgent
from gymnast.trainers.data.inputs import check_rows_kind
from gymnast.trainers.rollouts.environments import MakeEnvironment
from gymnast.trainers.rollouts.episodes import Players, Task, Workers
from gymnast.trainers.rollouts.journal import Journal, JournaledPlayers
from gymnast.trainers.rollouts.metrics import Counts, summarise
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.trainers.rollouts.rounds import Rounds
from gymnast.trainers.rollouts.schedule import Group, Schedule
from gymnast.trainers.rollouts.settings import DynamicSampling, RolloutSettings
from gymnast.types import Sampling, Trajectory

__all__ = ["Counts", "Group", "MakeEnvironment", "Rollouts", "collect", "stream"]


class Rollouts(list[Group]):
    """Groups, entry i for row i; with dynamic sampling, those of the rows that were played.

    Attributes:
        metrics: Means and counts over all episodes; see `metrics.py`.
    """

    def __init__(self, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        super().__init__(groups)
        self.metrics = metrics

    @property
    def trajectories(self) -> list[Trajectory]:
        """All trajectories, group by group."""
        return [trajectory for group in self for trajectory in group]

    @property
    def to_learn_from(self) -> list[Group]:
        """All groups; where dynamic sampling found some with spread, those."""
        return [group for group in self if group.has_spread] or list(self)

    def __repr__(self) -> str:
        episodes = self.trajectories
        average = mean([t.reward for t in episodes]) if episodes else math.nan
        stops = Counter(t.stop_reason for t in episodes).most_common()
        ended = ", ".join(f"{reason}: {number}" for reason, number in stops)
        return (
            f"<Rollouts rows={len(self)} episodes={len(episodes)} mean_reward={average:g} "
            f"stop_reasons={{{ended}}}>"
        )


def stream(
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
    hints: bool = False,
    dynamic_sampling: DynamicSampling | None = None,
    counts: Counts | None = None,
    row_indices: Sequence[int] | None = None,
    workers: Workers | None = None,
) -> AsyncGenerator[Group, None]:
    """Run `group_size` episodes of every row; yield each group when its last one ends.

    A consumer that stops before the last group closes the stream (`contextlib.aclosing`), which
    cancels the episodes under way. A cancelled episode frees its place in the agent at once and
    cleans up; its environment is not used again. One that has not cleaned up after 10 s is left
    behind, with a warning.

    `RolloutSettings` says more about the keywords from `group_size` to `rewards`.

    Args:
        make_env: Makes an environment; called at most `concurrency` times. They are reused
            through `reset`, and closed at the end.
        agent: Who acts.
        rows: The dataset rows; there may be many, and each is looked up when it begins.
        group_size: Episodes per row.
        sampling: How to sample; its own seed is not used.
        concurrency: How many episodes run at once.
        seed: All seeds derive from it.
        max_failed_episodes: In how many episodes the user's code may raise.
        max_waiting_groups: No row begins while this many finished groups wait for the consumer.
        deadline_s: Seconds after which unfinished episodes are cancelled; None waits for all.
        deterministic: Sample in rounds, so that equal arguments give equal trajectories.
        rewards: Reward functions besides the environment's own reward.
        hints: Whether the environment is asked for what only a teacher sees.
        dynamic_sampling: How many groups with spread are wanted; then only as many rows are played
            as it takes, in their order.
        counts: Where to count what was retried, left out, skipped and finished.
        row_indices: For each row, the row index that its seeds derive from. If `rows` is a share
            of more rows: their indices among all of them.
        workers: Who plays: `gymnast.trainers.RayWorkers`; by default this process. They are started
            for the stream and ended with it, unless they run already.

    Raises:
        UserCodeError: The first one, when there are more than `max_failed_episodes`.
        ConfigError: A number is out of its range; or the environment has fewer boxes than a round
            has episodes.
    """
    check_rows_kind(rows)
    settings = RolloutSettings(
        group_size=group_size,
        sampling=sampling,
        concurrency=concurrency,
        seed=seed,
        max_failed_episodes=max_failed_episodes,
        max_waiting_groups=max_waiting_groups,
        deadline_s=deadline_s,
        deterministic=deterministic,
        rewards=rewards,
        hints=hints,
        dynamic_sampling=dynamic_sampling,
    )
    counts = Counts() if counts is None else counts
    return stream_groups(make_env, agent, rows, settings, counts, row_indices, workers)


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
    hints: bool = False,
    dynamic_sampling: DynamicSampling | None = None,
    counts: Counts | None = None,
    row_indices: Sequence[int] | None = None,
    workers: Workers | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Run `group_size` episodes of every row and return their groups, entry i for `rows[i]`.

    With `dynamic_sampling`, the groups of the rows that were played are returned.

    Takes and raises what `stream` does; `on_progress`, if given, is called with (episodes of whole
    groups, episodes in all) after every group.
    """
    check_rows_kind(rows)
    settings = RolloutSettings(
        group_size=group_size,
        sampling=sampling,
        concurrency=concurrency,
        seed=seed,
        max_failed_episodes=max_failed_episodes,
        deadline_s=deadline_s,
        deterministic=deterministic,
        rewards=rewards,
        hints=hints,
        dynamic_sampling=dynamic_sampling,
    )
    counts = Counts() if counts is None else counts
    groups = stream_groups(make_env, agent, rows, settings, counts, row_indices, workers)
    return await gather_groups(groups, len(rows), settings, counts, on_progress)


async def gather_groups(
    stream: AsyncGenerator[Group, None],
    rows: int,
    settings: RolloutSettings,
    counts: Counts,
    on_progress: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Take all groups of a stream; entry i for row i.

    Args:
        stream: Yields the groups; closed at the end.
        rows: How many rows there are; one without a group gets an empty one, unless dynamic
            sampling decides which rows are played.
        settings: How the rows are played.
        counts: What was counted on the way.
        on_progress: Called as `collect` says.
    """
    dynamic = settings.dynamic_sampling is not None
    found: dict[int, Group] = {}
    to_play = settings.rows_at_first(rows)
    async with aclosing(stream):
        async for group in stream:
            found[group.row_index] = group
            to_play = min(to_play + (not group.has_spread), rows)
            if on_progress is not None:
                on_progress(len(found) * settings.group_size, to_play * settings.group_size)
    indices = sorted(found) if dynamic else range(rows)
    groups = [found.get(row_index, Group(row_index)) for row_index in indices]
    trajectories = [trajectory for group in groups for trajectory in group]
    metrics = summarise(trajectories, counts)
    return Rollouts(groups, metrics | spread_metrics(groups, settings))


def spread_metrics(groups: Sequence[Group], settings: RolloutSettings) -> dict[str, float]:
    """What dynamic sampling did; nothing without it.

        dynamic_sampling/rows             rows that were played
        dynamic_sampling/groups_alike     the share of their groups that had no spread
        dynamic_sampling/groups_replaced  groups without spread in whose place another row began
        dynamic_sampling/groups_missing   how many fewer groups with spread there are than wanted
        dynamic_sampling/tokens_in_vain   sampled tokens of the groups without spread

    Args:
        groups: Those of all rows that were played.
        settings: How they were played.
    """
    wanted = settings.dynamic_sampling
    if wanted is None:
        return {}
    alike = [group for group in groups if not group.has_spread]
    tokens = sum(trajectory.action_tokens for group in alike for trajectory in group)
    return {
        "dynamic_sampling/rows": len(groups),
        "dynamic_sampling/groups_alike": len(alike) / len(groups) if groups else 0.0,
        "dynamic_sampling/groups_replaced": max(0, len(groups) - wanted.groups),
        "dynamic_sampling/groups_missing": max(0, wanted.groups - len(groups) + len(alike)),
        "dynamic_sampling/tokens_in_vain": tokens,
    }


async def stream_groups(
    make_env: MakeEnvironment,
    agent: Agent,
    rows: Sequence[Mapping[str, Any]],
    settings: RolloutSettings,
    counts: Counts,
    seed_indices: Sequence[int] | None = None,
    workers: Workers | None = None,
    journal: Journal | None = None,
) -> AsyncGenerator[Group, None]:
    """What `stream` does, with its settings as one value.

    Args:
        make_env: Makes an environment.
        agent: Who acts.
        rows: The dataset rows.
        settings: How to play them.
        counts: Where to count.
        seed_indices: For each row, the row index that its seeds derive from; None: its own.
        workers: Who plays; None: this process.
        journal: Has the episodes that were played before, and gets the others.
    """
    in_tokens = not isinstance(agent, SpeakingAgent)  # no endpoint repeats what it says
    rounds = Rounds(agent) if settings.deterministic and in_tokens else None
    at_first = settings.rows_at_first(len(rows))  # and never more at once
    in_a_round = min(settings.concurrency, at_first * settings.group_size)
    seed_indices = range(len(rows)) if seed_indices is None else seed_indices
    given = (make_env, rounds or agent, rows, seed_indices, settings, counts)
    task = Task(*given, waiting_together=in_a_round if rounds else 1)
    on_live = rounds.expect if rounds else None
    with workers or nullcontext():
        players: Players = task.here() if workers is None else workers.players(task)
        if journal is not None:
            players = JournaledPlayers(players, journal, seed_indices)
        schedule = Schedule(players.play, len(rows), settings, counts, on_live)
        schedule.start()
        try:
            while (group := await schedule.next_group()) is not None:
                yield group
        finally:
            await schedule.stop()
            if rounds is not None:
                await rounds.close()
            await players.close()
