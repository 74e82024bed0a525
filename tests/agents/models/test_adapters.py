"""Folding LoRA adapters into the weights: same model, and nothing left behind."""

from typing import Any

import pytest
import torch

from gymnast.agents import load_model
from gymnast.agents.models.adapters import folded

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
