"""Gymnast's side: the main job as `gymnast train` runs it, with every step timed."""

import time
from collections.abc import Mapping
from typing import Any

from gymnast.trainers import Trainer
from gymnast.trainers.build import build_trainer
from learning_job import Curve, Job, Step
from rollout_measure import cpu_seconds


def run(job: Job) -> Curve:
    """Train, evaluating before and after."""
    watch = _Watch()
    trainer: Trainer = build_trainer(job.config, observer=watch)
    summary = trainer.train()
    return Curve(summary["before"], summary["after"], tuple(watch.steps))


class _Watch:
    """An observer that keeps the reward and the time of every step."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._wall_s = self._cpu_s = 0.0
        self._since = (0.0, 0.0)

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        self._begin()

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        pass

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        wall, cpu = self._since
        self._wall_s += time.perf_counter() - wall
        self._cpu_s += cpu_seconds() - cpu
        self.steps.append(Step(metrics["reward/mean"], self._wall_s, self._cpu_s))
        print(f"step {step}: reward {self.steps[-1].reward:.3f}, {self._wall_s:.0f} s", flush=True)
        self._begin()

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self._begin()

    def on_end(self, summary: Mapping[str, float]) -> None:
        pass

    def _begin(self) -> None:
        self._since = time.perf_counter(), cpu_seconds()
