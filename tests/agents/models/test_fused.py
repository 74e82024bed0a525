"""Fused modules of one model: its logits and gradients, and nothing else, in fewer kernels.

On a CPU PyTorch computes in place of liger-kernel (`plain_kernels.py`); with `-m gpu` liger-kernel
itself does.
"""

import asyncio
import copy
import gc
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gymnast.agents import TransformersAgent, load_model
from gymnast.agents.loading.adapters import adapter_settings, with_adapters
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.copies import copied
from gymnast.agents.models.double_precision import in_float64
from gymnast.agents.models.fused import (
    Kernels,
    has_fused_modules,
    liger_kernels,
    use_fused_modules,
    use_plain_modules,
)
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.recomputation import Activations
from gymnast.trainers.saving.run_folder import save_model
from gymnast.types import Sampling, Span, StopReason, Trajectory
from model_families import FAMILIES, tiny
from plain_kernels import plain_kernels

IDS = torch.arange(1, 25)[None]
# One of each form: norms that scale by weights or by 1 + weights, rounded before or after; layers
# of several names; rotary embeddings that are shared, partial, or of another kind.
FORMS = ["deepseek_v3", "gemma2", "gemma4_text", "lfm2", "llama", "mixtral", "olmo2", "qwen3"]
EVERY_FAMILY = [
    pytest.param(family, marks=() if family in FORMS else pytest.mark.slow) for family in FAMILIES
]


@pytest.fixture
def kernels(device: torch.device) -> Kernels:
    if device.type == "cpu":
        return plain_kernels()
    pytest.importorskip("liger_kernel")
    return liger_kernels()


def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS.to(model.device), use_cache=False).logits
    return found


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    logits(model).log_softmax(-1)[..., 5].sum().backward()
    named = model.named_parameters()
    return {name: weight.grad.cpu() for name, weight in named if weight.grad is not None}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        difference = torch.linalg.vector_norm(found[name] - gradient)
        assert difference <= 1e-4 * torch.linalg.vector_norm(gradient) + 1e-6, name


@pytest.mark.filterwarnings("default")  # of families whose own kernels are not installed
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_families_keep_their_logits_and_gradients(
    family: str, kernels: Kernels, device: torch.device
) -> None:
    model = tiny(family).to(device)
    expected, slopes = logits(model), gradients(model)
    use_fused_modules(model, kernels)
    with torch.no_grad():  # what is given may be overwritten then
        torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
    assert_same(gradients(model), slopes)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_norms_round_where_the_family_does(family: str) -> None:
    model = tiny(family).bfloat16()
    found = use_fused_modules(model, plain_kernels())
    replaced = [module for module in model.modules() if "forward" in vars(module)]
    norms: list[Any] = [module for module in replaced if "weight" in module._parameters]
    assert len(norms) == found.norms
    for norm in norms:
        norm.weight.data += 0.3 * torch.randn_like(norm.weight)
        x = torch.randn(1, 8, len(norm.weight), dtype=torch.bfloat16)
        assert torch.equal(norm(x), type(norm).forward(norm, x))


@pytest.mark.parametrize(
    ("family", "norms", "mlps", "rotary_embeddings"),
    [
        ("qwen3", 17, 4, 4),
        ("gemma3_text", 25, 4, 4),
        ("phi3", 9, 0, 4),  # its gate and its up are one layer
        ("glm4", 17, 0, 0),  # turns neighbours
        ("gpt2", 0, 0, 0),
    ],
)
def test_modules_of_known_forms_are_replaced(
    family: str, norms: int, mlps: int, rotary_embeddings: int
) -> None:
    called: list[str] = []
    model = tiny(family)
    found = use_fused_modules(model, plain_kernels(called=called))
    assert (found.norms, found.mlps, found.rotary_embeddings) == (norms, mlps, rotary_embeddings)
    assert has_fused_modules(model) is bool(found)
    logits(model)
    expected = {"normalize": norms, "gate": mlps, "rotate": rotary_embeddings}
    assert Counter(called) == Counter({kind: number for kind, number in expected.items() if number})


def test_other_models_of_the_family_stay_plain() -> None:
    called: list[str] = []
    sibling, model = tiny("llama"), tiny("llama")
    earlier = copy.deepcopy(model)
    use_fused_modules(model, plain_kernels(called=called))
    logits(model)
    called.clear()
    for other in (sibling, earlier, tiny("llama")):
        logits(other)
        assert not has_fused_modules(other)
    assert called == []


