"""Which models can be driven with packed sequences: those whose logits stay their own.

Windows here are far longer than the few tokens that are tried.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from gymnast.agents import TransformersAgent
from gymnast.agents.models.check_model import check_model
from gymnast.agents.models.double_precision import in_float64
from gymnast.errors import ModelError
from model_families import tiny

WINDOW = 100


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gpt_oss", "olmo3", "phi3"])
def test_windows_that_layers_tell_of_are_known(family: str) -> None:
    check_model(tiny(family, sliding_window=WINDOW))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_windows_that_only_masks_know_are_found_beyond_what_is_tried(dtype: torch.dtype) -> None:
    model = tiny("phimoe", sliding_window=WINDOW).to(dtype)
    with pytest.raises(ModelError, match="another rule than its sliding windows"):
        check_model(model)
    check_model(model, context_length=WINDOW)


def test_chunked_attention_is_found_and_allowed_in_shorter_contexts() -> None:
    model = tiny("llama4_text", attention_chunk_size=WINDOW, floor_scale=8192)
    with pytest.raises(ModelError, match="shorter context_length"):
        check_model(model)
    check_model(model, context_length=WINDOW)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_that_is_sparse_beyond_what_is_tried_is_found(dtype: torch.dtype) -> None:
    with pytest.raises(ModelError, match=r"what to see \(block_indices\)"):
        check_model(tiny("minimax_m3_vl_text", index_block_size=64).to(dtype))


def test_rotary_frequencies_that_depend_on_the_length_are_allowed_up_to_it() -> None:
    model = tiny("phi3 (longrope)")
    with pytest.raises(ModelError, match=r"beyond 32 tokens.*max_position_embeddings to 32"):
        check_model(model)
    check_model(model, context_length=32)
    model.config.max_position_embeddings = 32
    check_model(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["falcon_h1", "zaya"])
def test_states_and_convolutions_beside_attention_in_every_layer_are_found(
    family: str, dtype: torch.dtype
) -> None:
    with pytest.raises(ModelError, match="mixes tokens by other means than attention"):
        check_model(tiny(family).to(dtype))


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("mamba2", "0 attend through"),
        ("qwen3_next", "2 attend through"),
        ("diffllama", "attend more than once"),
        ("nemotron", "does not hand the arguments"),
        ("falcon", "cannot be driven with packed sequences"),
        ("phimoe", "other logits with packed sequences"),
        ("llama4_text", "counts tokens by where they stand in a pass"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(family: str, why: str) -> None:
    model = tiny(family)
    with pytest.raises(ModelError, match=f"{type(model).__name__} .*{why}"):
        check_model(model)


@pytest.mark.parametrize("family", ["cohere2_moe", "minimax_m2", "deepseek_v3"])
def test_experts_chosen_differently_in_half_precision_are_no_reason(family: str) -> None:
    check_model(tiny(family).to(torch.bfloat16))


def scaled(model: Any, factor: float, of: str = "") -> Any:
    """With larger weights, as training makes them: the more they count, the more rounding does."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if of in name and weight.ndim > 1:
                weight.mul_(factor)
    return model


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "mixtral"])
def test_rounding_is_no_reason_however_large_the_weights(family: str) -> None:
    check_model(scaled(tiny(family), 1000).to(torch.bfloat16))


def test_rounding_is_no_reason_though_it_grows_from_layer_to_layer() -> None:
    deep = tiny("llama", num_hidden_layers=24)
    for projection in ("q_proj", "k_proj"):
        scaled(deep, 10, of=projection)
    check_model(deep.to(torch.bfloat16))


@pytest.mark.parametrize("family", ["falcon_h1", "phimoe"])
def test_another_structure_is_found_however_large_the_weights(family: str) -> None:
    with pytest.raises(ModelError, match=r"mixes tokens by other means|other logits with packed"):
        check_model(scaled(tiny(family), 20).to(torch.bfloat16))


@torch.no_grad()
def test_tensors_that_a_forward_changes_are_changed_and_those_it_replaces_put_back() -> None:
    model = tiny("phi3 (longrope)")  # whose rotary frequencies are others beyond 32 tokens
    ids = torch.arange(1, 41)[None]
    short, long = (model(input_ids=part).logits for part in (ids[:, :20], ids))
    with in_float64(model):
        found = model(input_ids=ids[:, :20]).logits
        assert found.dtype == torch.float64 and torch.allclose(found.float(), short, atol=1e-4)
        assert torch.allclose(model(input_ids=ids).logits.float(), long, atol=1e-4)
    held = [tensor for module in model.modules() for tensor in vars(module).values()]
    kept = [*model.buffers(), *(tensor for tensor in held if isinstance(tensor, torch.Tensor))]
    assert {tensor.dtype for tensor in kept if tensor.is_floating_point()} == {torch.float32}
    assert model(input_ids=ids).logits.dtype == torch.float32


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("family", ["llama", "mamba2"])
def test_weights_that_are_not_finite_are_named(family: str, value: float) -> None:
    model = tiny(family).to(torch.bfloat16)
    name, weight = next((n, p) for n, p in model.named_parameters() if "layers.1." in n)
    weight.data.fill_(value)
    with pytest.raises(ModelError, match=rf"not finite \({name} holds NaN or infinity\)"):
        TransformersAgent(model)


@pytest.mark.parametrize("family", ["mistral", "phimoe"])
def test_the_models_own_attention_is_put_back_whatever_comes_of_it(family: str) -> None:
    model = tiny(family)
    before = model.config._attn_implementation
    with nullcontext() if family == "mistral" else pytest.raises(ModelError):
        check_model(model)
    assert model.config._attn_implementation == before
