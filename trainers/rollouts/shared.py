"""A step's rollouts: rows divided over processes, played by the current weights, put together.

Of n processes, each plays every n-th row by itself; then every process gets all groups, in the
order of the rows. Seeds derive from the row index among all rows, so the number of processes
changes neither what is played nor what is learned from it. With dynamic sampling each process wants
its share of the groups and replaces those without spread by rows of its own share, so there the
number of processes changes which rows are played.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from accelerate import Accelerator

from gymnast.agents.policy import PolicyAgent, PolicyWeights, sampling_seconds
from gymnast.trainers.base.stopping import Stopped, Stopping
from gymnast.trainers.distributed.processes import together
from gymnast.trainers.rollouts.environments import MakeEnvironment
from gymnast.trainers.rollouts.episodes import Workers
from gymnast.trainers.rollouts.journal import Journal
from gymnast.trainers.rollouts.many_episodes import (
    Rollouts,
    gather_groups,
    spread_metrics,
    stream_groups,
)
from gymnast.trainers.rollouts.metrics import Counts, nothing_finished, summarise
from gymnast.trainers.rollouts.schedule import Group
from gymnast.trainers.rollouts.settings import RolloutSettings

Row = Mapping[str, Any]
# Of the time in which episodes are waited for: with a request at the agent, and without one.
SAMPLING_S, WAITING_S = "time/rollout/sampling_s", "time/rollout/waiting_s"


class RolloutClock:
    """Measures how long an agent had requests, from when the clock is made.

    Args:
        agent: Whose requests they are.
    """

    def __init__(self, agent: PolicyAgent) -> None:
        self._agent = agent
        self._began, self._sampled = time.perf_counter(), sampling_seconds(agent)

    def read(self) -> dict[str, float]:
        """Return the seconds so far, with requests and without.

        {} where they are not known: the agent does not count them, or has never had a request in
        this process, because others ask its servers themselves.
        """
        passed, now = time.perf_counter() - self._began, sampling_seconds(self._agent)
        if not now or self._sampled is None:
            return {}
        sampling = min(passed, now - self._sampled)
        return {SAMPLING_S: sampling, WAITING_S: passed - sampling}


def mean_times(times: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over processes of what their clocks read; {} where one could not."""
    names = times[0] if all(times) else ()
    return {name: fmean(each[name] for each in times) for name in names}


@dataclass(frozen=True)
class _Share:
    """What one process played."""

    groups: list[Group]  # each with its row_index among all rows
    counts: Counts
    times: dict[str, float]


