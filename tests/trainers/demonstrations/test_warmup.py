"""A warm-up learns from demonstrations before RL; what it does is seen, and kept."""

import json
from pathlib import Path
from typing import Any

import torch

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer, call, tool
from gymnast.trainers import Trainer
from gymnast.trainers.demonstrations.layout import trajectory_of
from gymnast.types import Sampling, Trajectory

ROWS = [{"prompt": word} for word in ("Go.", "Now.", "Then.")]


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


class Wrong(Door):
    """Whose solution does not do what is asked."""

    def solve(self, row: Any) -> Any:
        yield "in"


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
        "sampling": Sampling(max_new_tokens=24),
        "learning_rate": 3e-3,
        "group_size": 2,
        "rows_per_step": 2,
        "steps": 1,
        "observer": None,
        **settings,
    }
    environment, rows = small.pop("environment"), small.pop("rows")
    return Trainer(small.pop("model", None) or tiny_model(), tokenizer, environment, rows, **small)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def demonstration(renderer: Renderer, words: str = "in") -> Trajectory:
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": words}]
    return trajectory_of(messages, (), renderer)


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def test_a_model_that_knows_nothing_learns_to_use_a_tool(tokenizer: Any, tmp_path: Path) -> None:
    trainer = make_trainer(
        tokenizer,
        warmup={"demonstrations": "solve", "steps": 40, "rows_per_step": 2},
        rows=ROWS[:2],
        eval_rows=ROWS[2:],
        eval_sampling=Sampling(temperature=0.0, max_new_tokens=24),
        output_dir=tmp_path / "run",
    )
    summary = trainer.train()
    assert (summary["before"], summary["after_warmup"]) == (0.0, 1.0)
    evaluations = [line for line in lines(tmp_path / "run") if "eval/reward/mean" in line]
    places = [(line["step"], line.get("warmup/step")) for line in evaluations]
    assert places == [(0, None), (0, 40), (1, None)]


def test_every_step_of_it_is_a_line_and_an_event(tokenizer: Any, tmp_path: Path) -> None:
    sees = Sees()
    make_trainer(tokenizer, observer=sees, output_dir=tmp_path / "run").train()
    found = [line for line in lines(tmp_path / "run") if "warmup/loss" in line]
    assert [(line["step"], line["warmup/step"]) for line in found] == [(0, 1), (0, 2), (0, 3)]
    assert [step for step, _ in sees.warmup] == [1, 2, 3]
    assert sees.started["warmup_steps"] == 3
    losses = [line["warmup/loss"] for line in found]
    assert losses[0] > losses[1] > losses[2] > 0
    assert all(line["warmup/episodes"] == 2 and line["warmup/reward"] == 1 for line in found)
    assert all(line["warmup/learning_rate"] == 3e-3 for line in found)


def test_the_rollouts_of_both_first_evaluations_are_kept(tokenizer: Any, tmp_path: Path) -> None:
    make_trainer(tokenizer, eval_rows=ROWS[:1], output_dir=tmp_path / "run").train()
    names = {path.stem for path in (tmp_path / "run/rollouts").iterdir()}
    assert names == {"eval_00000", "eval_00000_warmup", "step_00001", "eval_00001"}