def test_plain_modules_come_back() -> None:
    called: list[str] = []
    model = tiny("qwen3")
    before = {name: vars(module).copy() for name, module in model.named_modules()}
    use_fused_modules(model, plain_kernels(called=called))
    use_plain_modules(model)
    logits(model)
    assert called == []
    assert before == {name: vars(module) for name, module in model.named_modules()}


def test_models_are_replaced_once_and_by_the_last() -> None:
    first, second = list[str](), list[str]()
    model = tiny("qwen3")
    counted = use_fused_modules(model, plain_kernels(called=first))
    assert use_fused_modules(model, plain_kernels(called=second)) == counted
    logits(model)
    assert not first and second


def test_deep_copies_compute_with_their_own_weights() -> None:
    model = tiny("qwen3")
    use_fused_modules(model, plain_kernels())
    expected = logits(model)
    other = copy.deepcopy(model)
    assert has_fused_modules(other)
    for weight in model.parameters():
        weight.data.zero_()
    torch.testing.assert_close(logits(other), expected)
    del model
    gc.collect()
    torch.testing.assert_close(logits(other), expected)


def test_pickled_models_compute_the_same() -> None:
    model = tiny("gemma2")
    use_fused_modules(model, plain_kernels())
    other = pickle.loads(pickle.dumps(model))
    assert has_fused_modules(other)
    assert torch.equal(logits(other), logits(model))


def test_kernels_compute_on_their_devices_alone(kernels: Kernels, device: torch.device) -> None:
    model = tiny("qwen3")
    expected = logits(model)
    elsewhere = plain_kernels("cuda") if device.type == "cpu" else kernels
    use_fused_modules(model.to(device), elsewhere)
    for other in (copied(model, "cpu"), copy.deepcopy(model).cpu(), model.cpu()):
        assert torch.equal(logits(other), expected)


def test_float64_is_computed_by_the_modules_themselves(
    kernels: Kernels, device: torch.device
) -> None:
    model = tiny("qwen3").to(device)
    with in_float64(model), torch.no_grad():
        expected = logits(model)
    use_fused_modules(model, kernels)
    with in_float64(model), torch.no_grad():
        assert torch.equal(logits(model), expected)
    assert has_fused_modules(model)
    double = tiny("qwen3").double().to(device)
    expected = logits(double)
    use_fused_modules(double, kernels)
    assert torch.equal(logits(double), expected)


def test_mixed_dtypes_are_computed_by_the_modules(kernels: Kernels, device: torch.device) -> None:
    model = tiny("llama").to(device)
    norm = model.model.norm
    use_fused_modules(model, kernels)
    given = torch.randn(1, 3, len(norm.weight), dtype=torch.bfloat16, device=device)
    assert norm(given).dtype == torch.float32  # the product with a float32 weight
    with torch.autocast(device.type, torch.bfloat16):
        expected = logits(model)
        use_plain_modules(model)
        torch.testing.assert_close(logits(model), expected, rtol=0.02, atol=0.02)


def test_no_tokens_and_inference_mode_work(kernels: Kernels, device: torch.device) -> None:
    model = tiny("qwen3").to(device)
    expected = logits(model).detach()
    use_fused_modules(model, kernels)
    with torch.inference_mode():
        torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
        layer = model.model.layers[0]
        nothing = torch.empty(1, 0, model.config.hidden_size, device=device)
        assert layer.mlp(layer.input_layernorm(nothing)).shape == nothing.shape


