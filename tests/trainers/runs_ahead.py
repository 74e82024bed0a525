"""Small runs that play ahead of training, by default with a copy of the model on the CPU."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.envs import Environment
from gymnast.trainers import Trainer
from gymnast.types import Sampling, Trajectory

ROWS = [{"prompt": f"Say {number}."} for number in range(100)]
TOKENIZER = tiny_tokenizer()
COPY = {"backend": "transformers", "device": "cpu"}
# Who samples: a copy of the model meanwhile, or the trained model in turn.
SAMPLERS = [pytest.param(COPY, id="copy"), pytest.param(None, id="trained")]


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
        "rows": ROWS,
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
    environment, rows = given.pop("environment"), given.pop("rows")
    model = given.pop("model", None) or tiny_model()
    return Trainer(model, TOKENIZER, environment, rows, **given)
