"""Runs with a warm-up, small and quick: what the tests of demonstrations share."""

import json
from pathlib import Path
from typing import Any

import torch

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer, call, tool
from gymnast.trainers import Trainer
from gymnast.trainers.data.rows import Row, RowSource
from gymnast.trainers.demonstrations.layout import trajectory_of
from gymnast.types import Sampling, Trajectory

ROWS = [{"prompt": word} for word in ("Go.", "Now.", "Then.")]
SMALL: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


class Door(Environment):
    """Open the door, then say so: nothing that an untrained model does by chance."""

    @tool
    def open_door(self) -> str:
        """Open the door."""
        return "open"

    def reward(self, episode: Any) -> float:
        called = [made.name for made in episode.tool_calls]
        return float(called == ["open_door"] and episode.answer == "in")

    def solve(self, row: Any) -> Any:
        [result] = yield call("open_door")
        assert result["content"] == "open"
        yield "in"


class Listed(RowSource):
    """Rows in the order of a list."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def row(self, position: int) -> Row:
        return self._rows[position % len(self._rows)]


class Sees:
    """Keeps what it is told of the warm-up."""

    def __init__(self) -> None:
        self.warmup: list[tuple[int, dict[str, float]]] = []
        self.started: dict[str, Any] = {}

    def on_start(self, trainer_info: Any) -> None:
        self.started = dict(trainer_info)

    def on_rollouts(self, step: int, done: int, total: int) -> None: ...

    def on_warmup_step(self, step: int, metrics: Any) -> None:
        self.warmup.append((step, dict(metrics)))

    def on_step(self, step: int, metrics: Any, groups: Any) -> None: ...

    def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None: ...

    def on_end(self, summary: Any) -> None: ...


def make_trainer(tokenizer: Any, **settings: Any) -> Trainer:
    small: dict[str, Any] = {
        "environment": Door,
        "rows": ROWS,
        "warmup": {"demonstrations": "solve", "steps": 3, "rows_per_step": 2},
        "sampling": Sampling(max_new_tokens=8),
        "learning_rate": 3e-3,
        "group_size": 2,
        "rows_per_step": 2,
        "steps": 1,
        "observer": None,
        **settings,
    }
    environment, rows = small.pop("environment"), small.pop("rows")
    return Trainer(
        small.pop("model", None) or tiny_model(**SMALL), tokenizer, environment, rows, **small
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def demonstration(renderer: Renderer, words: str = "in") -> Trajectory:
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": words}]
    return trajectory_of(messages, (), renderer)


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters()]
