"""Gymnast's side: a job as `gymnast train` runs it, with every step timed."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gymnast.envs import Environment, can_solve
from gymnast.errors import NoSolution
from gymnast.trainers import Trainer, play_solution
from gymnast.trainers.build import build_trainer
from gymnast.types import Message, Trajectory
from learning_curve import Curve, Evaluation, Step
from learning_job import Job
from rollout_measure import cpu_seconds

Calls = list[tuple[str, str]]


def run(job: Job) -> Curve:
    """Train, evaluating before and after and as often as the config says."""
    env = job.task.make_env()
    watch = Watch(Solutions(env) if can_solve(env) else None)
    trainer: Trainer = build_trainer(job.config, observer=watch)
    trainer.train()
    return Curve(tuple(watch.steps), tuple(watch.evaluations))


class Solutions:
    """Which calls the rows of an environment need."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._known: dict[str, Calls | None] = {}

    def needed(self, row: Mapping[str, Any]) -> Calls | None:
        """The calls of the row's solution, None where it has none."""
        key = json.dumps(row, sort_keys=True, default=str)
        if key not in self._known:
            self._known[key] = self._play(row)
        return self._known[key]

    def share(self, episodes: Sequence[Trajectory]) -> float | None:
        """The share of episodes that made all calls of their row's solution, in its order.

        None where no solution needs a call.
        """
        needed = [(episode, self.needed(episode.row)) for episode in episodes]
        made = [_contains(calls_of(e.messages), calls) for e, calls in needed if calls]
        return sum(made) / len(made) if made else None

    def _play(self, row: Mapping[str, Any]) -> Calls | None:
        try:
            played = asyncio.run(play_solution(self._env, row))
        except NoSolution:
            return None
        return calls_of(played.messages)


def calls_of(messages: Sequence[Message]) -> Calls:
    """The calls after the last question, before which worked turns stand, in a comparable form."""
    questions = [n for n, message in enumerate(messages) if message["role"] == "user"]
    return [
        (call["function"]["name"], json.dumps(call["function"]["arguments"], sort_keys=True))
        for message in messages[max(questions, default=0) :]
        for call in message.get("tool_calls") or []
    ]


def _contains(made: Calls, needed: Calls) -> bool:
    """Whether the needed calls are among those made, in their order."""
    remaining = iter(made)
    return all(call in remaining for call in needed)


class Watch:
    """An observer that keeps rewards and times of steps and evaluations.

    Args:
        solutions: Of the environment; None where it has no `solve`.
    """

    def __init__(self, solutions: Solutions | None = None) -> None:
        self.steps: list[Step] = []
        self.evaluations: list[Evaluation] = []
        self._solutions = solutions
        self._wall_s = self._cpu_s = 0.0
        self._sampled = 0
        self._since = (0.0, 0.0)

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        """Start the clock."""
        self._begin()

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        """Nothing is kept of it."""

    def on_warmup_step(self, done: int, metrics: Mapping[str, float]) -> None:
        """Keep the time of a step without rollouts."""
        self._add(None)

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        """Keep a step's reward and time."""
        self._sampled += int(metrics["tokens/sampled"])
        self._add(metrics["reward/mean"])

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        """Keep an evaluation; the clock stands still meanwhile."""
        episodes = [episode for group in groups for episode in group]
        share = None if self._solutions is None else self._solutions.share(episodes)
        hopeful = [e.reward for e in episodes if not e.row.get("hopeless")]
        some = 0 < len(hopeful) < len(episodes)
        found = Evaluation(
            len(self.steps),
            self._wall_s,
            self._cpu_s,
            self._sampled,
            metrics["eval/reward/mean"],
            share,
            sum(hopeful) / len(hopeful) if some else None,
        )
        self.evaluations.append(found)
        print(f"evaluation: {found}", flush=True)
        self._begin()

    def on_end(self, summary: Mapping[str, float]) -> None:
        """Nothing is kept of it."""

    def _begin(self) -> None:
        self._since = time.perf_counter(), cpu_seconds()

    def _add(self, reward: float | None) -> None:
        wall, cpu = self._since
        self._wall_s += time.perf_counter() - wall
        self._cpu_s += cpu_seconds() - cpu
        self.steps.append(Step(reward, self._wall_s, self._cpu_s, self._sampled))
        print(f"step {len(self.steps)}: {self.steps[-1]}", flush=True)
        self._begin()
