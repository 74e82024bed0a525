"""Losses and gradients that are not finite: steps are skipped and counted; ten end a run."""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.errors import Diverged, GymnastError
from gymnast.trainers import Trainer, make_algorithm
from gymnast.trainers.algorithms.algorithm import Algorithm
from gymnast.trainers.algorithms.losses import TokenLosses
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.learner.optimizers.not_finite import MOST_SKIPPED
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.types import Sampling, Span, StopReason, Trajectory

PLAIN = make_algorithm("rloo")


def not_a_number(losses: torch.Tensor) -> torch.Tensor:
    return losses * math.nan


def infinite(losses: torch.Tensor) -> torch.Tensor:
    return losses + math.inf


def without_gradient(losses: torch.Tensor) -> torch.Tensor:
    """The value is finite; the gradient of a root at 0 is not."""
    return losses + (losses - losses.detach()).abs().sqrt()


def breaking(
    when: Callable[[], bool], how: Callable[[torch.Tensor], torch.Tensor] = not_a_number
) -> Algorithm:
    """An algorithm whose loss is broken at times."""

    def loss(*arguments: Any) -> TokenLosses:
        found = PLAIN.loss(*arguments)
        return replace(found, losses=how(found.losses)) if when() else found

    return replace(PLAIN, loss=loss)


# --- One optimisation step


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator()


def batch(*rewards: float) -> list[list[Trajectory]]:
    """A group of episodes of one turn, each a micro-batch of its own with `settings`."""
    return [
        [
            Trajectory(
                ids=[*range(5, 15), 20 + number, 30, 40],
                action_mask=[0] * 10 + [1] * 3,
                logprobs=[0.0] * 10 + [-6.9] * 3,
                prompt_length=10,
                turns=[Span(10, 13)],
                turn_rewards=[reward],
                stop_reason=StopReason.answered,
                terminated=True,
                truncated=False,
            )
            for number, reward in enumerate(rewards)
        ]
    ]


def settings(algorithm: Algorithm) -> UpdateSettings:
    return UpdateSettings(algorithm, max_grad_norm=1.0, tokens_per_microbatch=1)


class Run:
    """A model that learns from some batches."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.model = tiny_model()
        self.optimizer = MasterOptimizer(
            self.model.parameters(), learning_rate=1e-3, weight_decay=0.1, warmup_steps=3
        )
        self._policy, self._accelerator = Policy(self.model), accelerator

    def learn(self, groups: Any, algorithm: Algorithm = PLAIN) -> dict[str, float]:
        return update(
            self._policy, self.optimizer, groups, settings(algorithm), self._accelerator
        ).metrics

    @property
    def state(self) -> list[torch.Tensor]:
        """Weights, moments and counts of AdamW."""
        state = self.optimizer.state_dict()
        moments = [value for of in state["states"].values() for value in of.values()]
        return [*state["master"], *moments, torch.tensor(self.optimizer.steps)]


@pytest.mark.parametrize("how", [not_a_number, infinite, without_gradient])
def test_one_broken_micro_batch_leaves_weights_and_moments_as_if_the_step_had_not_been(
    how: Callable[[torch.Tensor], torch.Tensor], accelerator: Accelerator
) -> None:
    calls = iter([False, True, False])  # the second of three micro-batches
    ours, theirs = Run(accelerator), Run(accelerator)
    ours.learn(batch(0.0, 1.0))
    skipped = ours.learn(batch(1.0, 0.0, 0.5), breaking(lambda: next(calls), how))
    assert (skipped["updates/skipped"], skipped["updates/taken"]) == (1, 0)
    assert not (math.isfinite(skipped["loss"]) and math.isfinite(skipped["grad_norm"]))
    after = ours.learn(batch(1.0, 0.0))
    theirs.learn(batch(0.0, 1.0))
    expected = theirs.learn(batch(1.0, 0.0))
    assert all(map(torch.equal, ours.state, theirs.state)) and len(ours.state) > 3
    assert after["updates/skipped_total"] == 1 and expected["updates/skipped_total"] == 0
    assert after["learning_rate"] == expected["learning_rate"] == 1e-3 * 2 / 4


def test_the_others_of_a_batch_are_taken_and_told_of(accelerator: Accelerator) -> None:
    calls = iter([False, False, True, False])  # two micro-batches an epoch, two epochs
    run = Run(accelerator)
    algorithm = replace(breaking(lambda: next(calls)), epochs=2)
    metrics = run.learn(batch(0.0, 1.0), algorithm)
    assert (metrics["updates/skipped"], metrics["updates/taken"]) == (1, 1)
    assert math.isfinite(metrics["loss"]) and metrics["grad_norm"] > 0
    assert run.optimizer.last_skip.startswith("loss nan, gradient norm ")


def test_what_is_taken_begins_the_count_anew(accelerator: Accelerator) -> None:
    run = Run(accelerator)
    for broken in (True, True, False, True):
        run.learn(batch(0.0, 1.0), breaking(lambda broken=broken: broken))  # type: ignore[misc]
    assert (run.optimizer.skipped, run.optimizer.skipped_in_a_row) == (3, 1)


def test_a_batch_with_nothing_to_learn_neither_counts_nor_begins_anew(
    accelerator: Accelerator,
) -> None:
    run = Run(accelerator)
    run.learn(batch(0.0, 1.0), breaking(lambda: True))
    metrics = run.learn(batch(1.0, 1.0))
    assert metrics["updates/taken"] == metrics["updates/skipped"] == 0
    assert run.optimizer.skipped_in_a_row == 1


def test_no_further_epoch_is_computed_once_ten_were_skipped(accelerator: Accelerator) -> None:
    run = Run(accelerator)
    algorithm = replace(breaking(lambda: True), epochs=2 * MOST_SKIPPED)
    assert run.learn(batch(0.0, 1.0), algorithm)["updates/skipped"] == MOST_SKIPPED == 10


# --- A run


class SmallLetters(Environment):
    """The share of small letters in the answer."""

    def reward(self, episode: Any) -> float:
        text = episode.answer
        return sum(letter in "abcdefghijklmnopqrstuvwxyz" for letter in text) / max(1, len(text))


SEED = 1  # with which every step has something to learn


def make_trainer(tokenizer: Any, algorithm: Algorithm, **more: Any) -> Trainer:
    small: dict[str, Any] = {
        "sampling": Sampling(max_new_tokens=8),
        "group_size": 4,
        "rows_per_step": 1,
        "steps": 20,
        "learning_rate": 1e-3,
        "seed": SEED,
    }
    rows = [{"prompt": "Go."}]
    return Trainer(
        tiny_model(), tokenizer, SmallLetters, rows, algorithm=algorithm, **(small | more)
    )


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def strict(line: str) -> dict[str, Any]:
    """JSON as the standard has it: without NaN."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    found: dict[str, Any] = json.loads(line, parse_constant=refuse)
    return found


