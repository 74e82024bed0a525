"""What test_deepspeed.py runs in two real processes: one function a scenario.

    python zero_processes.py FOLDER

As `two_processes.py`, whose environments and settings it takes; a module of its own, because
importing DeepSpeed takes seconds, and it may be missing.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from two_processes import (
    PROCESS,
    ROWS,
    TOKENIZER,
    TWO_STEPS,
    Found,
    broken_in_one,
    error_of,
    fingerprint,
    make_trainer,
    run_scenarios,
    train,
)

from gymnast.agents import load_model
from gymnast.agents.tiny import tiny_model
from gymnast.trainers import Algorithm, Kl, Trainer, make_algorithm
from gymnast.trainers.losses import LOSSES, TokenLosses

# DeepSpeed imports parts of torch that warn.
warnings.filterwarnings("ignore", category=DeprecationWarning)

STAGES = (1, 2, 3)
# Several micro-batches a process and step, of which the second process has one fewer.
LEARNS: dict[str, Any] = {
    "steps": 3,
    "eval_rows": ROWS[:3],
    "tokens_per_microbatch": 100,
    "max_grad_norm": 0.5,
    "warmup_steps": 2,
    "weight_decay": 0.01,
}


@contextmanager
def zero(stage: int) -> Iterator[None]:
    """What `accelerate launch` sets where its config has distributed_type: DEEPSPEED."""
    names = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_DEEPSPEED_ZERO_STAGE")
    os.environ |= dict(zip(names, ("true", str(stage)), strict=True))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def rich() -> Algorithm:
    """Everything that makes further passes through the policy or more steps of a batch."""
    return make_algorithm(
        "reinforce_pp",
        kl=Kl(0.1, place="loss"),
        epochs=2,
        minibatches=2,
        importance_cap=2.0,
        entropy_bonus=0.01,
    )


def share(trainer: Trainer) -> float:
    """Which part of AdamW's moments is in this process."""
    adamw = trainer._learner.optimizer._adamw  # type: ignore[attr-defined]
    ours = sum(state["exp_avg"].numel() for state in adamw.state.values())
    return ours / sum(weight.numel() for weight in trainer.model.parameters())


# --- Scenarios


def plain(folder: Path) -> Found:
    """The same settings as `one_process` of the tests."""
    found: Found = {}
    for stage in STAGES:
        with zero(stage):
            trainer, of_stage = train(output_dir=folder / f"stage{stage}", **LEARNS)
        found[str(stage)] = of_stage | {"share": share(trainer)}
    return found


def resumed(folder: Path) -> Found:
    found: Found = {}
    for stage in (2, 3):
        with zero(stage):
            whole, _ = train(output_dir=folder / f"whole{stage}", **TWO_STEPS)
            cut: dict[str, Any] = TWO_STEPS | {"output_dir": folder / f"cut{stage}"}
            make_trainer(**(cut | {"steps": 1})).train()
            again = make_trainer(**cut)
            again.train(resume=True)
        found[str(stage)] = [fingerprint(trainer.model) for trainer in (whole, again)]
    return found


def begun_without(folder: Path) -> Found:
    """Two steps, of which the first one is taken without DeepSpeed, by a process or two."""
    found: Found = {}
    for stage in (2, 3):
        cut: dict[str, Any] = TWO_STEPS | {"output_dir": folder / f"begun_without{stage}"}
        make_trainer(**(cut | {"steps": 1})).train()
        with zero(stage):
            make_trainer(**cut).train(resume=True)
        found[str(stage)] = str(cut["output_dir"])
    return found


def with_everything(folder: Path) -> Found:
    """A reference in the loss, an entropy bonus, epochs, minibatches, recomputed layers."""
    found: Found = {}
    for stage in (2, 3):
        with zero(stage):
            found[str(stage)] = train(algorithm=rich(), gradient_checkpointing=True, steps=2)[1]
    return found


def skipped(folder: Path) -> Found:
    """The second of three steps, in which the second process alone has a loss that is no number."""
    found: Found = {}
    for stage in (2, 3):
        algorithm = broken_in_one(lambda step: step == 1)
        with zero(stage):
            found[str(stage)] = train(algorithm=algorithm, steps=3, rows_per_step=2)[1]
    return found


def infinite(folder: Path) -> Found:
    """The second of three steps has an infinite loss in one process, and finite gradients."""

    def one_step(loss_is_infinite: bool, stage: int) -> Found:
        calls: list[int] = []

        def loss(*arguments: Any) -> TokenLosses:
            found = LOSSES["clipped"](*arguments)
            calls.append(1)
            far = loss_is_infinite and PROCESS == 1 and len(calls) == 2
            return replace(found, losses=found.losses + float("inf")) if far else found

        algorithm = replace(make_algorithm("rloo"), loss=loss)
        settings: dict[str, Any] = {"steps": 3, "rows_per_step": 2, "weight_decay": 0.1}
        with zero(stage):
            trainer, found = train(algorithm=algorithm, **settings)
        steps = {s["step"].item() for s in trainer._learner.optimizer._adamw.state.values()}  # type: ignore[attr-defined]
        return found | {"adamw_steps": sorted(steps)}

    return {str(stage): one_step(True, stage) for stage in (2, 3)}


def adapters(folder: Path) -> Found:
    """LoRA in bfloat16, whose master weights are float32; stage 0 is without DeepSpeed."""

    def run(name: str) -> Found:
        model, _ = load_model("tiny:", dtype="bfloat16", lora={"rank": 4}, tokenizer=TOKENIZER)
        before = {name: weight.clone() for name, weight in model.named_parameters()}
        trainer, found = train(model=model, output_dir=folder / name, steps=2)
        changed = {
            name
            for name, weight in model.named_parameters()
            if not torch.equal(weight, before[name])
        }
        state = trainer._learner.optimizer.state_dict()
        dtypes = {str(master.dtype) for master in state["master"]}
        return found | {
            "dtypes": sorted(dtypes),
            "changed": len(changed),
            "frozen_changed": sum("lora_" not in name for name in changed),
        }

    found = {"0": run("adapters0")}
    for stage in (2, 3):
        with zero(stage):
            found[str(stage)] = run(f"adapters{stage}")
    return found


def refused(folder: Path) -> Found:
    with zero(2):
        return {
            "float16": error_of(model=tiny_model().half()),
        }


SCENARIOS = [
    plain,
    resumed,
    begun_without,
    with_everything,
    skipped,
    infinite,
    adapters,
    refused,
]


if __name__ == "__main__":
    run_scenarios(SCENARIOS, Path(sys.argv[1]))
