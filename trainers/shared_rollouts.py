"""One collection of rollouts, divided over processes by rows.

Each process plays every so-manyth row alone; then all of them know all groups, in the order of the
rows. Seeds derive from a row's place among all rows, so how many processes there are changes
neither what is played nor what is learned from it.

Left out: how episodes are played (`trainers/collect.py`), and how processes meet
(`trainers/processes.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator

from gymnast.trainers.collect import Rollouts
from gymnast.trainers.processes import together
from gymnast.trainers.rollout_metrics import Counts, summarise
from gymnast.trainers.schedule import Group

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Share:
    """What one process played."""

    groups: list[Group]  # row_index is the place among all rows
    counts: Counts


def divide(
    accelerator: Accelerator,
    rows: Sequence[Row],
    play: Callable[[Sequence[Row], Sequence[int], Counts], Rollouts],
    *,
    max_failed_episodes: int,
) -> Rollouts:
    """Play this process's share of some rows; returns the groups and metrics of all processes.

    A collective call: every process makes it, with the same rows.

    Args:
        accelerator: Of this process.
        rows: Of all processes.
        play: Plays some of the rows, given their places among all and where to count.
        max_failed_episodes: In how many episodes of all processes the user's code may raise.

    Raises:
        UserCodeError: It raised in more.
        Exception: What `play` raised in any process.
    """

    def work() -> _Share:
        counts = Counts()
        places = range(accelerator.process_index, len(rows), accelerator.num_processes)
        played = play([rows[place] for place in places], places, counts)
        counts.rows_skipped = {places[index] for index in counts.rows_skipped}
        groups = [Group(place, group) for place, group in zip(places, played, strict=True)]
        return _Share(groups, counts)

    shares = together(accelerator, work)
    groups = sorted((g for share in shares for g in share.groups), key=lambda g: g.row_index)
    counts = _sum([share.counts for share in shares])
    if len(counts.user_errors) > max_failed_episodes:
        raise counts.user_errors[0]
    trajectories = [trajectory for group in groups for trajectory in group]
    return Rollouts(groups, summarise(trajectories, counts))


def _sum(parts: Sequence[Counts]) -> Counts:
    total = Counts()
    for part in parts:
        total.retried += part.retried
        total.left_out_for += part.left_out_for
        total.user_errors += part.user_errors
        total.rows_skipped |= part.rows_skipped
        total.finished += part.finished
    return total
