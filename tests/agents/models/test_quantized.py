"""4-bit weights under adapters: one base for sampling, training and saving."""

import asyncio
import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from executor_fixtures import MakeAgent
from gymnast.agents import PolicyWeights, TransformersAgent, load_model, place_model
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.agents.models.adapters import folded, folded_bytes
from gymnast.agents.models.check_model import check_model
from gymnast.agents.models.double_precision import Precision, in_float64
from gymnast.agents.models.merging import merged_weights, save_base, save_merged
from gymnast.errors import ModelError
from gymnast.trainers.saving.run_folder import save_model
from gymnast.types import Completion, Sampling
from model_families import tiny

bitsandbytes: Any = pytest.importorskip("bitsandbytes")  # GPU machines may lack it
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # peft's
TOKENIZER = tiny_tokenizer()
IDS = torch.arange(3, 40)[None]
EVERYWHERE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA: dict[str, dict[str, Any]] = {
    "all linear layers": {},
    "one layer of each": {"target": ["q_proj"]},
    "the head too": {"target": [*EVERYWHERE, "lm_head"]},
    "rsLoRA": {"extra": {"use_rslora": True}},
    "ranks by name": {"extra": {"rank_pattern": {"q_proj": 2}}},
    "a whole module beside": {"extra": {"modules_to_save": ["norm"]}},
    "a copy of the head": {"extra": {"modules_to_save": ["lm_head"]}},
    "single tokens beside": {"extra": {"trainable_token_indices": [5, 6]}},
    "DoRA": {"extra": {"use_dora": True}},
}
PLAIN = ["all linear layers", "one layer of each", "the head too", "rsLoRA", "ranks by name"]


def quantized(name: str = "tiny:", dtype: str = "float32", **lora: Any) -> Any:
    """A model with 4-bit weights whose adapters do something."""
    model, _ = load_model(
        name, dtype=dtype, lora={"rank": 4, **lora}, quantization="nf4", tokenizer=TOKENIZER
    )
    change(model)
    return model


