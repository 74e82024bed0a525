"""Adapters of experts: trained, folded, merged, saved and switched off like those of other layers.

The families run by default are those that hold experts in different ways; the rest is marked slow.
"""

import copy
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from gymnast.agents import load_model
from gymnast.agents.models.adapters import folded
from gymnast.agents.models.experts import lora_targets
from gymnast.agents.models.merging import merged_weights, save_merged
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.saving.run_folder import save_adapters
from gymnast.types import Span, StopReason, Trajectory
from model_families import tiny

IDS = torch.arange(3, 23)[None]
EACH_KIND = ["deepseek_v3", "gpt_oss"]
OTHERS = [
    "jetmoe", "mixtral", "qwen3_5_moe_text",
    "afmoe", "cohere2_moe", "deepseek_v2", "dots1", "ernie4_5_moe", "exaone_moe", "flex_olmo",
    "glm4_moe", "granitemoe", "granitemoeshared", "hunyuan_v1_moe", "hy_v3", "inkling_text",
    "laguna", "lfm2_moe", "llama4_text", "longcat_flash", "minimax", "minimax_m2", "olmoe",
    "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_next", "solar_open", "zaya",
]  # fmt: skip
slow = partial(pytest.param, marks=pytest.mark.slow)
FAMILIES = [*EACH_KIND, *map(slow, OTHERS)]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def adapted(family: str, folder: Path, **lora: Any) -> Any:
    """A tiny model of a family with adapters that have been trained a little."""
    with warnings.catch_warnings(action="ignore"):
        tiny(family).save_pretrained(folder)
        model, _ = load_model(str(folder), tokenizer=object(), lora={"rank": 3, **lora})
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn(weight.shape, generator=draw)
    return model


