"""What a step's ratios compare with, and the memory that a step gives back."""

import copy
import ctypes
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import ConfigError
from gymnast.trainers import Algorithm, make_algorithm
from gymnast.trainers.algorithms.algorithm import names
from gymnast.trainers.algorithms.losses import LOSSES, TokenLosses
from gymnast.trainers.learner.memory.heap import give_back_freed_memory
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.update import UpdateSettings, update
from sampled_groups import Groups, forward_logprobs, just_sampled, random_groups


def learned(
    model: Any, groups: Groups, algorithm: Algorithm, tokens: int = 2048
) -> Mapping[str, float]:
    optimizer = MasterOptimizer(model.parameters(), learning_rate=1e-2)
    return update(
        Policy(model), optimizer, groups, UpdateSettings(algorithm, math.inf, tokens), Accelerator()
    ).metrics


@pytest.mark.parametrize(
    ("dtype", "lora"), [("float32", None), ("bfloat16", None), ("bfloat16", {"rank": 4})]
)
def test_no_preset_clips_tokens_that_were_just_sampled(
    dtype: str, lora: Any, tokenizer: Any
) -> None:
    model = load_model("tiny:", dtype=dtype, lora=lora, tokenizer=tokenizer)[0]
    sampled = just_sampled(copy.deepcopy(model))
    groups = [[replace(t, states=range(len(t.turns))) for t in group] for group in sampled]
    for name in sorted({*names()} - {"distillation"}):  # which learns from a teacher alone
        metrics = learned(copy.deepcopy(model), groups, make_algorithm(name))
        assert metrics["updates/taken"] == 1 and metrics["grad_norm"] > 0, name
        assert metrics["clipped"] == 0, name
    # What the engine rounds otherwise is told beside it, and would fill GSPO's narrow clip.
    against_engine = learned(model, groups, make_algorithm("gspo", old_logprobs="engine"))
    for told in (against_engine, metrics):
        assert (told["engine/logprob_difference"] > 1e-3) == (dtype == "bfloat16")
    assert (against_engine["clipped"] > 0) == (dtype == "bfloat16")


class Listens:
    """A loss that keeps what its ratios compare with."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def __call__(self, logprobs: Any, sampled: torch.Tensor, *rest: Any) -> TokenLosses:
        self.seen.append(sampled)
        return LOSSES["clipped"](logprobs, sampled, *rest)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every pass that a policy is about to make, whether a gradient is wanted."""
    passes: list[bool] = []
    forward = Policy.forward

    def counting(policy: Policy, batch: Any, **options: Any) -> torch.Tensor:
        passes.append(torch.is_grad_enabled())
        return forward(policy, batch, **options)

    monkeypatch.setattr(Policy, "forward", counting)
    return passes


@pytest.mark.parametrize(
    ("epochs", "minibatches", "without_gradient"), [(1, 1, 0), (3, 1, 0), (1, 3, 2), (2, 3, 2)]
)
def test_ratios_compare_with_the_weights_before_the_first_step(
    epochs: int, minibatches: int, without_gradient: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first minibatch's log-probabilities come from its own pass; others take one more."""
    groups = random_groups(tiny_model(), [[0.0, 1.0], [0.5, 0.0], [1.0, 0.0]])
    expected = [
        torch.cat([forward_logprobs(tiny_model(), t.ids)[start:end] for start, end in t.turns])
        for group in groups
        for t in group
    ]
    passes, loss = counted(monkeypatch), Listens()
    algorithm = make_algorithm("rloo", epochs=epochs, minibatches=minibatches)
    metrics = learned(tiny_model(), groups, replace(algorithm, loss=loss))
    assert metrics["updates/taken"] == epochs * minibatches
    assert passes.count(False) == without_gradient
    assert passes.count(True) == epochs * minibatches
    for epoch in range(epochs):
        seen = torch.cat(loss.seen[epoch * minibatches : (epoch + 1) * minibatches])
        torch.testing.assert_close(seen, torch.cat(expected).float(), rtol=1e-4, atol=1e-5)


def test_a_loss_that_weights_by_the_engine_compares_with_it_and_takes_no_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = random_groups(tiny_model(), [[0.0, 1.0], [0.5, 0.0]])
    said = [torch.tensor(t.logprobs)[a:b] for g in groups for t in g for a, b in t.turns]
    passes, loss = counted(monkeypatch), Listens()
    assert make_algorithm("cispo").old_logprobs == "engine"
    assert make_algorithm("cispo", importance_cap=2.0).old_logprobs == "trainer"
    algorithm = make_algorithm("cispo", epochs=2, minibatches=2)
    learned(tiny_model(), groups, replace(algorithm, loss=loss))
    torch.testing.assert_close(torch.cat(loss.seen[:2]), torch.cat(said))
    assert passes == [True] * 4


def test_a_cap_on_ratios_to_the_engine_has_nothing_left_to_weight() -> None:
    with pytest.raises(ConfigError, match="old_logprobs: must be trainer with importance_cap"):
        make_algorithm("grpo", old_logprobs="engine", importance_cap=2.0)


# --- Dropout of adapters


def adapted(dropout: float, tokenizer: Any) -> Any:
    """A model whose adapters change what it says."""
    lora = {"rank": 4, "dropout": dropout}
    model, _ = load_model("tiny:", lora=lora, tokenizer=tokenizer)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return model


@pytest.mark.parametrize("algorithm", [{}, {"loss": "cispo"}, {"epochs": 2}, {"minibatches": 2}])
def test_dropout_of_adapters_acts_in_the_loss_alone(
    algorithm: dict[str, Any], tokenizer: Any
) -> None:
    """What its ratios compare with, and how far the engine is away, are told without it."""
    groups = just_sampled(adapted(0.0, tokenizer))
    found = []
    for dropout in (0.0, 0.5):
        loss, model = Listens(), adapted(dropout, tokenizer)
        own = torch.cat([forward_logprobs(model, t.ids)[40:] for g in groups for t in g])
        chosen = replace(make_algorithm("rloo", **algorithm), loss=loss)
        found.append(learned(model, groups, chosen))
        assert not model.training
        seen = torch.cat(loss.seen)[: len(own)]
        torch.testing.assert_close(seen, own.detach().float(), rtol=1e-4, atol=1e-4)
    plain, dropped = found
    assert dropped["grad_norm"] != pytest.approx(plain["grad_norm"], rel=1e-2)
    assert dropped["engine/logprob_difference_max"] < 1e-3


# --- Memory


MIB = 1 << 20
CPU = torch.device("cpu")

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc"
)


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@needs_glibc
def test_what_lies_between_tensors_in_use_is_given_back() -> None:
    torch.ones(16 * MIB, dtype=torch.uint8)  # from now on glibc keeps what is smaller
    tensors = [torch.ones(MIB, dtype=torch.uint8) for _ in range(256)]
    last = tensors[-1]
    tensors.clear()
    kept = resident_bytes()
    give_back_freed_memory(CPU)
    assert resident_bytes() < kept - 128 * MIB
    assert last.sum().item() == MIB
