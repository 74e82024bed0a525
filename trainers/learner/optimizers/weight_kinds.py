"""Which of a model's weights are adapters', and which are matrices within its layers."""

from typing import Any

from torch import nn


def adapter_weights(model: nn.Module) -> set[nn.Parameter]:
    """The weights of adapters: what peft has put around a layer, without the layer itself.

    Whole modules that are trained beside adapters (`modules_to_save`) are none.

    Args:
        model: Of Transformers, or of peft around one.
    """
    parts = (
        part
        for module in model.modules()
        if hasattr(module, "base_layer")
        for name, part in module.named_children()
        if name != "base_layer"
    )
    return {weight for part in parts for weight in part.parameters()}


def has_adapters(model: nn.Module) -> bool:
    """Whether a model has adapters."""
    return bool(adapter_weights(model))


def other_than_matrices(model: Any) -> dict[nn.Parameter, str]:
    """The weights, with their names, that are no matrices within the model's layers.

    Those are the weights of one dimension or of more than two, the embeddings and the head.

    Args:
        model: Of Transformers, or of peft around one.
    """
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    at_ends = {weight for end in ends if end is not None for weight in end.parameters()}
    at_ends -= adapter_weights(model)
    return {
        weight: name
        for name, weight in model.named_parameters()
        if weight.ndim != 2 or weight in at_ends
    }
