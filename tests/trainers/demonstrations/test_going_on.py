"""What a warm-up leaves behind: RL keeps what it taught, and a stopped one goes on."""

import copy
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from clocks import without_clocks
from gymnast.agents import load_model
from gymnast.trainers import Kl, Trainer, make_algorithm
from warmup_runs import ROWS, Door, Sees, lines, make_trainer, weights


@pytest.mark.parametrize(
    "optimizer", ["adamw", {"name": "torch.optim:SGD", "momentum": 0.9}, "torch.optim:Adafactor"]
)
def test_it_goes_on_where_it_was_stopped_bit_for_bit(
    optimizer: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Stopped amid the warm-up, after it, and amid RL; with a reference that has to be kept."""
    settings: dict[str, Any] = {
        "algorithm": make_algorithm("grpo", kl=Kl(0.1), demonstration_weight=0.5),
        "eval_rows": ROWS[2:],
        "steps": 2,
        "optimizer": optimizer,
        "deterministic": True,
        "checkpoint_every_steps": 1,
    }
    whole = make_trainer(tokenizer, output_dir=tmp_path / "whole", **settings)
    whole.train()
    stopped = Stops(after=[2, 3, 4])
    for _ in range(4):
        parted = make_trainer(
            tokenizer, output_dir=tmp_path / "parted", observer=stopped, **settings
        )
        stopped.trainer = parted
        summary = parted.train(resume=stopped.count > 0)
    assert summary["stopped_by"] == "steps" and stopped.after == []
    assert all(map(torch.equal, weights(whole), weights(parted)))
    written = [list(map(without_clocks, lines(tmp_path / name))) for name in ("whole", "parted")]
    assert written[0] == written[1]


def test_a_run_that_goes_on_with_a_shorter_warm_up_can_be_stopped_before_its_first_step(
    tokenizer: Any, tmp_path: Path
) -> None:
    class StopsAtAnEvaluation(Sees):
        def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    def go_on(observer: Any, steps: int, *, resume: bool) -> str:
        trainer = make_trainer(
            tokenizer,
            warmup={"demonstrations": "solve", "steps": steps, "rows_per_step": 2},
            eval_rows=ROWS[2:],
            output_dir=tmp_path / "run",
            observer=observer,
        )
        stopped_by: str = trainer.train(resume=resume)["stopped_by"]
        return stopped_by

    assert go_on(Stops(after=[2]), 3, resume=False) == "Ctrl-C"
    assert go_on(StopsAtAnEvaluation(), 1, resume=True) == "Ctrl-C"
    assert go_on(None, 1, resume=True) == "steps"


class Stops(Sees):
    """Asks the run to stop after some of its steps, those of the warm-up included."""

    def __init__(self, after: list[int]) -> None:
        super().__init__()
        self.after, self.count = after, 0
        self.trainer: Trainer | None = None

    def on_warmup_step(self, step: int, metrics: Any) -> None:
        self._count()

    def on_step(self, step: int, metrics: Any, groups: Any) -> None:
        self._count()

    def _count(self) -> None:
        self.count += 1
        if self.after and self.count == self.after[0]:
            del self.after[0]
            os.kill(os.getpid(), signal.SIGINT)


def test_rl_begins_with_a_fresh_optimizer_and_the_warm_model_as_its_reference(
    tokenizer: Any,
) -> None:
    """As if the warm model had been saved, and loaded by another run."""
    algorithm = make_algorithm("grpo", kl=Kl(0.1))
    warm = make_trainer(tokenizer, algorithm=algorithm, steps=2)
    seen: list[Any] = []
    step = warm.train_step

    def keeping() -> None:
        if not seen:
            seen.append(copy.deepcopy(warm.model))
        step()

    warm.train_step = keeping  # type: ignore[method-assign]
    warm.train()
    loaded = make_trainer(
        tokenizer,
        model=seen[0],
        algorithm=make_algorithm("grpo", kl=Kl(0.1)),
        steps=2,
        warmup=None,
        scale_by_teaching=True,
    )
    loaded.train()
    assert all(map(torch.equal, weights(warm), weights(loaded)))


class SomeLetters(Door):
    """Episodes of two of three rows may differ; those of the last one never do."""

    def reward(self, episode: Any) -> float:
        if self.row["prompt"] == ROWS[-1]["prompt"]:
            return 0.0
        return super().reward(episode) + len(set(episode.answer)) / 100


class Moves(Sees):
    """Measures how far each step moves the weights, and what share of its episodes teach."""

    def __init__(self) -> None:
        super().__init__()
        self.trainer: Any = None
        self.before: list[torch.Tensor] = []
        self.moved: list[float] = []
        self.metrics: list[dict[str, float]] = []

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        self.before = weights(self.trainer)

    def on_step(self, step: int, metrics: Any, groups: Any) -> None:
        now = weights(self.trainer)
        squares = [(new - old).pow(2).sum() for new, old in zip(now, self.before, strict=True)]
        self.moved.append(float(sum(squares)) ** 0.5)
        self.metrics.append(dict(metrics))


def moved_by_rl(tokenizer: Any, **settings: Any) -> Moves:
    """Two steps of RL at a learning rate of 1e-3, of which each has an episode in three rows."""
    moves = Moves()
    given = {"environment": SomeLetters, "rows_per_step": 3, "group_size": 4, "steps": 2}
    given |= {"learning_rate": 1e-3, "observer": moves, "deterministic": True}
    moves.trainer = make_trainer(tokenizer, **(given | settings))
    moves.trainer.train()
    return moves


@pytest.mark.parametrize("optimizer", ["adamw", "torch.optim:Adafactor", "torch.optim:RMSprop"])
def test_a_step_of_rl_is_as_long_as_its_batch_teaches(optimizer: Any, tokenizer: Any) -> None:
    """An optimizer without moments makes steps of one length, however little a batch teaches."""
    scaled = moved_by_rl(tokenizer, optimizer=optimizer)
    whole = moved_by_rl(tokenizer, optimizer=optimizer, scale_by_teaching=False)
    share = scaled.metrics[0]["advantage/episodes"]
    assert 0 < share < 1 and whole.metrics[0]["advantage/episodes"] == share
    assert scaled.moved[0] == pytest.approx(share * whole.moved[0], rel=0.01)


@pytest.mark.parametrize(
    ("settings", "scales"),
    [
        ({}, True),
        ({"scale_by_teaching": False}, False),
        ({"warmup": None}, False),
        ({"warmup": None, "scale_by_teaching": True}, True),
        ({"algorithm": make_algorithm("grpo", kl=Kl(0.1), entropy_bonus=0.01)}, True),
    ],
    ids=["after a warm-up", "turned off", "without one", "turned on", "with a divergence"],
)
def test_the_learning_rate_tells_whether_it_is_scaled(
    settings: dict[str, Any], scales: bool, tokenizer: Any
) -> None:
    for metrics in moved_by_rl(tokenizer, **settings).metrics:
        share = metrics["advantage/episodes"] if scales else 1.0
        assert metrics["learning_rate"] == pytest.approx(1e-3 * share)


def test_demonstrations_teach_in_every_step(tokenizer: Any) -> None:
    algorithm = make_algorithm("grpo", demonstration_weight=0.5)
    for metrics in moved_by_rl(tokenizer, algorithm=algorithm).metrics:
        share = (12 * metrics["advantage/episodes"] + 2) / (12 + 2)  # one row has no solution
        assert metrics["learning_rate"] == pytest.approx(1e-3 * share)


def test_the_learning_rate_grows_again_after_a_warm_up(tokenizer: Any, tmp_path: Path) -> None:
    make_trainer(
        tokenizer,
        environment=SomeLetters,
        group_size=8,
        steps=2,
        warmup_steps=3,
        output_dir=tmp_path / "run",
    ).train()
    found = [line for line in lines(tmp_path / "run") if "learning_rate" in line]
    rates = [line["learning_rate"] / line["advantage/episodes"] for line in found]
    assert rates == pytest.approx([3e-3 / 4, 3e-3 / 2])


def test_the_reference_of_adapters_is_the_warm_model_too(tokenizer: Any, tmp_path: Path) -> None:
    model, _ = load_model("tiny:", lora={"rank": 4}, tokenizer=tokenizer)
    trainer = make_trainer(
        tokenizer,
        model=model,
        algorithm=make_algorithm("rejection", threshold=-1.0, kl=Kl(0.1)),
        output_dir=tmp_path / "run",
    )
    trainer.train()
    (line,) = [line for line in lines(tmp_path / "run") if "kl" in line]
    assert line["kl"] == pytest.approx(0.0, abs=1e-6), "in the first step nothing has moved yet"
