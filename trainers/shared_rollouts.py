"""A step's rollouts: divided over processes by rows, played by the current weights, put together.

Each process plays every so-manyth row alone; then all of them know all groups, in the order of the
rows. Seeds derive from a row's place among all rows, so how many processes there are changes
neither what is played nor what is learned from it.

Left out: how episodes are played (`trainers/collect.py`), and how processes meet
(`trainers/processes.py`).
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from accelerate import Accelerator

from gymnast.agents import TransformersAgent
from gymnast.agents.adapters import folded
from gymnast.trainers.collect import MakeEnvironment, Rollouts, collect
from gymnast.trainers.processes import together
from gymnast.trainers.rewards import Reward
from gymnast.trainers.rollout_metrics import Counts, nothing_finished, summarise
from gymnast.trainers.schedule import Group

T = TypeVar("T")
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
    """

    accelerator: Accelerator
    agent: TransformersAgent
    make_env: MakeEnvironment
    concurrency: int
    deterministic: bool
    rewards: Sequence[Reward] = ()

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
            Exception: What another process raised.
        """
        most = max_failed_episodes
        shares = together(self.accelerator, lambda: self._share(rows, most, settings))
        groups = sorted((g for share in shares for g in share.groups), key=lambda g: g.row_index)
        counts = _sum([share.counts for share in shares])
        if len(counts.user_errors) > most:
            raise counts.user_errors[0]
        trajectories = [trajectory for group in groups for trajectory in group]
        rollouts = Rollouts(groups, summarise(trajectories, counts))
        if rows and not trajectories:
            raise nothing_finished(what, len(rows) * settings["group_size"], rollouts.metrics)
        return rollouts

    def _share(self, rows: Sequence[Row], most: int, settings: Mapping[str, Any]) -> _Share:
        """Play every so-manyth row here; the other processes are not waited for."""
        counts = Counts()
        places = range(self.accelerator.process_index, len(rows), self.accelerator.num_processes)
        with folded(self.agent.model):
            self.agent.weights_changed()
            played = _run(
                collect(
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
            )
            self.agent.wait_idle()  # a deadline cancels amid a forward pass
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


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where a loop is running already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, "gymnast-trainer") as pool:
        return pool.submit(asyncio.run, coroutine).result()