def adapts(model: Any) -> set[str]:
    """The names of modules with adapters, in the model without them."""
    around = [n for n, m in model.get_base_model().named_modules() if hasattr(m, "lora_A")]
    return {name.replace(".base_layer", "") for name in around}


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_adapters_of_experts_fold_merge_and_are_saved(family: str, tmp_path: Path) -> None:
    model, bare = adapted(family, tmp_path / "base"), tiny(family)
    assert any("experts" in name or "input_linear" in name for name in adapts(model))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    expected = model(IDS).logits
    near = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    with model.disable_adapter():
        torch.testing.assert_close(model(IDS).logits, bare(IDS).logits, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(model(IDS).logits, expected, atol=1e-2)
    with folded(model):
        near(model(IDS).logits, expected)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    save_merged(model, tmp_path / "merged")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    near(plain(IDS).logits, expected)
    own = dict(bare.named_parameters())
    for name, weight in merged_weights(model):
        own.pop(name).copy_(weight)
    assert not own
    near(bare(IDS).logits, expected)
    save_adapters(model, tmp_path / "adapters")
    if family == "laguna":  # peft looks for its shared experts under other names than it wrote
        return
    again = PeftModel.from_pretrained(tiny(family), str(tmp_path / "adapters")).eval()
    near(again(IDS).logits, expected)


@pytest.mark.parametrize("family", ["gpt_oss", slow("qwen3_moe"), slow("granitemoe")])
@torch.no_grad()
def test_in_bfloat16_sampling_saving_and_training_have_the_same_weights(
    family: str, tmp_path: Path
) -> None:
    model = adapted(family, tmp_path / "base").to(torch.bfloat16)
    expected = model(IDS).logits
    experts = {n: w for n, w in merged_weights(model) if n.endswith(("gate_up_proj", "down_proj"))}
    with folded(model):
        own = {n.replace(".base_layer", ""): w for n, w in model.named_parameters()}
        for name, weight in experts.items():
            assert torch.equal(own[f"base_model.model.{name}"], weight)
    assert torch.equal(model(IDS).logits, expected)


def batch() -> Any:
    """Three members of a group."""
    prompt, episodes = list(range(10, 50)), []
    for actions in (7, 30, 1):
        made = Trajectory(
            ids=prompt + [3 + (7 + 3 * i) % 90 for i in range(actions)],
            action_mask=[0] * 40 + [1] * actions,
            logprobs=[0.0] * (40 + actions),
            prompt_length=40,
            turns=[Span(40, 40 + actions)],
            turn_rewards=[0.0],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )
        episodes.append(CreditedTrajectory(made, torch.ones(1)))
    return micro_batch(episodes, torch.device("cpu"))


def gradients(model: Any, **settings: Any) -> dict[str, torch.Tensor]:
    """Of a weighted sum of log-probabilities, by the name of the weight."""
    model.zero_grad()
    logprobs = Policy(model, **settings).train()(batch())
    (logprobs * torch.arange(len(logprobs))).sum().backward()
    named = model.named_parameters()
    return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


@pytest.mark.parametrize(
    "family", ["deepseek_v3", *map(slow, ["gpt_oss", "granitemoe", "lfm2_moe", "qwen3_5_moe_text"])]
)
def test_gradients_are_those_of_the_merged_experts(family: str, tmp_path: Path) -> None:
    """In float64: with G that of W + s B A, those of B and A are s G A' and s B' G."""
    model = adapted(family, tmp_path / "base").double()
    model.config._experts_implementation = "eager"  # the fused kernel has no float64
    ours = gradients(model)
    merged = tiny(family).double()
    merged.config._experts_implementation = "eager"
    merged.load_state_dict(dict(merged_weights(model)), strict=False)
    whole = gradients(merged)
    checked = 0
    for name, layer in model.get_base_model().named_modules():
        if not hasattr(layer, "parameter_name"):
            continue
        of_sum = whole[f"{name.replace('.base_layer', '')}.{layer.parameter_name}"]
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        delta = layer.get_delta_weight("default")
        for part, expected in zip(
            "AB", torch.autograd.grad(delta, (down, up), of_sum), strict=True
        ):
            given = ours[f"base_model.model.{name}.lora_{part}.default.weight"]
            torch.testing.assert_close(given, expected, rtol=1e-10, atol=1e-10)
            checked += 1
    assert checked >= 8
    torch.testing.assert_close(gradients(model, activations="recompute"), ours)


def test_padded_rows_train_adapters_of_experts(tmp_path: Path) -> None:
    """peft sets an adapted parameter to itself in each pass, and its values stay."""
    model = adapted("lfm2_moe", tmp_path / "base")
    policy = Policy(model)
    assert policy.path == "padded"
    bare = tiny("lfm2_moe")
    bare.load_state_dict(dict(merged_weights(model)), strict=False)
    with torch.no_grad():
        torch.testing.assert_close(policy(batch()), Policy(bare)(batch()))


def test_the_reference_is_the_model_without_adapters(tmp_path: Path) -> None:
    model = adapted("qwen3_moe", tmp_path / "base")
    with torch.no_grad():
        bare = Policy(tiny("qwen3_moe"))(batch())
        torch.testing.assert_close(Reference(model).logprobs(batch()), bare)
        assert not torch.allclose(Policy(model)(batch()), bare, atol=1e-2)


def test_routers_get_no_adapters_and_layers_beside_experts_do(tmp_path: Path) -> None:
    assert {name.split(".", 3)[3] for name in adapts(adapted("deepseek_v3", tmp_path / "a"))} >= {
        "mlp.gate_proj", "mlp.experts", "mlp.shared_experts.down_proj", "self_attn.o_proj",
    }  # fmt: skip
    for family, router in (("qwen3_moe", "gate"), ("afmoe", "router"), ("jetmoe", "router")):
        adapted_modules = adapts(adapted(family, tmp_path / family))
        assert not [name for name in adapted_modules if router in name.split(".")]


def test_names_choose_layers_experts_or_both() -> None:
    model = tiny("deepseek_v3")
    chosen = {
        ("q_a_proj",): (["q_a_proj"], []),
        ("q_a_proj", "experts"): (["q_a_proj"], ["experts.down_proj", "experts.gate_up_proj"]),
        ("gate_up_proj",): ([], ["experts.gate_up_proj"]),
        ("down_proj",): ([], ["down_proj.weight", "experts.down_proj"]),
        ("experts.down_proj", "embed_tokens"): (["embed_tokens"], ["experts.down_proj"]),
    }
    for target, (modules, parameters) in chosen.items():
        found = lora_targets(model, target)
        assert (found.modules, found.parameters) == (modules, parameters)
    dense = lora_targets(tiny("llama"), "all-linear")
    assert (dense.modules, dense.parameters) == ("all-linear", [])


def test_adapters_of_experts_have_no_dropout(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the adapters of experts .* can have none. Set lora"):
        adapted("mixtral", tmp_path / "a", dropout=0.1)
    model = adapted("mixtral", tmp_path / "b", dropout=0.1, target=["q_proj"])
    assert Policy(model).has_dropout


def test_a_copy_of_an_adapted_model_is_another_one(tmp_path: Path) -> None:
    """Where weights are divided over processes, a copy is trained."""
    model = adapted("mixtral", tmp_path / "a")
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            weight.zero_()
        assert model(IDS).logits.abs().max() > 0.1