@dataclass(frozen=True)
class SharedRollouts:
    """Plays rows in all processes.

    Attributes:
        accelerator: This process's accelerator.
        agent: Acts in this process.
        make_env: Makes an environment.
        stopping: Whether the run is to stop: then the episodes under way are given up.
        workers: Who plays; None: this process.
        journal: Has the episodes that were played before, and gets the others; None: all are
            played, and kept nowhere.
    """

    accelerator: Accelerator
    agent: PolicyAgent
    make_env: MakeEnvironment
    stopping: Stopping = field(default_factory=Stopping)
    workers: Workers | None = None
    journal: Journal | None = None

    def hand_over(self, model: Any, version: int) -> None:
        """Give the agents of all processes new weights; returns when every one has them.

        A collective call: every process makes it.

        Args:
            model: The trained model, whole in each process.
            version: Of its weights.

        Raises:
            Exception: What an agent raised, in this process or another.
        """
        process = self.accelerator.process_index
        weights = PolicyWeights(model, process)
        if (send := getattr(self.agent, "send_weights", None)) is not None:
            first = together(self.accelerator, lambda: send(weights, version) if not process else 0)
            weights = replace(weights, sent=first[0])
        together(self.accelerator, lambda: self.agent.update_weights(weights, version))

    def agent_metrics(self) -> dict[str, float]:
        """What the agents of all processes counted since this was last asked, added up.

        A collective call: every process makes it. An agent without `metrics` counts nothing.
        """
        metrics: Callable[[], dict[str, float]] = getattr(self.agent, "metrics", dict)
        found = together(self.accelerator, metrics)
        return {name: sum(each.get(name, 0.0) for each in found) for name in found[0]}

    def collect(
        self,
        rows: Sequence[Row],
        settings: RolloutSettings,
        purpose: str,
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Rollouts:
        """Play this process's share of some rows; returns the rollouts of all processes.

        A collective call: every process makes it, with the same rows.

        Args:
            rows: The rows for all processes together.
            settings: How to play them. `concurrency` holds in each process; `max_failed_episodes`
                counts the episodes of all processes.
            purpose: What the rollouts are for, such as "step 3"; errors say it.
            on_progress: Called after every group of this process; see `collect`.

        Raises:
            UserCodeError: It was raised in more than `max_failed_episodes`.
            TooManyFailures: No episode finished.
            Stopped: The run is to stop, in any of the processes.
            Exception: What another process raised.
        """
        played = together(self.accelerator, lambda: self._play_share(rows, settings, on_progress))
        shares = [share for share in played if share is not None]
        if len(shares) < len(played):
            raise Stopped
        groups = [group for share in shares for group in share.groups]
        counts = [share.counts for share in shares]
        rollouts = as_rollouts(groups, counts, settings, purpose, len(rows))
        rollouts.metrics |= mean_times([share.times for share in shares])
        return rollouts

    def _play_share(
        self,
        rows: Sequence[Row],
        settings: RolloutSettings,
        on_progress: Callable[[int, int], None] | None,
    ) -> _Share | None:
        """Play every n-th row, n being the number of processes; None if the run is to stop."""
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        row_indices = range(process, len(rows), processes)
        own_rows = [rows[row_index] for row_index in row_indices]  # a dataset's slice is no list
        counts, settings = Counts(), _own_settings(settings, process, processes)
        given = (self.make_env, self.agent, own_rows, settings, counts)
        stream = stream_groups(*given, row_indices, self.workers, self.journal)
        try:
            with self.agent.awake():
                clock = RolloutClock(self.agent)
                groups = self.stopping.run(
                    gather_groups(stream, len(own_rows), settings, counts, on_progress)
                )
                times = clock.read()
        except Stopped:
            return None
        counts.rows_skipped = {row_indices[index] for index in counts.rows_skipped}
        for group in groups:
            group.row_index = row_indices[group.row_index]
        return _Share(list(groups), counts, times)


def as_rollouts(
    groups: Iterable[Group],
    counts: Sequence[Counts],
    settings: RolloutSettings,
    purpose: str,
    rows: int,
) -> Rollouts:
    """The rollouts of all processes, in the order of their rows.

    Args:
        groups: Of all processes.
        counts: Of each.
        settings: How they were played.
        purpose: What they are for; errors say it.
        rows: How many were there to be played.

    Raises:
        UserCodeError: It was raised in more than `max_failed_episodes`.
        TooManyFailures: There are rows, and no episode finished.
    """
    groups, total = sorted(groups, key=lambda group: group.row_index), _sum(counts)
    if len(total.user_errors) > settings.max_failed_episodes:
        raise total.user_errors[0]
    trajectories = [trajectory for group in groups for trajectory in group]
    metrics = summarise(trajectories, total) | spread_metrics(groups, settings)
    if rows and not trajectories:
        raise nothing_finished(purpose, len(groups) * settings.group_size, metrics)
    return Rollouts(groups, metrics)


def _own_settings(settings: RolloutSettings, process: int, processes: int) -> RolloutSettings:
    """Settings with which a process plays its share of the rows."""
    wanted = settings.dynamic_sampling
    if wanted is None:
        return settings
    own = len(range(process, wanted.groups, processes))
    return replace(settings, dynamic_sampling=replace(wanted, groups=own))


def _sum(parts: Sequence[Counts]) -> Counts:
    total = Counts()
    for part in parts:
        total.retried += part.retried
        total.left_out_for += part.left_out_for
        total.user_errors += part.user_errors
        total.rows_skipped |= part.rows_skipped
        total.finished += part.finished
    return total
