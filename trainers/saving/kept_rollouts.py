"""Which rollouts of a run are written, and how much room they take.

    rollouts/step_00001.parquet   a step's;  rollouts/eval_00000.parquet   an evaluation's

The expected size is told twice: before the first step, from how long episodes may become, and after
the first file, from what it took.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

from gymnast.trainers.base.seeds import derive
from gymnast.trainers.saving.disk_space import shown_size
from gymnast.trainers.saving.rollout_files import Advantages, write_rollouts
from gymnast.trainers.saving.saved_runs import FOLDER
from gymnast.trainers.saving.settings import RolloutKeeping
from gymnast.types import Trajectory
from gymnast.visible import visible_logger

# More than random tokens take in `benchmarks/rollout_files.py`; sensible episodes take a tenth.
BYTES_PER_TOKEN = 20

Groups = Sequence[Sequence[Trajectory]]

logger = visible_logger(__name__)


class Expected(NamedTuple):
    """What a run is going to play.

    Attributes:
        steps: The numbers of the steps that are left.
        step_episodes: Of each.
        evaluation_episodes: Of each evaluation; 0 where there is none.
        evaluated_every: After every n-th step there is one, besides those before the first and
            after the last; 0 for these two alone.
        longest: Tokens of the longest episode.
        after_warmup: Whether there is one after a warm-up too.
    """

    steps: range
    step_episodes: int
    evaluation_episodes: int
    evaluated_every: int
    longest: int
    after_warmup: bool = False


class KeptRollouts:
    """Writes the rollouts of a run that are kept.

    Args:
        run: The run's folder; None writes and tells nothing.
        settings: Which are kept.
        tokenizer: Of their ids.
        seed: Of the run; draws those that are kept of a step.
    """

    def __init__(
        self,
        run: str | Path | None,
        settings: RolloutKeeping,
        tokenizer: Any = None,
        seed: int = 0,
    ) -> None:
        self._run = None if run is None or settings.keep == "none" else Path(run)
        self._settings = settings
        self._tokenizer, self._seed = tokenizer, seed
        self._expected: Expected | None = None

    def expect(self, expected: Expected) -> None:
        """Tell how much room the run's rollouts may take; warn where there is less."""
        episodes = self._episodes(expected)
        if self._run is None or not episodes:
            return
        self._expected = expected
        size = episodes * expected.longest * BYTES_PER_TOKEN
        logger.info(
            "rollouts: at most %s in all (%d episodes of at most %d tokens)",
            *(shown_size(size), episodes, expected.longest),
        )
        self._check_room(size, f"may take up to {shown_size(size)}")

    def save(self, step: int, groups: Groups, advantages: Advantages | None = None) -> None:
        """Write a step's rollouts, if they are kept.

        Args:
            step: Its number.
            groups: Of the step.
            advantages: As `write_rollouts` takes them.

        Raises:
            DiskFull: There is no room for them.
        """
        if step % self._settings.every_n == 0:
            path = self._write(f"step_{step:05d}", groups, advantages)
            if path is not None and self._expected is not None:
                self._tell_size(path.stat().st_size, step, self._expected)
                self._expected = None

    def save_evaluation(
        self,
        step: int,
        groups: Groups,
        others: Mapping[str, Groups] = MappingProxyType({}),
        *,
        after_warmup: bool = False,
    ) -> None:
        """Write an evaluation's rollouts, unless none are kept.

        Args:
            step: After which it was.
            groups: Of the run's own environment.
            others: Of further environments, by their names.
            after_warmup: Whether it was after a warm-up and before the first step.

        Raises:
            DiskFull: There is no room for them.
        """
        name = f"eval_{step:05d}{'_warmup' if after_warmup else ''}"
        self._write(name, groups, None)
        for environment, theirs in others.items():
            self._write(f"{name}_{environment}", theirs, None)

    def _write(self, name: str, groups: Groups, advantages: Advantages | None) -> Path | None:
        if self._run is None:
            return None
        path = self._run / FOLDER / f"{name}.parquet"
        if self._settings.sample is not None:
            seed = derive(self._seed, "rollouts", name)
            groups = sampled(groups, self._settings.sample, seed)
        write_rollouts(path, groups, tokenizer=self._tokenizer, advantages=advantages)
        return path

    def _tell_size(self, size: int, step: int, expected: Expected) -> None:
        """Tell what the rollouts of a run take, from the size of a step's."""
        total = size * self._episodes(expected) / self._most(expected.step_episodes)
        logger.info(
            "rollouts: those of step %d take %s, so those of the run take about %s",
            *(step, shown_size(size), shown_size(total)),
        )
        self._check_room(total - size, f"take about {shown_size(total)}")

    def _check_room(self, need: float, what: str) -> None:
        """Warn where the disk has less room than what is still to be written."""
        assert self._run is not None
        usage = shutil.disk_usage(self._run)
        if usage.total and need > usage.free:  # some file systems do not tell
            logger.warning(
                "output_dir: %s has %s free, and the rollouts of this run %s: free some space, or "
                "set rollouts.sample, rollouts.every_n or rollouts.keep=none",
                *(self._run, shown_size(usage.free), what),
            )

    def _episodes(self, expected: Expected) -> int:
        """How many episodes are going to be written, at most."""
        every, also = self._settings.every_n, expected.evaluated_every
        steps = sum(step % every == 0 for step in expected.steps)
        evaluations = 2 + expected.after_warmup  # before the first step and after the last
        evaluations += sum(step % also == 0 for step in expected.steps) if also else 0
        return steps * self._most(expected.step_episodes) + evaluations * self._most(
            expected.evaluation_episodes
        )

    def _most(self, episodes: int) -> int:
        sample = self._settings.sample
        return episodes if sample is None else min(episodes, sample)


def sampled(groups: Groups, most: int, seed: int) -> list[Sequence[Trajectory]]:
    """Some of the groups, each at its place; the others are empty.

    Groups are drawn and taken whole while they fit; the first one that does not ends the drawing.
    If it is the very first, its first members are taken.

    Args:
        groups: Of a step or an evaluation.
        most: How many trajectories are taken at most.
        seed: Of the drawing.
    """
    kept: list[Sequence[Trajectory]] = [[] for _ in groups]
    left = most
    drawn = [number for number, group in enumerate(groups) if len(group)]
    Random(seed).shuffle(drawn)
    for number in drawn:
        if len(groups[number]) > left:
            if left == most:
                kept[number] = groups[number][:most]
            break
        kept[number] = groups[number]
        left -= len(groups[number])
    return kept
