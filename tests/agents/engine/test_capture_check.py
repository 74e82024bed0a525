"""What a CUDA graph cannot hold is found on a CPU, wherever it is in a model; all else passes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from gymnast.agents import load_model
from gymnast.agents.engine.capture_check import reads_values
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.float32_head import use_float32_head
from gymnast.agents.models.routing import Routers
from model_families import tiny

Operation = Callable[[torch.Tensor], Any]

READING: dict[str, Operation] = {
    "item": lambda x: x.sum().item(),
    "item ": lambda x: 1 if (x > 0).any() else 2,
    "item  ": lambda x: torch.arange(int(x.long().max())),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.numpy(),
    "nonzero": lambda x: torch.nonzero(x),
    "nonzero ": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: torch.unique(x),
    "unique_consecutive": lambda x: torch.unique_consecutive(x),
    "bincount": lambda x: torch.bincount(x.long().abs().flatten()),
    "equal": lambda x: torch.equal(x, x + 1),
    "an index of booleans": lambda x: x[x > 0],
    "repeat_interleave without output_size": lambda x: torch.repeat_interleave(
        torch.ones(2, dtype=torch.long)
    ),
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "as_tensor": lambda x: torch.as_tensor(3.0, device=x.device),
    "an index made on the host": lambda x: x[..., [0, 1]],
    "an index made on the host ": lambda x: x.clone().__setitem__((0, [0, 1]), 1.0),
    "a number put at indices": lambda x: x.clone().__setitem__((0, torch.arange(2)), 1.0),
    "new_tensor": lambda x: x.new_tensor([1.0]),
}
HARMLESS: dict[str, Operation] = {
    "one_hot": lambda x: F.one_hot(x.long().clamp(0, 3), 4),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "a constant": lambda x: x * torch.tensor(2.0),
    "full": lambda x: torch.full((2, 2), 3.0, device=x.device),
    "a gather": lambda x: x[..., torch.arange(2)],
    "repeat_interleave": lambda x: torch.repeat_interleave(
        torch.ones(2, dtype=torch.long), output_size=2
    ),
    "repeats of one number": lambda x: x.repeat_interleave(2, dim=-1),
    "histc": lambda x: torch.histc(x, bins=4, min=0, max=3),
    "slices": lambda x: x[:, 1:, None, ..., 0],
    "topk": lambda x: x.topk(2),
}


def doing(operation: Operation) -> Any:
    """A model one of whose layers does something more."""
    model = tiny_model(60, hidden_size=32, intermediate_size=32, num_hidden_layers=2)
    layer = model.model.layers[1].mlp
    forward = layer.forward

    def more(hidden: torch.Tensor) -> torch.Tensor:
        operation(hidden)
        made: torch.Tensor = forward(hidden)
        return made

    layer.forward = more
    return model


@pytest.mark.parametrize("operation", READING)
def test_an_operation_that_reads_a_value_is_named(operation: str) -> None:
    found = reads_values(doing(READING[operation]))
    assert found is not None
    named, _, where = found.partition(" in ")
    assert named == operation.strip()
    assert where == "<lambda>", "the function that calls it, and not torch's"


@pytest.mark.parametrize("operation", HARMLESS)
def test_other_operations_are_not(operation: str) -> None:
    assert reads_values(doing(HARMLESS[operation])) is None


def test_the_first_of_several_is_named() -> None:
    found = reads_values(doing(lambda x: (x.nonzero(), x.sum().item())))
    assert found is not None and found.startswith("nonzero in ")


def test_heads_in_float32_read_nothing() -> None:
    model = tiny_model(60, hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    model = model.to(torch.bfloat16)
    use_float32_head(model)
    assert reads_values(model) is None


def test_adapters_read_nothing() -> None:
    model, _ = load_model("tiny:", lora={"rank": 4})
    assert reads_values(model.eval()) is None


@pytest.mark.parametrize(
    "family",
    [
        "deepseek_v3",
        "mixtral",
        *(
            pytest.param(family, marks=pytest.mark.slow)
            for family in ("gpt_oss", "granitemoe", "hunyuan_v1_moe", "qwen3_moe", "olmoe")
        ),
    ],
)
def test_recording_experts_reads_nothing(family: str) -> None:
    model = tiny(family)
    assert reads_values(model, Routers(model)) is None
