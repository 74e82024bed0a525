"""What optimizers/test_zero.py runs in two real processes: one function a scenario.

    python zero_processes.py FOLDER

As `two_processes.py`, whose environments and settings it takes; a module of its own, because
importing DeepSpeed takes seconds, and it may be missing.
"""

import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers import Algorithm, Kl, Teacher, Trainer, make_algorithm
from gymnast.trainers.distributed.processes import together
from gymnast.trainers.learner.policy.micro_batches import micro_batch
from gymnast.trainers.learner.policy.shares import placeholder
from sampled_groups import bfloat16_model, short_groups
from two_processes import (
    PROCESS,
    ROWS,
    TOKENIZER,
    TWO_STEPS,
    WARMED,
    Found,
    broken_in_one,
    error_of,
    fingerprint,
    make_trainer,
    run_scenarios,
    train,
)

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


# Small enough that stage 3 shares out every weight, gathers few at a time, and steps in parts.
SMALL = {
    "reduce_bucket_size": 50_000,
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 30_000,
    "sub_group_size": 20_000,
}


@contextmanager
def zero(stage: int, folder: Path) -> Iterator[None]:
    """What `accelerate launch` sets where its config has distributed_type: DEEPSPEED."""
    if stage == 3:
        file = folder / f"zero_{PROCESS}.json"
        file.write_text(json.dumps({"zero_optimization": {"stage": 3, **SMALL}}))
        asked = {"ACCELERATE_DEEPSPEED_CONFIG_FILE": str(file)}
    else:
        asked = {"ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage)}
    asked["ACCELERATE_USE_DEEPSPEED"] = "true"
    os.environ |= asked
    try:
        yield
    finally:
        for name in asked:
            del os.environ[name]


def rich() -> Algorithm:
    """Everything that makes further passes through the policy or more steps of a batch."""
    return make_algorithm(
        "reinforce_pp",
        kl=Kl(0.1, place="loss", refresh_every_steps=1),
        teacher=Teacher(tiny_model(seed=1), weight=0.1, estimator="exact"),
        epochs=2,
        minibatches=2,
        importance_cap=2.0,
        entropy_bonus=0.01,
    )


def shares(trainer: Trainer) -> dict[str, float]:
    """Which part of AdamW's moments and of the trained weights is in this process alone."""
    everything = sum(weight.numel() for weight in trainer.model.parameters())
    adamw = trainer.learner.optimizer.adamw  # type: ignore[attr-defined]
    moments = sum(state["exp_avg"].numel() for state in adamw.state.values())
    weights = sum(weight.numel() for weight in trainer.learner.policy.parameters())
    return {"moments": moments / everything, "weights_whole": weights / everything}


# --- Scenarios


def plain(folder: Path) -> Found:
    """The same settings as `one_process` of the tests."""
    found: Found = {}
    for stage in STAGES:
        with zero(stage, folder):
            trainer, of_stage = train(output_dir=folder / f"stage{stage}", **LEARNS)
        found[str(stage)] = of_stage | shares(trainer)
    return found


def warmed(folder: Path) -> Found:
    """A warm-up, and RL from where it ends."""
    found: Found = {}
    for stage in (2, 3):
        with zero(stage, folder):
            found[str(stage)] = train(output_dir=folder / f"warmed{stage}", **WARMED)[1]
    return found


def resumed(folder: Path) -> Found:
    """Two steps, whole and cut after the first; `begun` is for a process alone to go on with."""
    found: Found = {}
    for stage in (2, 3):
        cut = folder / f"cut{stage}"
        with zero(stage, folder):
            whole, _ = train(output_dir=folder / f"whole{stage}", **TWO_STEPS)
            make_trainer(output_dir=cut, **(TWO_STEPS | {"steps": 1})).train()
            copied(cut, folder / f"begun{stage}")
            again = make_trainer(output_dir=cut, **TWO_STEPS)
            again.train(resume=True)
        found[str(stage)] = [fingerprint(trainer.model) for trainer in (whole, again)]
    return found


def begun_without(folder: Path) -> Found:
    """Two steps, of which the first one is taken without DeepSpeed."""
    make_trainer(output_dir=folder / "first", **(TWO_STEPS | {"steps": 1})).train()
    for stage in (2, 3):
        cut = folder / f"begun_without{stage}"
        copied(folder / "first", cut)
        with zero(stage, folder):
            make_trainer(output_dir=cut, **TWO_STEPS).train(resume=True)
    return {}


def copied(folder: Path, to: Path) -> None:
    """Copy a run's folder, in the main process."""
    together(Accelerator(cpu=True), lambda: None)  # all of it is written
    together(
        Accelerator(cpu=True), lambda: PROCESS == 0 and shutil.copytree(folder, to) is not None
    )


def with_everything(folder: Path) -> Found:
    """A reference in the loss, an entropy bonus, epochs, minibatches, recomputed layers."""
    found: Found = {}
    for stage in (2, 3):
        with zero(stage, folder):
            found[str(stage)] = train(algorithm=rich(), activations="recompute", steps=2)[1]
    return found


def skipped(folder: Path) -> Found:
    """The second of three steps, in which the second process alone has a loss that is no number."""
    found: Found = {}
    for stage in (2, 3):
        algorithm = broken_in_one(lambda step: step == 1)
        with zero(stage, folder):
            found[str(stage)] = train(algorithm=algorithm, steps=3, rows_per_step=2)[1]
    return found


def skips_exactly(folder: Path) -> Found:
    """A broken gradient in the second process, then a broken loss, then neither."""
    found: Found = {}
    for stage in (2, 3):
        with zero(stage, folder):
            trainer, _ = train(steps=1, weight_decay=0.1, warmup_steps=3)
        learner = trainer.learner
        batch = micro_batch([placeholder()], trainer.accelerator.device)
        states = [hashes(trainer)]
        norms = []
        for factor, loss in (("inf", 1.0), ("1", float("nan")), ("1", 1.0)):
            scale = float(factor) if PROCESS == 1 else 1.0
            (learner.policy(batch).sum() * scale).backward()
            norms.append(learner.optimizer.step_if_finite(loss, 1.0))
            states.append(hashes(trainer))
        counts = learner.optimizer.counts()
        found[str(stage)] = {"states": states, "norms": [str(n) for n in norms], "counts": counts}
    return found


def hashes(trainer: Trainer) -> list[str]:
    """Of the model's weights, and of master weights, moments and steps."""
    trainer.learner.gather()
    state = trainer.learner.optimizer.state_dict()
    moments = [value for of_one in state["states"].values() for value in of_one.values()]
    tensors = [*state["master"], *moments]
    return [fingerprint(trainer.model), str([float(t.double().sum()) for t in tensors])]


def adapters(folder: Path) -> Found:
    """LoRA in bfloat16, whose master weights are float32; stage 0 is without DeepSpeed."""

    def run(name: str) -> Found:
        model, _ = load_model("tiny:", dtype="bfloat16", lora={"rank": 4}, tokenizer=TOKENIZER)
        before = {name: weight.clone() for name, weight in model.named_parameters()}
        trainer, found = train(model=model, output_dir=folder / name, steps=1)
        changed = {
            name
            for name, weight in model.named_parameters()
            if not torch.equal(weight, before[name])
        }
        state = trainer.learner.optimizer.state_dict()
        dtypes = {str(master.dtype) for master in state["master"]}
        return found | {
            "dtypes": sorted(dtypes),
            "changed": len(changed),
            "frozen_changed": sum("lora_" not in name for name in changed),
        }

    found = {"0": run("adapters0")}
    for stage in (2, 3):
        with zero(stage, folder):
            found[str(stage)] = run(f"adapters{stage}")
    return found


def in_bfloat16(folder: Path) -> Found:
    """All weights in bfloat16, whole and cut after the first step; stage 0 is without DeepSpeed."""

    def run(name: str, resume: bool = False, **settings: Any) -> Trainer:
        model = tiny_model().bfloat16()
        trainer = make_trainer(model=model, output_dir=folder / name, **(TWO_STEPS | settings))
        trainer.train(resume=resume)
        return trainer

    def masters(trainer: Trainer) -> torch.Tensor:
        state = trainer.learner.optimizer.state_dict()
        return torch.cat([master.flatten() for master in state["master"]])

    without = masters(run("bfloat0"))
    start = torch.cat([weight.flatten() for weight in tiny_model().bfloat16().parameters()])
    found: Found = {}
    for stage in (2, 3):
        with zero(stage, folder):
            whole = run(f"bfloat{stage}")
            run(f"bfloat_cut{stage}", steps=1)
            again = run(f"bfloat_cut{stage}", resume=True)
        ours = masters(whole)
        apart = (ours - without).norm() / (without - start.float()).norm()
        found[str(stage)] = {
            "dtype": str(ours.dtype),
            "difference": apart.item(),
            "weights": [fingerprint(trainer.model) for trainer in (whole, again)],
        }
    return found


def many_micro_batches(folder: Path) -> Found:
    """64 a process in bfloat16; the gradient is ten times AdamW's first moment."""
    algorithm = make_algorithm("dr_grpo", loss="reinforce")
    settings: dict[str, Any] = {"tokens_per_microbatch": 1, "max_grad_norm": 1e9}
    for stage in (2, 3):
        with zero(stage, folder):
            trainer = make_trainer(model=bfloat16_model(), algorithm=algorithm, **settings)
            with trainer.learner.joined():
                trainer.learner.update(short_groups(), 0)
        states = trainer.learner.optimizer.state_dict()["states"]
        moments = [states[number]["exp_avg"].flatten() * 10 for number in range(len(states))]
        torch.save(torch.cat(moments), folder / f"many{stage}_{PROCESS}.pt")
    return {}


def refused(folder: Path) -> Found:
    with zero(2, folder):
        return error_of(model=tiny_model().half())


SCENARIOS = [
    plain,
    warmed,
    resumed,
    begun_without,
    with_everything,
    skipped,
    skips_exactly,
    adapters,
    in_bfloat16,
    many_micro_batches,
    refused,
]


if __name__ == "__main__":
    run_scenarios(SCENARIOS, Path(sys.argv[1]))
