"""A dry run: all that a run loads is loaded, a few episodes are played, and nothing is written.

    load      what `gymnast train` loads, with the same checks            (build.py)
    prompts   those of the first rows, one of them token by token         (dry_runs/prompts.py)
    episodes  one alone, then some groups together, with their seconds
    update    forward and backward passes from these; gradients are dropped, no weight changes
    report    what a step takes, and what is odd                          (dry_runs/oddities.py)

The episodes are those that the first step of the run would play.
"""

import math
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gymnast.agents.loading.load import TINY
from gymnast.agents.policy import kv_beside_model, samples_while_training
from gymnast.errors import ConfigError, NotEnoughMemory, TooManyFailures
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.data.rows import Row
from gymnast.trainers.dry_runs.costs import Costs
from gymnast.trainers.dry_runs.oddities import (
    NO_REWARD,
    UNSCORED,
    Batch,
    Oddity,
    of_episodes,
    of_prompts,
)
from gymnast.trainers.dry_runs.prompts import Prompt, scan_prompts
from gymnast.trainers.dry_runs.report import Report
from gymnast.trainers.dry_runs.solution import of_solution
from gymnast.trainers.learner.memory.choice import Choice, kv_warning, memory_line
from gymnast.trainers.reporting.lines import missing
from gymnast.trainers.reporting.trackers import make_trackers
from gymnast.trainers.rollouts.schedule import Group
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.trainers.saving.run_folder import holds_results
from gymnast.trainers.trainer import Trainer
from gymnast.types import Trajectory

EPISODES = 16  # are played together at least, in whole groups of at most so many


class DryRunObserver(Protocol):
    """Is told of what comes before the report."""

    def on_prompt(self, prompt: Prompt) -> None:
        """The prompt of the first row that fits."""
        ...

    def on_episode(self, episode: Trajectory) -> None:
        """The first episode."""
        ...


