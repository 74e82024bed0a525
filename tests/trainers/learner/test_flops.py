"""The FLOPs of training are those that torch counts in the passes themselves.

torch's counter does not see in-place products, grouped ones or the CPU's fused attention. So the
head and the experts are computed here by plain operations, and attention by eager ones.
"""

import warnings
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.learner.flops import Computed, ModelFlops, card_tflops, count, peak_flops
from gymnast.trainers.learner.policy.micro_batches import (
    CreditedTrajectory,
    MicroBatch,
    micro_batch,
)
from gymnast.trainers.learner.policy.padded import PaddedForward
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Span, StopReason, Trajectory

VOCABULARY, PROMPT, ACTIONS, MEMBERS = 500, 64, 32, 3
LENGTH = PROMPT + ACTIONS
UNSHARED, PACKED = MEMBERS * LENGTH, PROMPT + MEMBERS * ACTIONS
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "eos_token_id": None,
    "pad_token_id": None,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=64, tie_word_embeddings=True),
    "moe": Qwen3MoeConfig(**SHAPE, head_dim=32, **EXPERTS, decoder_sparse_step=1),
}


def made(name: str) -> Any:
    """A model that computes by operations that torch counts."""
    torch.manual_seed(0)
    config = CONFIGS[name]
    config._experts_implementation = "eager"
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def adapted(model: Any) -> Any:
    """With adapters on its linear layers; of a mixture of experts, on those of attention."""
    of_attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    targets = of_attention if hasattr(model.config, "num_experts") else "all-linear"
    with warnings.catch_warnings(action="ignore"):
        return get_peft_model(model, LoraConfig(r=8, target_modules=targets))


def batch() -> MicroBatch:
    """A group whose members share their prompt."""
    made = []
    for member in range(MEMBERS):
        ids = [3 * i % VOCABULARY for i in range(PROMPT)]
        ids += [(7 * member + 11 * i + 1) % VOCABULARY for i in range(ACTIONS)]
        trajectory = Trajectory(
            ids=ids,
            action_mask=[0] * PROMPT + [1] * ACTIONS,
            logprobs=[0.0] * LENGTH,
            prompt_length=PROMPT,
            turns=[Span(PROMPT, LENGTH)],
            turn_rewards=[0.0],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )
        made.append(CreditedTrajectory(trajectory, torch.ones(1)))
    return micro_batch(made, torch.device("cpu"))


