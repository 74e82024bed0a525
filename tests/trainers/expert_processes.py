"""What distributed/test_divided_experts.py runs in two real processes: mixtures of experts.

    python expert_processes.py FOLDER

peft adds the adapters of stacked experts to them within the forward pass, from weights of which a
process may hold a part, and without calling the modules that DeepSpeed and FSDP2 gather for.
"""

import hashlib
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from gymnast.agents.models.experts import ALL_LINEAR, lora_targets
from gymnast.trainers import Kl, make_algorithm
from hybrid_processes import LEARNS, TWO_STEPS, ways
from model_families import tiny
from two_processes import (
    TOKENIZER,
    Found,
    Keeps,
    fingerprint,
    make_trainer,
    run_scenarios,
    train,
)

warnings.simplefilter("ignore")  # models tell of kernels that they do without
FAMILIES = ("qwen3_moe", "gpt_oss", "qwen3_5_moe_text")
TWO_UPDATES: dict[str, Any] = LEARNS | {"steps": 2}
REPLAYS: dict[str, Any] = LEARNS | {"deterministic": True}


def adapted(family: str) -> Any:
    """A tiny mixture with adapters of all linear layers and experts, which change what it does."""
    model = tiny(family, vocab_size=len(TOKENIZER))
    target = lora_targets(model, ALL_LINEAR)
    config = LoraConfig(r=4, target_modules=target.modules, target_parameters=target.parameters)
    torch.manual_seed(0)
    adapted: Any = get_peft_model(model, config, autocast_adapter_dtype=False).eval()
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn(weight.shape)
    return adapted


def near_ties() -> Any:
    """In bfloat16, with experts that are nearly equal: rounding decides which ones are chosen."""
    size = {"vocab_size": len(TOKENIZER), "num_local_experts": 32, "num_experts_per_tok": 4}
    return tiny("mixtral", **size).bfloat16()


class KeepsExperts(Keeps):
    """Keeps a digest of the tokens and experts of each trajectory."""

    def __init__(self) -> None:
        super().__init__()
        self.digests: list[str] = []

    def on_step(self, step: int, metrics: Any, groups: Any) -> None:
        super().on_step(step, metrics, groups)
        for trajectory in (trajectory for group in groups for trajectory in group):
            kept = f"{trajectory.ids} {trajectory.experts.tolist()}"
            self.digests.append(hashlib.blake2b(kept.encode()).hexdigest())


def learned(folder: Path) -> Found:
    """Two updates of every family in every way, and how many weights a process then holds."""
    found: Found = {}
    for family in FAMILIES:
        for way, divides in ways(folder).items():
            if way == "zero1" and family != FAMILIES[0]:
                continue
            output_dir = folder / f"{family}_{way}"
            with divides():
                trainer, of_way = train(model=adapted(family), output_dir=output_dir, **TWO_UPDATES)
            held = sum(weight.numel() for weight in trainer.learner.policy.parameters())
            found[f"{family}_{way}"] = {"weights": of_way["weights"], "held": held}
    return found


def resumed(folder: Path) -> Found:
    """A divergence, layers computed again, and resumed after the first of two steps."""
    kl = make_algorithm("grpo", kl=Kl(0.1))
    settings = TWO_STEPS | {"algorithm": kl, "activations": "recompute"}
    found: Found = {}
    for way in ("ddp", "fsdp2", "zero2", "zero3"):
        divides = ways(folder)[way]
        cut = folder / f"cut_{way}"
        with divides():
            whole, _ = train(
                model=adapted("qwen3_moe"), output_dir=folder / f"whole_{way}", **settings
            )
            make_trainer(
                model=adapted("qwen3_moe"), output_dir=cut, **(settings | {"steps": 1})
            ).train()
            again = make_trainer(model=adapted("qwen3_moe"), output_dir=cut, **settings)
            again.train(resume=True)
        found[way] = [fingerprint(trainer.model) for trainer in (whole, again)]
    return found


def replayed(folder: Path) -> Found:
    """Experts that a process chose while sampling are chosen in training by either."""
    found: Found = {}
    for way in ("ddp", "fsdp2", "zero3"):
        with ways(folder)[way]():
            found[way] = replay(folder / f"replayed_{way}")
    return found


def replay(output_dir: Path) -> Found:
    """An update with replayed routing."""
    observer = KeepsExperts()
    trainer = make_trainer(
        model=near_ties(),
        observer=observer,
        output_dir=output_dir,
        replay_routing=True,
        **REPLAYS,
    )
    trainer.train()
    return {"weights": fingerprint(trainer.model), "digests": observer.digests}


SCENARIOS = [learned, resumed, replayed]

if __name__ == "__main__":
    chosen = [each for each in SCENARIOS if each.__name__ in sys.argv[2:] or len(sys.argv) == 2]
    run_scenarios(chosen, Path(sys.argv[1]))