def dry_run(config: RunConfig, *, observer: DryRunObserver | None = None) -> Report:
    """Try a run without making it: nothing is written, and no weight is changed.

    Args:
        config: The run.
        observer: Is told what comes of it on the way.

    Raises:
        UsageError: Something does not hold, as in training; or there are several processes.
        UserCodeError: The environment's own code raised.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"--dry-run: needs one process, and was launched in {os.environ['WORLD_SIZE']}; leave "
            "out `accelerate launch` or `torchrun`"
        )
    make_trackers(config.trackers, config.output_dir)  # whether they can be made
    trainer = build_trainer(config.model_copy(update={"output_dir": None, "trackers": {}}))
    oddities = _of_folder(config.output_dir)
    oddities += [Oddity("settings", sentence) for sentence in trainer.unusual]
    oddities += [Oddity(UNSCORED, sentence) for sentence in trainer.unscored()]
    with ExitStack() as stack:
        stack.enter_context(trainer.shared.workers or nullcontext())
        choice = _memory(trainer, oddities)
        stack.enter_context(trainer.learner.joined())
        trainer.shared.hand_over(trainer.model, trainer.version)
        return _tried(trainer, choice, oddities, observer, config)


def _tried(
    trainer: Trainer,
    choice: Choice | None,
    oddities: list[Oddity],
    observer: DryRunObserver | None,
    config: RunConfig,
) -> Report:
    """Look at prompts, play, compute an update, and say what came of it."""
    settings = replace(
        trainer.of_steps, seed=derive(trainer.seed, "step", 1), dynamic_sampling=None
    )
    env = trainer.shared.make_env()
    try:
        prompts = scan_prompts(env, trainer.rows, settings.seed)
    finally:
        env.close()
    if observer is not None and prompts.first is not None:
        observer.on_prompt(prompts.first)
    places = [place for place in range(prompts.rows) if place not in prompts.too_long]
    members = min(trainer.group_size, EPISODES)
    rows = [trainer.rows.row(place) for place in places[: math.ceil(EPISODES / members)]]
    first = _play(trainer, rows[:1], replace(settings, group_size=1), oddities)
    if observer is not None and first.episodes:
        observer.on_episode(first.episodes[0])
    played = _play(trainer, rows, replace(settings, group_size=members), oddities)
    learned = _learn(trainer, played.groups, oddities) if choice is not None else _Learned()
    metrics = played.metrics | learned.metrics | trainer.learner.outcome_metrics(played.groups)
    batch = Batch(played.groups, metrics, prompts.first.stop_ids if prompts.first else {})
    of_batch = of_episodes(batch, trainer.advisor.facts)
    if rows and not settings.rewards and any(each.cause == NO_REWARD for each in of_batch):
        of_batch = [*_of_solution(trainer, rows[0], settings.seed), *of_batch]
    return Report(
        agent=type(trainer.agent).__name__,
        prompts=prompts,
        first=first.episodes[0] if first.episodes else None,
        groups=played.groups,
        metrics=metrics,
        warmup_steps=trainer.warmup.steps,
        costs=_costs(trainer, choice, first, played, learned, config),
        oddities=[
            *oddities,
            *of_prompts(prompts, trainer.sampling.max_new_tokens),
            *of_batch,
        ],
        untrained=config.model.name == TINY,
    )


def _of_solution(trainer: Trainer, row: Row, seed: int) -> list[Oddity]:
    env = trainer.shared.make_env()
    try:
        return list(of_solution(env, row, seed))
    finally:
        env.close()


@dataclass(frozen=True)
class _Played:
    """Episodes that were played together, without groups of none."""

    groups: Sequence[Group]
    metrics: dict[str, float]
    seconds: float

    @property
    def episodes(self) -> list[Trajectory]:
        return [episode for group in self.groups for episode in group]


@dataclass(frozen=True)
class _Learned:
    """An update that was computed; without metrics, none was."""

    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def _costs(
    trainer: Trainer,
    choice: Choice | None,
    first: _Played,
    played: _Played,
    learned: _Learned,
    config: RunConfig,
) -> Costs:
    return Costs(
        episodes=len(played.episodes),
        played_s=played.seconds,
        first_s=first.seconds,
        tokens=sum(episode.action_tokens for episode in played.episodes),
        learned=int(learned.metrics.get("episodes/with_gradient", 0)),
        learned_s=learned.seconds,
        step_episodes=trainer.rows_per_step * trainer.group_size,
        steps=trainer.steps,
        ahead=config.trainer.max_staleness > 0 and samples_while_training(trainer.agent),
        memory="" if choice is None else _memory_line(trainer, choice),
        memory_bytes=None if choice is None else choice.estimate.total,
    )


def _of_folder(output_dir: str | None) -> list[Oddity]:
    """What is odd about where the run is to be written; it is only looked at."""
    if output_dir is None:
        return []
    folder = Path(output_dir).absolute()
    if holds_results(folder):
        text = (
            f"{shown_path(folder)} already holds a run, so this one would be refused: go on with "
            "it by --resume, remove it, or name another folder (output_dir=...)"
        )
        return [Oddity("output folder", text)]
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if there.is_dir() and os.access(there, os.W_OK):
        return []
    text = f"{shown_path(there)} cannot be written to: name another folder (output_dir=...)"
    return [Oddity("output folder", text)]


def _memory(trainer: Trainer, oddities: list[Oddity]) -> Choice | None:
    """How steps are made, by the memory there is; None where they do not fit."""
    longest = trainer.longest_episode or trainer.agent.context_length
    episodes = trainer.rows_per_step * trainer.group_size
    try:
        choice = trainer.learner.prepare(trainer.longest_episode, episodes * longest)
    except NotEnoughMemory as error:
        oddities.append(Oddity("memory", str(error)))
        return None
    room, budget = trainer.learner.memory.room, kv_beside_model(trainer.agent)
    if warning := kv_warning(choice, room, budget):
        oddities.append(Oddity("memory", warning))
    return choice


def _memory_line(trainer: Trainer, choice: Choice) -> str:
    return memory_line(choice, trainer.learner.memory.room, kv_beside_model(trainer.agent))


def _play(
    trainer: Trainer, rows: Sequence[Row], settings: RolloutSettings, oddities: list[Oddity]
) -> _Played:
    """Play some rows; none where no episode could be finished."""
    started = time.perf_counter()
    try:
        played = trainer.shared.collect(rows, settings, "the dry run")
    except TooManyFailures as error:
        oddities.append(Oddity("left out", str(error)))
        return _Played([], {}, time.perf_counter() - started)
    if left_out := missing(played.metrics).strip():
        text = f"{left_out}: the warnings above say why; mend it, or training goes without them"
        oddities.append(Oddity("left out", text))
    seconds = time.perf_counter() - started
    return _Played([group for group in played if group], played.metrics, seconds)


def _learn(trainer: Trainer, groups: Sequence[Group], oddities: list[Oddity]) -> _Learned:
    """Compute an update, after one of the first group alone, which takes longer."""
    if not groups:
        return _Learned()
    try:
        trainer.learner.try_update(groups[:1])
        started = time.perf_counter()
        metrics = trainer.learner.try_update(groups)
        seconds = time.perf_counter() - started
    except NotEnoughMemory as error:
        oddities.append(Oddity("memory", str(error)))
        return _Learned()
    if metrics["updates/skipped"]:
        oddities.append(Oddity("not finite", _NOT_FINITE))
    if not metrics["episodes/with_gradient"]:
        oddities.append(Oddity("masked", _MASKED))
    return _Learned(metrics, seconds)


_NOT_FINITE = (
    "the loss or the gradient of these rollouts is not finite, so training would skip such a "
    "step: set model.dtype to float32"
)
_MASKED = (
    "every rollout ended in a way that algorithm.masked_stop_reasons leaves out of the loss, so "
    "there is nothing to learn from: raise the limit that ended them, or shorten the list"
)
