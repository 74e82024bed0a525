"""A step's rollouts: divided over processes by rows, played by the current weights, put together.

Each process plays every so-manyth row alone; then all of them know all groups, in the order of the
rows. Seeds derive from a row's place among all rows, so how many processes there are changes
neither what is played nor what is learned from it.

Left out: how episodes are played (`trainers/rollouts/many_episodes.py`), and how processes meet
(`trainers/distributed/processes.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate import Accelerator

from gymnast.agents import TransformersAgent
from gymnast.agents.models.adapters import folded
from gymnast.trainers.base.stopping import Stopped, Stopping
from gymnast.trainers.distributed.processes import together
from gymnast.trainers.rollouts.many_episodes import MakeEnvironment, Rollouts, collect
from gymnast.trainers.rollouts.metrics import Counts, nothing_finished, summarise
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.trainers.rollouts.schedule import Group

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Share:
    """What one process played."""

    groups: list[Group]  # row_index is the place among all rows
    counts: Counts


@dataclass(frozen=True)
class SharedRollouts:
    """Plays rows in all processes.

    Attributes:
        accelerator: Of this process.
        agent: Who acts; adapters of its model are folded into the weights meanwhile.
        make_env: Makes an environment.
        concurrency: Episodes at once, in each process.
        deterministic: Sample in rounds.
        rewards: Reward functions besides the environment's own reward.
        stopping: Whether the run is to stop: then what is being played is given up.
    """

    accelerator: Accelerator
    agent: TransformersAgent
    make_env: MakeEnvironment
    concurrency: int
    deterministic: bool
    rewards: Sequence[Reward] = ()
    stopping: Stopping = field(default_factory=Stopping)

    def of(
        self, rows: Sequence[Row], what: str, *, max_failed_episodes: int = 0, **settings: Any
    ) -> Rollouts:
        """Play this process's share of some rows; returns the rollouts of all processes.

        A collective call: every process makes it, with the same rows.

        Args:
            rows: Of all processes.
            what: What they are for, in words.
            max_failed_episodes: In how many episodes of all processes the user's code may raise.
            **settings: Of `collect`.

        Raises:
            UserCodeError: It raised in more.
            TooManyFailures: No episode was finished.
            Stopped: The run is to stop, in any of the processes.
            Exception: What another process raised.
        """
        most = max_failed_episodes
        found = together(self.accelerator, lambda: self._unless_stopped(rows, most, settings))
        shares = [share for share in found if share is not None]
        if len(shares) < len(found):
            raise Stopped
        groups = sorted((g for share in shares for g in share.groups), key=lambda g: g.row_index)
        counts = _sum([share.counts for share in shares])
        if len(counts.user_errors) > most:
            raise counts.user_errors[0]
        trajectories = [trajectory for group in groups for trajectory in group]
        rollouts = Rollouts(groups, summarise(trajectories, counts))
        if rows and not trajectories:
            raise nothing_finished(what, len(rows) * settings["group_size"], rollouts.metrics)
        return rollouts

    def _unless_stopped(
        self, rows: Sequence[Row], most: int, settings: Mapping[str, Any]
    ) -> _Share | None:
        try:
            return self._share(rows, most, settings)
        except Stopped:
            return None

    def _share(self, rows: Sequence[Row], most: int, settings: Mapping[str, Any]) -> _Share:
        """Play every so-manyth row here; the other processes are not waited for."""
        counts = Counts()
        places = range(self.accelerator.process_index, len(rows), self.accelerator.num_processes)
        with folded(self.agent.model):
            self.agent.weights_changed()
            playing = collect(
                self.make_env,
                self.agent,
                [rows[place] for place in places],  # a dataset's slice is no list
                row_numbers=places,
                counts=counts,
                concurrency=self.concurrency,
                deterministic=self.deterministic,
                rewards=self.rewards,
                max_failed_episodes=most,
                **settings,
            )
            try:
                played = self.stopping.run(playing)
            finally:
                self.agent.wait_idle()  # a deadline, say, cancels amid a forward pass
                self.agent.weights_changed()  # they are about to, and the memory is training's
        counts.rows_skipped = {places[index] for index in counts.rows_skipped}
        return _Share([Group(p, group) for p, group in zip(places, played, strict=True)], counts)


def _sum(parts: Sequence[Counts]) -> Counts:
    total = Counts()
    for part in parts:
        total.retried += part.retried
        total.left_out_for += part.left_out_for
        total.user_errors += part.user_errors
        total.rows_skipped |= part.rows_skipped
        total.finished += part.finished
    return total