def counted(model: Any, forward: Any, given: MicroBatch) -> tuple[float, float]:
    """What torch counts of a forward and a backward pass: in all, and of attention."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    with FlopCounterMode(display=False) as counter:
        logits = F.linear(forward.hidden(given), causal.lm_head.weight)
        F.cross_entropy(logits, given.targets).backward()
    found = counter.get_flop_counts()["Global"]
    attention = sum(flops for operation, flops in found.items() if "bmm" in str(operation))
    return float(counter.get_total_flops()), float(attention)


def attention(model: ModelFlops, positions: torch.Tensor) -> float:
    return sum(layer.flops(positions.numpy()) for layer in model.layers)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("lora", [False, True], ids=["all", "lora"])
def test_packed_flops_are_what_torch_counts(name: str, lora: bool) -> None:
    model = adapted(made(name)) if lora else made(name)
    policy, given = Policy(model), batch()
    assert policy.path == "packed" and len(given.packed.ids) == PACKED
    flops = ModelFlops.of(model, packed=True)
    matrices = flops.of_batch(given).actual_flops
    matrices -= attention(flops, torch.tensor(given.packed.positions))
    total, of_attention = counted(model, policy, given)
    assert matrices == pytest.approx(total - of_attention, rel=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("lora", [False, True], ids=["all", "lora"])
def test_padded_flops_are_what_torch_counts(name: str, lora: bool) -> None:
    model = adapted(made(name)) if lora else made(name)
    causal = model.get_base_model() if lora else model
    flops, given = ModelFlops.of(model, packed=False), batch()
    total, of_attention = counted(model, PaddedForward(model, causal), given)
    positions = torch.arange(LENGTH).repeat(MEMBERS)
    own = attention(flops, positions)
    # Eager attention computes what lies behind the mask, too.
    assert own * 2 * LENGTH / (LENGTH + 1) == pytest.approx(of_attention, rel=1e-6)
    matrices = flops.of_batch(given).actual_flops - own
    assert matrices == pytest.approx(total - of_attention, rel=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_nominal_flops_are_three_forward_passes_over_all_tokens(name: str) -> None:
    model = made(name)
    computed = ModelFlops.of(model, packed=True).of_batch(batch())
    assert computed.tokens == UNSHARED
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(LENGTH)[None], use_cache=False)
    found = counter.get_flop_counts()["Global"]
    of_attention = sum(flops for operation, flops in found.items() if "bmm" in str(operation))
    causal = of_attention * (LENGTH + 1) / (2 * LENGTH)
    whole = counter.get_total_flops() - of_attention + causal
    assert computed.nominal_flops == pytest.approx(3 * MEMBERS * whole, rel=1e-6)


def test_a_shared_prompt_attends_once() -> None:
    flops = ModelFlops.of(made("llama"), packed=True)
    prompt, member = PROMPT * (PROMPT + 1) // 2, sum(range(PROMPT + 1, LENGTH + 1))
    seen = prompt + MEMBERS * member
    heads, width, layers = 4, 32, 4
    positions = torch.tensor(batch().packed.positions)
    assert attention(flops, positions) == 12 * layers * heads * width * seen


def test_a_window_bounds_what_a_token_attends_to() -> None:
    window = 16
    config = MistralConfig(**SHAPE, sliding_window=window)
    model = AutoModelForCausalLM.from_config(config).eval()
    flops = ModelFlops.of(model, packed=False)
    seen = sum(min(position + 1, window) for position in range(LENGTH))
    assert attention(flops, torch.arange(LENGTH)) == 12 * 4 * 4 * 32 * seen
    computed = flops.of_batch(batch())
    whole = MEMBERS * LENGTH * (LENGTH + 1) // 2
    nominal = 6 * flops.parameters * UNSHARED + 12 * 4 * 4 * 32 * whole
    assert computed.nominal_flops == pytest.approx(nominal)


def test_below_the_first_trained_weight_nothing_flows_back() -> None:
    model = made("llama")
    model.requires_grad_(False)
    model.model.layers[-1].requires_grad_(True)
    flops, given = ModelFlops.of(model, packed=False), batch()
    assert [layer.passes for layer in flops.layers] == [1, 1, 1, 3]
    total, of_attention = counted(model, PaddedForward(model, model), given)
    own = attention(flops, torch.arange(LENGTH).repeat(MEMBERS))
    matrices = flops.of_batch(given).actual_flops - own
    assert matrices == pytest.approx(total - of_attention, rel=1e-6)


def test_adapters_of_experts_count_as_the_experts_that_are_chosen(tmp_path: Any) -> None:
    made("moe").save_pretrained(tmp_path)
    with warnings.catch_warnings(action="ignore"):
        model, _ = load_model(str(tmp_path), tokenizer=object(), lora={"rank": 8})
    bare, adapters = ModelFlops.of(made("moe"), packed=True), ModelFlops.of(model, packed=True)
    rank, layers, chosen, hidden, inner, heads = 8, 4, 2, 128, 64, 32
    projections = [(hidden, 4 * heads), (hidden, 2 * heads), (hidden, 2 * heads)]
    projections += [(4 * heads, hidden)]
    of_experts = [(hidden, 2 * inner), (inner, hidden)]
    more = sum(rank * (a + b) for a, b in projections)
    more += chosen * sum(rank * (a + b) for a, b in of_experts)
    assert adapters.parameters - bare.parameters == layers * more


def test_tokens_are_counted_where_flops_are_not() -> None:
    assert count([batch(), batch()], None) == Computed(tokens=2 * UNSHARED)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA GeForce RTX 3090", 71),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A10G", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Tesla T4", None),
        ("AMD Instinct MI300X", None),
    ],
)
def test_cards_are_known_by_their_names(name: str, tflops: float | None) -> None:
    assert card_tflops(name) == tflops


def test_the_rate_is_what_is_set_or_that_of_a_known_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert peak_flops(gpu, torch.bfloat16) == 989e12
    assert peak_flops(gpu, torch.float32) is None
    assert peak_flops(cpu, torch.bfloat16) is None
    assert peak_flops(cpu, torch.float32, 0.5) == 0.5e12
    assert peak_flops(gpu, torch.bfloat16, 500) == 500e12


def test_counting_leaves_a_model_as_it_is() -> None:
    model = tiny_model()
    before = model(input_ids=torch.arange(1, 9)[None]).logits
    ModelFlops.of(model, packed=True)
    assert torch.equal(model(input_ids=torch.arange(1, 9)[None]).logits, before)
    assert not any(module._forward_pre_hooks for module in model.modules())