def test_ten_in_a_row_end_the_run_with_a_checkpoint_and_are_reported(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tokenizer, breaking(lambda: True), output_dir=tmp_path)
    with pytest.raises(Diverged, match=r"^step 10: 10 optimisation steps in a row .* loss nan, "):
        trainer.train()
    assert issubclass(Diverged, GymnastError) and issubclass(Diverged, FloatingPointError)
    assert checkpoints(tmp_path) == ["step_00010"]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    reported = [each for each in warnings if "skipped" in each]  # others tell of a full machine
    assert len(reported) == 10
    assert reported[2] == (
        "step 3: 1 optimisation steps skipped, the last for loss nan, gradient norm nan (3 in a "
        "row, 3 in all; 10 in a row end the run)"
    )
    lines = [strict(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [None] * 10
    assert [line["updates/skipped_total"] for line in lines] == list(range(1, 11))
    start, now = tiny_model().parameters(), trainer.model.parameters()
    assert all(map(torch.equal, start, now))


def test_a_resumed_run_counts_on(tokenizer: Any, tmp_path: Path) -> None:
    """Six skipped, and four after the resumption; then one that is taken begins anew."""
    broken = breaking(lambda: True)
    often: dict[str, Any] = {"output_dir": tmp_path, "checkpoint_every_steps": 3}
    make_trainer(tokenizer, broken, **often, steps=6).train()
    with pytest.raises(Diverged, match=r"^step 10: 10 optimisation steps"):
        make_trainer(tokenizer, broken, **often).train(resume=True)
    with pytest.raises(Diverged, match=r"^step 11: 11 optimisation steps"):
        make_trainer(tokenizer, broken, **often).train(resume=True)
    mended = make_trainer(tokenizer, PLAIN, **often, steps=13)
    mended.train(resume=True)
    assert mended.step == 13
    lines = [strict(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["updates/skipped_total"] == 11 and lines[-1]["updates/taken"] == 1


def test_no_checkpoint_is_removed_while_steps_are_skipped(tokenizer: Any, tmp_path: Path) -> None:
    """The last two that were good are still there when the run ends, and pruned when it goes on."""
    step = iter(range(1000))
    broken = breaking(lambda: next(step) >= 4)  # a micro-batch a step
    often: dict[str, Any] = {
        "output_dir": tmp_path,
        "checkpoint_every_steps": 2,
        "keep_checkpoints": 2,
        "rows_per_step": 1,
    }
    with pytest.raises(Diverged, match=r"^step 14: "):
        make_trainer(tokenizer, broken, **often).train()
    assert checkpoints(tmp_path)[:2] == ["step_00002", "step_00004"]
    assert checkpoints(tmp_path)[-1] == "step_00014"
    make_trainer(tokenizer, PLAIN, **often, steps=18).train(resume=True)
    assert checkpoints(tmp_path) == ["step_00016", "step_00018"]


def test_without_a_folder_it_ends_all_the_same(tokenizer: Any) -> None:
    with pytest.raises(Diverged, match=r"trainer\.learning_rate"):
        make_trainer(tokenizer, breaking(lambda: True)).train()