@pytest.mark.parametrize("activations", ["keep", "recompute"])
def test_packed_groups_are_trained_the_same(
    activations: Activations, kernels: Kernels, device: torch.device
) -> None:
    trajectories = [
        Trajectory(
            ids=[*range(5, 25), *range(30 + 5 * n, 40 + 5 * n)],
            action_mask=[0] * 20 + [1] * 10,
            logprobs=[0.0] * 30,
            prompt_length=20,
            turns=[Span(20, 30)],
            turn_rewards=[0.0],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )
        for n in range(3)
    ]
    batch = micro_batch([CreditedTrajectory(each, torch.ones(1)) for each in trajectories], device)

    def trained(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad()
        logprobs = Policy(model, activations=activations).train()(batch)
        logprobs.sum().backward()
        named = model.named_parameters()
        return logprobs.detach(), {name: weight.grad.cpu() for name, weight in named}

    model = tiny_model().to(device)
    expected, slopes = trained(model)
    use_fused_modules(model, kernels)
    found, ours = trained(model)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert_same(ours, slopes)


@pytest.mark.parametrize("adapted", ["before", "after"])
def test_adapters_are_computed_and_merged(
    adapted: str, kernels: Kernels, device: torch.device
) -> None:
    settings = adapter_settings({"rank": 4, "extra": {"init_lora_weights": False}})
    plain = with_adapters(tiny_model(), settings, seed=0).to(device)
    model = tiny_model().to(device)
    if adapted == "after":
        use_fused_modules(model, kernels)
    model = with_adapters(model, settings, seed=0).to(device)
    if adapted == "before":
        use_fused_modules(model, kernels)
    assert has_fused_modules(model)
    torch.testing.assert_close(logits(model), logits(plain), rtol=1e-4, atol=1e-4)
    assert_same(gradients(model), gradients(plain))
    merged, expected = model.merge_and_unload(), plain.merge_and_unload()
    torch.testing.assert_close(logits(merged), logits(expected), rtol=1e-4, atol=1e-4)


def test_saved_models_are_as_before(tmp_path: Path) -> None:
    model, tokenizer = load_model("tiny:")
    names = list(model.state_dict())
    expected = logits(model)
    use_fused_modules(model, plain_kernels())
    assert list(model.state_dict()) == names
    save_model(model, tokenizer, tmp_path / "model")
    other, _ = load_model(str(tmp_path / "model"))
    assert not has_fused_modules(other)
    assert torch.equal(logits(other), expected)


def test_the_agent_samples_the_same_tokens(kernels: Kernels, device: torch.device) -> None:
    async def sampled(model: Any) -> list[tuple[list[int], list[float]]]:
        agent = TransformersAgent(model)
        assert agent.path == "packed"
        requests = [(list(range(5 + n, 30)), Sampling(max_new_tokens=8, seed=n)) for n in range(3)]
        with agent.awake():
            found = await agent.generate_all(requests)
        return [(each.ids, each.logprobs) for each in found]

    model = tiny_model().to(device)
    expected = asyncio.run(sampled(model))
    use_fused_modules(model, kernels)
    found = asyncio.run(sampled(model))
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


class CenteredNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (8,), self.weight, eps=self.eps)


class OwnNorm(CenteredNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, True) + self.eps)).to(x.dtype)


class OtherEps(OwnNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        mean = wide.pow(2).mean(-1, True) + 10 * self.eps
        return self.weight * (wide * torch.rsqrt(mean)).to(x.dtype)


class HalfNorm(CenteredNorm):
    """Rounds its squares, so that neither formula gives its bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class GatedMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 12), nn.Linear(8, 12)
        self.down_proj = nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class ClampedMLP(GatedMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(x).clamp(max=100), self.up_proj(x).clamp(-100, 100)
        down: torch.Tensor = self.down_proj(F.silu(gate) * up)
        return down


class DroppingMLP(GatedMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(super().forward(x), 0.1, self.training)


class SwappedMLP(GatedMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(self.gate_proj(x) * F.silu(self.up_proj(x)))
        return down


class ExactGelu(GatedMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(F.gelu(self.gate_proj(x)) * self.up_proj(x))
        return down


@pytest.mark.parametrize(
    ("kind", "replaced"),
    [
        (OwnNorm, True),
        (CenteredNorm, False),
        (OtherEps, False),
        (HalfNorm, False),
        (GatedMLP, True),
        (ClampedMLP, False),
        (DroppingMLP, False),
        (SwappedMLP, False),
        (ExactGelu, False),
    ],
)
def test_modules_are_known_by_what_they_compute(kind: type[nn.Module], replaced: bool) -> None:
    module = kind().eval()
    state = torch.get_rng_state()
    assert bool(use_fused_modules(module, plain_kernels())) is replaced
    assert torch.equal(torch.get_rng_state(), state)
    x = torch.randn(1, 5, 8)
    torch.testing.assert_close(module(x), kind.forward(module, x))


def test_forwards_of_other_libraries_are_kept() -> None:
    module = OwnNorm()
    vars(module)["forward"] = torch.neg
    assert not use_fused_modules(module, plain_kernels())
    use_plain_modules(module)
    assert module(torch.ones(2)).tolist() == [-1, -1]


def test_hooks_are_called() -> None:
    seen: list[str] = []
    module = OwnNorm()
    module.register_forward_hook(lambda *_: seen.append("hook"))
    use_fused_modules(module, plain_kernels())
    module(torch.ones(1, 8))
    assert seen == ["hook"]
