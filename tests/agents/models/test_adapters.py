"""Folding LoRA adapters into the weights: same model, and nothing left behind."""

from typing import Any

import pytest
import torch

from gymnast.agents import load_model
from gymnast.agents.models.adapters import folded

EXTRA: dict[str, dict[str, Any]] = {
    "rsLoRA": {"use_rslora": True},
    "DoRA": {"use_dora": True},
    "ranks by name": {"rank_pattern": {"q_proj": 2}},
    "a whole module beside": {"modules_to_save": ["norm"]},
    "single tokens beside": {"trainable_token_indices": [5, 6]},
}
IDS = torch.arange(3, 20)[None]


@pytest.fixture
def adapted() -> Any:
    model, _ = load_model("tiny:", lora={"rank": 4})
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    return model


@torch.no_grad()
def test_a_folded_model_is_the_adapted_one_and_comes_back_bit_for_bit(adapted: Any) -> None:
    before = {name: weight.clone() for name, weight in adapted.named_parameters()}
    expected = adapted(IDS).logits
    with adapted.disable_adapter():
        assert not torch.allclose(adapted(IDS).logits, expected, atol=1e-2)
    with folded(adapted):
        torch.testing.assert_close(adapted(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    for name, weight in adapted.named_parameters():
        assert torch.equal(weight, before[name])
    assert torch.equal(adapted(IDS).logits, expected)


@torch.no_grad()
@pytest.mark.parametrize("extra", EXTRA.values(), ids=list(EXTRA))
def test_adapters_with_options_of_peft_sample_as_they_train(extra: dict[str, Any]) -> None:
    """Those that cannot be folded are not; what is trained beside adapters stays switched on."""
    model, _ = load_model("tiny:", lora={"rank": 4, "extra": extra})
    fresh, _ = load_model("tiny:")
    for weight in model.parameters():
        if weight.requires_grad:
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    expected = model(IDS).logits
    assert not torch.allclose(fresh(IDS).logits, expected, atol=1e-2)
    with folded(model):
        torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(model(IDS).logits, expected)


def test_an_error_inside_still_unfolds(adapted: Any) -> None:
    before = {name: weight.clone() for name, weight in adapted.named_parameters()}
    with pytest.raises(ValueError), folded(adapted):
        raise ValueError
    assert all(torch.equal(weight, before[name]) for name, weight in adapted.named_parameters())


def test_a_model_without_adapters_passes_through() -> None:
    model, _ = load_model("tiny:")
    expected = model(IDS).logits
    with folded(model):
        assert torch.equal(model(IDS).logits, expected)
