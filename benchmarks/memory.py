"""Estimates of a step's memory beside its real peak, over kinds of models and settings.

    python benchmarks/memory.py            all cases, each in a process of its own
    python benchmarks/memory.py CASE       one, as JSON

A case makes two updates of `Learner`, each of two micro-batches of full length whose second halves
are actions, and prints the estimate that `Learner.prepare` gives and the peak of the updates.
"""

import json
import random
import sys
from typing import Any

import torch
from accelerate import Accelerator
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from gymnast.trainers import make_algorithm
from gymnast.trainers.algorithms.kl import Kl
from gymnast.trainers.learner.learner import Learner
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.types import Span, StopReason, Trajectory
from peak_memory import forget_peak, in_own_process, peak_bytes, resident_bytes

DENSE = {"hidden": 256, "layers": 4, "vocabulary": 4000, "tokens": 1024}
BFLOAT16 = {"dtype": "bfloat16"}
AGAIN = {"activations": "recompute"}
CASES: dict[str, dict[str, Any]] = {
    "dense, float32, kept": DENSE,
    "dense, float32, computed again": DENSE | AGAIN,
    "dense, bfloat16, kept": DENSE | BFLOAT16,
    "dense, bfloat16, LoRA, kept": DENSE | BFLOAT16 | {"lora": True},
    "experts, float32, kept": DENSE | {"kind": "experts"},
    "experts, float32, computed again": DENSE | {"kind": "experts"} | AGAIN,
    "hybrid (Qwen3-Next), float32, kept": DENSE | {"kind": "hybrid"},
    "hybrid (Qwen3-Next), float32, computed again": DENSE | {"kind": "hybrid"} | AGAIN,
    "dense, a reference": DENSE | {"kl": 0.1},
    "dense, entropies": DENSE | {"entropy_bonus": 0.01},
    "dense, a vocabulary of 50,000": DENSE | {"layers": 2, "vocabulary": 50_000},
    "dense, 8,192 tokens, kept": DENSE | {"hidden": 128, "layers": 2, "tokens": 8192},
    "dense, many weights, few tokens": DENSE | {"hidden": 768, "tokens": 128},
    "dense, bfloat16, many weights, few tokens": DENSE | BFLOAT16 | {"hidden": 768, "tokens": 128},
}


def make_model(case: dict[str, Any]) -> Any:
    """A model of a case, with random weights."""
    hidden = case["hidden"]
    settings: dict[str, Any] = {
        "vocab_size": case["vocabulary"],
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": case["layers"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "max_position_embeddings": 2**16,
        "tie_word_embeddings": True,
    }
    kind = case.get("kind", "dense")
    torch.manual_seed(0)
    if kind == "experts":
        settings |= {"num_local_experts": 4, "intermediate_size": 2 * hidden}
        model = MixtralForCausalLM(MixtralConfig(**settings))
    elif kind == "hybrid":
        settings |= {"num_experts": 0, "linear_num_value_heads": 4, "linear_num_key_heads": 2}
        settings |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
        model = Qwen3NextForCausalLM(Qwen3NextConfig(**settings))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**settings))
    model = model.to(getattr(torch, case.get("dtype", "float32"))).eval()
    if case.get("lora"):
        from peft import LoraConfig, get_peft_model

        lora: Any = LoraConfig(r=16, target_modules="all-linear")
        model = get_peft_model(model, lora)
    return model


def make_learner(model: Any, case: dict[str, Any]) -> Learner:
    """The learner of a case."""
    settings = LearnerSettings(
        learning_rate=1e-4,
        tokens_per_microbatch=case["tokens"],
        activations=case.get("activations", "keep"),
    )
    kl = Kl(case["kl"]) if "kl" in case else None
    algorithm = make_algorithm("grpo", kl=kl, entropy_bonus=case.get("entropy_bonus", 0.0))
    return Learner(
        model,
        Accelerator(cpu=True),
        algorithm,
        settings,
        reward_weights={},
        temperature=1.0,
        seed=0,
    )


def episodes(tokens: int, vocabulary: int, count: int) -> list[Trajectory]:
    """A group of episodes of full length, of which one half is sampled."""
    numbers = random.Random(0)
    half = tokens // 2
    return [
        Trajectory(
            ids=[numbers.randrange(vocabulary) for _ in range(tokens)],
            action_mask=[0] * half + [1] * (tokens - half),
            logprobs=[0.0] * half + [-5.0] * (tokens - half),
            prompt_length=half,
            turns=[Span(half, tokens)],
            turn_rewards=[float(number)],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )
        for number in range(count)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The estimate of a case and its real peak, in bytes."""
    # Libraries, and what the first calls of this kind of model take, do not count.
    small = case | {"hidden": 64, "vocabulary": 100, "tokens": 64}
    learner = make_learner(make_model(small), small)
    learner.update([episodes(64, 100, 2)], 0)
    del learner
    before = resident_bytes()
    learner = make_learner(make_model(case), case)
    group = episodes(case["tokens"], case["vocabulary"], 2)
    total = case["tokens"] * 2
    estimate = learner.prepare(case["tokens"], total).estimate
    forget_peak()
    for step in range(2):
        metrics = learner.update([group], step).metrics
        assert metrics["updates/taken"] == 1
    return {"estimate": estimate.total, "peak": peak_bytes() - before, **vars(estimate)}


def main() -> None:
    """Measure the case of the command line, or all of them."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(json.loads(sys.argv[1]))))
        return
    print("| step of two micro-batches | estimate, MiB | peak, MiB | estimate / peak |")
    print("| --- | --- | --- | --- |")
    ratios = []
    for name, case in CASES.items():
        found = in_own_process(__file__, case)
        ratios.append(found["estimate"] / found["peak"])
        sizes = " | ".join(f"{found[key] / 2**20:,.0f}" for key in ("estimate", "peak"))
        print(f"| {name} | {sizes} | {ratios[-1]:.2f} |", flush=True)
    print(f"\nestimate / peak: {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
