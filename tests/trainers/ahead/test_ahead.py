"""Runs that play while they train: with a copy of the model on the CPU, and tools that wait."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.envs import Environment
from gymnast.trainers import Trainer, make_algorithm
from gymnast.types import Sampling, Trajectory

ROWS = [{"prompt": f"Say {number}."} for number in range(100)]
TOKENIZER = tiny_tokenizer()
COPY = {"backend": "transformers", "device": "cpu"}


class SmallLetters(Environment):
    """The share of small letters in the answer; waits before it begins."""

    wait_s = 0.0

    async def setup(self, row: Any) -> None:
        await asyncio.sleep(self.wait_s)

    def reward(self, episode: Any) -> float:
        text = episode.answer
        return sum(letter in "abcdefghijklmnopqrstuvwxyz" for letter in text) / max(1, len(text))


class Keeps:
    """Keeps what steps and evaluations had."""

    def __init__(self) -> None:
        self.metrics: list[Mapping[str, float]] = []
        self.rows: list[list[int]] = []
        self.sizes: list[list[int]] = []
        self.evaluated: list[set[int]] = []
        self.progress: list[tuple[int, int, int]] = []

    def on_start(self, trainer_info: Mapping[str, Any]) -> None: ...

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        self.progress.append((step, done, total))

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self.metrics.append(metrics)
        self.rows.append([group.row_index for group in groups])
        self.sizes.append([len(group) for group in groups])

    def on_evaluation(
        self, step: int, metrics: Mapping[str, float], groups: Sequence[Sequence[Trajectory]]
    ) -> None:
        self.evaluated.append(
            {span.version for group in groups for each in group for span in each.versions}
        )

    def on_end(self, summary: Mapping[str, float]) -> None: ...


def make_trainer(**settings: Any) -> Trainer:
    small: dict[str, Any] = {
        "environment": SmallLetters,
        "agent": COPY,
        "max_staleness": 1,
        "sampling": Sampling(max_new_tokens=8),
        "group_size": 4,
        "rows_per_step": 3,
        "steps": 5,
        "learning_rate": 1e-3,
        "observer": None,
    }
    given = small | settings
    return Trainer(tiny_model(), TOKENIZER, given.pop("environment"), ROWS, **given)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gymnast-ahead"]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_steps_are_played_while_others_are_learned_from(most: int) -> None:
    kept = Keeps()
    make_trainer(max_staleness=most, steps=6, observer=kept, eval_rows=ROWS[:2]).train()
    assert kept.sizes == [[4, 4, 4]] * 6
    staleness = [metrics["staleness/max"] for metrics in kept.metrics]
    assert staleness[0] == 0 and max(staleness) == most  # the rows of the first steps begin at once
    rows = sorted(row for rows in kept.rows for row in rows)
    assert rows == list(range(18))  # none is lost, and none comes twice
    assert [m["staleness/groups_under_way"] for m in kept.metrics] == [
        3 * min(most, left) for left in range(5, -1, -1)
    ]
    assert kept.evaluated == [{0}, {6}]
    assert threads() == []


def test_ratios_compare_with_the_trainer_before_the_update_and_weights_with_the_engine() -> None:
    kept = Keeps()
    trainer = make_trainer(observer=kept)
    trainer.train()
    for metrics in kept.metrics:
        assert metrics["ratio/min"] == metrics["ratio/max"] == 1  # one optimisation step
        stale = metrics["staleness/max"] > 0
        assert (metrics["engine/logprob_difference"] > 1e-3) == stale
        assert "engine/capped" in metrics
    importance = trainer.learner.algorithm.importance
    assert importance is not None and (importance.level, importance.cap) == ("token", 2.0)


def test_what_the_user_sets_of_importance_stays() -> None:
    for given in (
        make_algorithm("grpo", importance_cap=5.0, importance_level="sequence"),
        make_algorithm("cispo"),
    ):
        assert make_trainer(algorithm=given).learner.algorithm == given
    assert make_trainer(max_staleness=0).learner.algorithm.importance is None