@torch.no_grad()
def change(model: Any, seed: int = 0) -> None:
    """What an update does to the weights that are trained."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.add_((0.05 * torch.randn(weight.shape, generator=generator)).to(weight.dtype))


@torch.no_grad()
def dequantised(model: Any) -> Any:
    """The same model with float weights under the same adapters."""
    plain, _ = load_model("tiny:", dtype=model.dtype, lora={"rank": 4}, tokenizer=TOKENIZER)
    layers = dict(plain.named_modules())
    for name, layer in model.named_modules():
        if isinstance(layer, bitsandbytes.nn.Linear4bit):
            weight = bitsandbytes.functional.dequantize_4bit(
                layer.weight.data, layer.weight.quant_state
            )
            layers[name].weight.copy_(weight)
    weights = dict(plain.named_parameters())
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weights[name].copy_(weight)
    return plain


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


def saved(model: Any, folder: Path) -> Any:
    save_merged(model, folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def merged_by_hand(layer: Any) -> torch.Tensor:
    """The sum of what bitsandbytes dequantises and s B A, in float32, rounded."""
    weight = bitsandbytes.functional.dequantize_4bit(
        layer.base_layer.weight.data, layer.base_layer.weight.quant_state
    )
    down, up = layer.lora_A["default"].weight.float(), layer.lora_B["default"].weight.float()
    merged: torch.Tensor = weight.float() + layer.scaling["default"] * (up @ down)
    return merged.to(weight.dtype)


# --- One base


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_it_computes_what_its_dequantised_weights_compute(dtype: str) -> None:
    model = quantized(dtype=dtype)
    assert torch.equal(logits(model), logits(dequantised(model)))


def test_gradients_of_adapters_are_those_of_float_weights() -> None:
    model = quantized()
    plain = dequantised(model)
    for each in (model, plain):
        each(IDS).logits.log_softmax(-1)[0, :, 7].sum().backward()
    theirs = dict(plain.named_parameters())
    compared = 0
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            expected = theirs[name].grad
            assert expected is not None and expected.abs().max() > 0
            torch.testing.assert_close(weight.grad, expected, rtol=1e-5, atol=1e-5)
            compared += 1
    assert compared == 2 * 7 * 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sampling_leaves_the_base_that_is_trained(dtype: str) -> None:
    """bitsandbytes would repack weights for some CPUs, round scales, and lose gradients."""
    model = quantized(dtype=dtype)
    before, expected = copy.deepcopy(model.state_dict()), logits(model)
    for _ in range(2):
        asyncio.run(sampled(TransformersAgent(model)))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    found = model(IDS).logits
    assert torch.equal(found, expected)
    found.sum().backward()
    first = model.get_base_model().model.layers[0].self_attn.q_proj.lora_B["default"].weight
    assert first.grad is not None and first.grad.abs().max() > 0


def test_float64_takes_the_weights_of_its_dtype() -> None:
    """So that a saved model differs from the trained one by rounding alone."""
    model = quantized(dtype="bfloat16")
    with in_float64(model):
        found = logits(model)
    expected = logits(dequantised(model).double())
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # the angles are float32
    check_model(model)


def test_dora_is_compared_in_its_own_dtype(tmp_path: Path) -> None:
    """peft dequantises for it, which bitsandbytes does not do in float64."""
    model = quantized(dtype="bfloat16", **LORA["DoRA"])
    assert not Precision(model, [5, 6, 7]).in_float64
    assert check_model(model) > 0
    save_model(model, TOKENIZER, tmp_path / "saved")  # which compares it with the trained one


@pytest.mark.parametrize("lora", LORA.values(), ids=list(LORA))
def test_adapters_are_never_folded_in(lora: Mapping[str, Any]) -> None:
    model = quantized(**{**lora, "target": lora.get("target", EVERYWHERE)})
    before = copy.deepcopy(model.state_dict())
    assert folded_bytes(model) == 0
    with folded(model):
        after = model.state_dict()
        assert all(torch.equal(weight, after[name]) for name, weight in before.items())


def test_a_model_that_a_user_quantised_is_prepared(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import BitsAndBytesConfig

    tiny_model().save_pretrained(tmp_path / "base")
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", quantization_config=how)
    config: Any = LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
    model = place_model(get_peft_model(base, config).eval(), "cpu")
    change(model)
    plain = saved(model, tmp_path / "saved")
    torch.testing.assert_close(logits(model), logits(plain), rtol=1e-4, atol=1e-5)


def test_weights_that_were_repacked_are_refused(tmp_path: Path) -> None:
    model = quantized()
    layer = model.get_base_model().model.layers[0].self_attn.q_proj.base_layer
    layer.weight.quant_state.packing_format_for_cpu = True
    with pytest.raises(ModelError, match="4-bit weights were packed"):
        place_model(model, "cpu")


# --- Saved as a plain model


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("lora", PLAIN)
def test_merged_weights_are_the_rounded_sum_bit_for_bit(
    lora: str, dtype: str, tmp_path: Path
) -> None:
    model = quantized(dtype=dtype, **LORA[lora])
    plain = saved(model, tmp_path)
    sums, bare = 0, 0
    for name, layer in model.get_base_model().named_modules():
        if isinstance(getattr(layer, "base_layer", None), bitsandbytes.nn.Linear4bit):
            assert torch.equal(plain.get_submodule(name).weight, merged_by_hand(layer)), name
            sums += 1
        elif isinstance(layer, bitsandbytes.nn.Linear4bit) and not name.endswith(".base_layer"):
            state = layer.weight.quant_state
            weight = bitsandbytes.functional.dequantize_4bit(layer.weight.data, state)
            assert torch.equal(plain.get_submodule(name).weight, weight), name
            bare += 1
    assert sums + bare == 28
    assert {type(module) for module in plain.modules()}.isdisjoint({bitsandbytes.nn.Linear4bit})
    assert "quantization_config" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("lora", LORA.values(), ids=list(LORA))
def test_a_saved_model_computes_what_was_trained(lora: Mapping[str, Any], tmp_path: Path) -> None:
    model = quantized(**lora)
    plain = saved(model, tmp_path)
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-5)
    handed = dict(merged_weights(model))
    own = dict(plain.named_parameters())
    assert handed.keys() == own.keys()
    assert all(torch.equal(weight, own[name]) for name, weight in handed.items())


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "qwen2", "phi3", "bloom"])
def test_layers_of_other_shapes_are_saved(family: str, tmp_path: Path) -> None:
    """Weights that are held transposed, biases, several products in one layer."""
    tiny(family).save_pretrained(tmp_path / "base")
    TOKENIZER.save_pretrained(tmp_path / "base")
    model = quantized(str(tmp_path / "base"))
    plain = saved(model, tmp_path / "saved")
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-5)


def test_the_base_is_saved_dequantised(tmp_path: Path) -> None:
    model = quantized()
    save_base(model, tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with model.disable_adapter():
        torch.testing.assert_close(logits(plain), logits(model), rtol=1e-5, atol=1e-6)


# --- Sampled


CONTEXTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [5, 6, 7, 8, 9, 10]]


async def sampled(agent: TransformersAgent) -> list[Completion]:
    drawn = [Sampling(max_new_tokens=12, seed=n) for n in range(len(CONTEXTS) - 1)]
    samplings = [*drawn, Sampling(max_new_tokens=12, temperature=0.0)]
    with agent.awake():
        return await agent.generate_all(list(zip(CONTEXTS, samplings, strict=True)))


def test_log_probabilities_are_those_of_a_plain_forward(make_agent: MakeAgent) -> None:
    model = quantized()
    model.config.max_position_embeddings = 200
    for context, completion in zip(CONTEXTS, asyncio.run(sampled(make_agent(model))), strict=True):
        ids = torch.tensor([[*context, *completion.ids]])
        with torch.no_grad():
            every = model(ids).logits[0, len(context) - 1 : -1].log_softmax(-1)
        own = every[range(len(completion.ids)), completion.ids]
        if context != CONTEXTS[-1]:  # the greedy one, whose tokens have no other probability
            torch.testing.assert_close(torch.tensor(completion.logprobs), own, rtol=0, atol=1e-5)


def test_rows_and_pages_give_the_same_tokens() -> None:
    model = quantized()
    model.config.max_position_embeddings = 200
    rows, pages = (
        asyncio.run(sampled(TransformersAgent(model, executor=name, kv_budget_bytes=2**22)))
        for name in ("rows", "pages")
    )
    assert [each.ids for each in rows] == [each.ids for each in pages]
    for ours, theirs in zip(rows, pages, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


def test_a_copy_has_its_own_scales_and_takes_adapters() -> None:
    model = quantized()
    agent = TransformersAgent(model, device="cpu")
    ours = model.get_base_model().model.layers[0].mlp.up_proj.base_layer
    theirs = agent.model.get_base_model().model.layers[0].mlp.up_proj.base_layer
    assert ours.weight.data_ptr() != theirs.weight.data_ptr()
    scales, others = ours.weight.quant_state.absmax, theirs.weight.quant_state.absmax
    assert torch.equal(scales, others) and scales.data_ptr() != others.data_ptr()
    assert theirs.quant_state is theirs.weight.quant_state
    change(model, seed=1)
    assert not torch.equal(logits(agent.model), logits(model))
    agent.update_weights(PolicyWeights(model), 1)
    assert torch.equal(logits(agent.model), logits(model))
    assert not any(weight.requires_grad for weight in agent.model.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("executor", ["rows", "pages"])
def test_a_gpu_samples_and_trains_with_one_base(executor: Any) -> None:
    """It quantises there, moves codes with their scales, and captures 4-bit kernels in graphs."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    model = quantized(dtype="bfloat16")
    assert model.device.type == "cpu"
    on_cpu = logits(model)
    place_model(model, "cuda")
    layer = model.get_base_model().model.layers[0].mlp.up_proj.base_layer
    assert layer.weight.quant_state.absmax.device.type == "cuda"
    agent = TransformersAgent(model, executor=executor)
    assert agent.executor == executor
    for context, completion in zip(CONTEXTS, asyncio.run(sampled(agent)), strict=True):
        ids = torch.tensor([[*context, *completion.ids]], device="cuda")
        with torch.no_grad():
            every = model(ids).logits[0, len(context) - 1 : -1].float().log_softmax(-1)
        own = every[range(len(completion.ids)), completion.ids]
        difference = (torch.tensor(completion.logprobs) - own.cpu()).abs().mean()
        assert difference < 0.02, difference
    with torch.no_grad():
        on_gpu = model(IDS.cuda()).logits.cpu()
    torch.testing.assert_close(on_gpu, on_cpu, rtol=0, atol=0.05)
    model(IDS.cuda()).logits.sum().backward()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert all(weight.grad is not None for weight in trained)
