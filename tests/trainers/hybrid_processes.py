"""What distributed/test_hybrids.py runs in two real processes: hybrids, divided in every way.

    python hybrid_processes.py FOLDER

A hybrid has layers with a recurrent state, or with a short convolution, beside attention: other
modules, other shapes of weights, and weights without a gradient in some steps (experts).
"""

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from gymnast.trainers import Kl, make_algorithm
from gymnast.types import Sampling
from model_families import tiny
from two_processes import (
    TOKENIZER,
    Found,
    error_of,
    fingerprint,
    fsdp2,
    make_trainer,
    run_scenarios,
    train,
)
from zero_processes import zero

warnings.simplefilter("ignore")  # models tell of kernels that they do without
FAMILIES = ("qwen3_5_text", "nemotron_h", "lfm2", "granitemoehybrid")
# With such an epsilon a first step is nearly proportional to the gradient, where AdamW's own is its
# sign, of which rounding makes much where it is near zero.
LEARNS: dict[str, Any] = {
    "steps": 1,
    "rows_per_step": 2,
    "tokens_per_microbatch": 100,
    "optimizer": {"name": "adamw", "eps": 1e-2},
    "sampling": Sampling(max_new_tokens=6),
    "activations": "keep",
}
TWO_STEPS = LEARNS | {"steps": 2, "deterministic": True, "checkpoint_every_steps": 1}
WAYS = ("ddp", "fsdp2", "zero1", "zero2", "zero3")
Divides = Callable[[], AbstractContextManager[None]]


def hybrid(family: str) -> Any:
    """A tiny one with the tokenizer's vocabulary."""
    return tiny(family, vocab_size=len(TOKENIZER))


def ways(folder: Path) -> dict[str, Divides]:
    """In which weights, gradients and optimizer are divided."""
    return {
        "ddp": nullcontext,
        "fsdp2": fsdp2,
        "zero1": lambda: zero(1, folder),
        "zero2": lambda: zero(2, folder),
        "zero3": lambda: zero(3, folder),
    }


def plain(folder: Path) -> Found:
    """A step of every family in every way; stages 1 to 3 of ZeRO differ in what is shared out."""
    found: Found = {}
    for family in FAMILIES:
        for way, divides in ways(folder).items():
            if way in ("zero1", "zero2") and family != FAMILIES[0]:
                continue
            with divides():
                _, of_way = train(
                    model=hybrid(family), output_dir=folder / f"{family}_{way}", **LEARNS
                )
            found[f"{family}_{way}"] = of_way["weights"]
    return found


def adapted(folder: Path) -> Found:
    """LoRA, a divergence, layers computed again, and resumed after the first of two steps."""
    kl = make_algorithm("grpo", kl=Kl(0.1))
    settings = TWO_STEPS | {"algorithm": kl, "activations": "recompute"}

    def model() -> Any:
        torch.manual_seed(0)
        return get_peft_model(
            hybrid("qwen3_5_text"), LoraConfig(r=4, target_modules="all-linear")
        ).eval()

    found: Found = {}
    for way, divides in ways(folder).items():
        with divides():
            whole, _ = train(model=model(), output_dir=folder / f"adapted_{way}", **settings)
            cut = folder / f"adapted_cut_{way}"
            make_trainer(model=model(), output_dir=cut, **(settings | {"steps": 1})).train()
            again = make_trainer(model=model(), output_dir=cut, **settings)
            again.train(resume=True)
        found[way] = [fingerprint(trainer.model) for trainer in (whole, again)]
    return found


def in_bfloat16(folder: Path) -> Found:
    """Some weights stay in float32."""

    def model() -> Any:
        made = hybrid("nemotron_h").bfloat16()
        for name, weight in made.named_parameters():
            if name.endswith(("A_log", "mixer.D", "dt_bias")):
                weight.data = weight.data.float()
        return made

    trainer, found = train(model=model(), **LEARNS)
    dtypes = sorted({str(weight.dtype) for weight in trainer.model.parameters()})
    with fsdp2():
        return found | {"dtypes": dtypes, "fsdp2": error_of(model=model(), **LEARNS)}


def by_other_optimizers(folder: Path) -> Found:
    """SGD and Muon on a dense model, whole and resumed after the first of two steps."""
    found: Found = {}
    specs: dict[str, Any] = {
        "sgd": {"name": "torch.optim:SGD", "momentum": 0.9},
        "muon": {"name": "torch.optim:Muon", "others": "adamw"},
    }
    two: dict[str, Divides] = {"ddp": nullcontext, "fsdp2": fsdp2}
    for name, spec in specs.items():
        for way, divides in two.items():
            cut = folder / f"{name}_cut_{way}"
            settings = TWO_STEPS | {"optimizer": spec}
            with divides():
                whole, _ = train(output_dir=folder / f"{name}_{way}", **settings)
                make_trainer(output_dir=cut, **(settings | {"steps": 1})).train()
                again = make_trainer(output_dir=cut, **settings)
                again.train(resume=True)
            found[f"{name}_{way}"] = [fingerprint(trainer.model) for trainer in (whole, again)]
    return found


SCENARIOS = [plain, adapted, in_bfloat16, by_other_optimizers]

if __name__ == "__main__":
    chosen = [each for each in SCENARIOS if each.__name__ in sys.argv[2:] or len(sys.argv) == 2]
    run_scenarios(chosen, Path(sys.argv[1]))
