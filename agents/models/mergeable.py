"""Adapters that a model without adapters can take over: checked and prepared before training.

Small models compute their logits with the matrix of their embedding (`tie_word_embeddings`), and
some families share whole layers (Zamba). Adapters sit on modules: with LoRA on `lm_head`, the head
is W + s B A while the embedding is still W. A model without adapters needs a matrix for each then.
`untie` makes one, before training, so that whatever reads the model afterwards (sampling, saving, a
vLLM server) meets a model that is untied, as its configuration says.

Other adapters cannot be merged at all, because the layer under them computes more than a product
with its weight (Inkling normalises its embedding). They are refused.
"""

import copy
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gymnast.agents.models.experts import never_called
from gymnast.agents.models.float32_head import Float32Head
from gymnast.agents.models.quantized import is_quantized
from gymnast.errors import ModelError, first_line

# The value of a weight that no adapter changes.
_UNCHANGED = "unchanged"
# Layers that compute a product with their weight, or look rows of it up, and nothing else.
_PLAIN_LAYERS = (nn.Linear, Float32Head, Conv1D, nn.Embedding, nn.Conv1d)
# How adapters begin that take a part of the weight under them.
CHANGE_BASE = ("pissa", "olora", "corda", "loftq")
_TRIED = 4  # tokens
_LARGEST_DIFFERENCE = 0.05  # of a layer's result; half precision rounds


@dataclass(frozen=True)
class _Use:
    """The use of a weight by one module.

    Attributes:
        name: Of the weight in the model without adapters.
        owner: The module that holds the weight.
        parameter: The name of the weight in its owner.
        value: Of the weight under adapters; uses with equal values may stay tied.
        replaced: Whether a trained copy of the module is used in place of the weight.
    """

    name: str
    owner: nn.Module
    parameter: str
    value: Hashable
    replaced: bool = False


def make_mergeable(model: Any) -> None:
    """Prepare a model for training such that a model without adapters can take its weights.

    Args:
        model: Of Transformers, or of peft around one; `untie` says what is changed in place.

    Raises:
        ModelError: Some adapters cannot be merged, or cannot be trained as they are.
    """
    if not hasattr(model, "merge_and_unload"):
        return
    _check_shared_adapters(model)
    _check_layers(model)
    if differing := untie(model):
        _check_starts(model, differing)


def _check_layers(model: Any) -> None:
    """Check each adapted layer.

    Raises:
        ModelError: Merging changes what one computes.
    """
    from peft.tuners.lora.layer import ParamWrapper
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    tried, causal = set[tuple[type, type]](), model.get_base_model()
    for name, layer in causal.named_modules():
        if not isinstance(layer, BaseTunerLayer) or isinstance(layer, ParamWrapper):
            continue
        base = layer.base_layer
        if never_called(causal, name):
            own = name.rpartition(".")[2]
            raise ModelError(
                f"lora: {type(causal).__name__} multiplies by the weight of {own} without calling "
                f"that layer, so adapters on it would do nothing; leave {own} out of lora.target"
            )
        if isinstance(base, AuxiliaryTrainingWrapper):
            raise ModelError(
                f"lora: {name} has LoRA and shares its weight with the embedding, of which "
                "trainable_token_indices trains some rows; the two cannot be merged. Leave "
                f"{name} out of lora.target, or leave lora.extra.trainable_token_indices out."
            )
        kind = (type(layer), type(base))
        if type(base) in _PLAIN_LAYERS or is_quantized(base) or kind in tried:
            continue
        tried.add(kind)
        if why := _why_not_merged(layer):
            raise ModelError(
                f"lora: the adapters of {name}, a {type(base).__name__}, cannot be merged into its "
                f"weight ({why}), so the trained model could not be saved. Leave "
                f"{name.removesuffix('.token_adapter').rpartition('.')[2]} out of lora.target "
                "(and lora.extra.trainable_token_indices), or train it as a whole "
                "(lora.extra.modules_to_save)."
            )


@torch.no_grad()
def _why_not_merged(layer: Any) -> str | None:
    """The reason that merging an adapted layer changes what it computes; None if it does not."""
    tried, generator = copy.deepcopy(layer), torch.Generator().manual_seed(0)
    for name, weight in tried.named_parameters():
        if "base_layer" not in name:
            drawn = torch.randn(weight.shape, generator=generator)
            weight.copy_(drawn)
    base = tried.get_base_layer()
    if isinstance(base, nn.Embedding):
        indices = [each for ids in getattr(tried, "token_indices", {}).values() for each in ids]
        given = torch.tensor([[*range(_TRIED), *indices[:_TRIED]]], device=base.weight.device)
    else:
        drawn = torch.randn((1, _TRIED, base.in_features), generator=generator)
        given = drawn.to(base.weight)
    try:
        adapted = tried(given)
        tried.merge()
        merged = base(given)
        difference = (adapted - merged).float().norm() / merged.float().norm().clamp(min=1e-6)
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
        return f"its forward pass fails with them: {first_line(error)}"
    if difference <= _LARGEST_DIFFERENCE:
        return None
    return "it computes more than a product with the weight"


def _check_shared_adapters(model: Any) -> None:
    """Check that no two adapters share memory.

    Raises:
        ModelError: Two do: the update of the second would overwrite that of the first.
    """
    first: dict[int, str] = {}
    for name, weight in model.named_parameters():
        place = weight.data_ptr()
        if "lora_" in name and place and first.setdefault(place, name) != name:
            raise ModelError(
                "lora.extra.ensure_weight_tying: is true, and LoRA is on the embedding and the "
                "head, which share a weight: peft keeps one adapter for both and trains it twice, "
                "so the gradient of one is lost. Leave it out: each gets an adapter of its own, "
                "and the trained model is saved with a matrix for each."
            )


def _check_starts(model: Any, differing: list[str]) -> None:
    """Check that adapters began without a change of weights that several modules share.

    Raises:
        ModelError: They took a part of a shared weight, which other modules lack now.
    """
    for config in model.peft_config.values():
        start = getattr(config, "init_lora_weights", True)
        if str(start).startswith(CHANGE_BASE):
            raise ModelError(
                f"lora.extra.init_lora_weights: is {start!r}, with which adapters begin with a "
                f"part of the weight under them, and {', '.join(differing)} are one weight; leave "
                "it out, or leave these out of lora.target"
            )


def untie(model: Any) -> list[str]:
    """Give modules that share a weight a weight each, where adapters make the shared one differ.

    The model computes the same as before, and its configuration has `tie_word_embeddings: false`.
    Shared weights that stay equal are left alone: those without adapters, and those that peft
    trains as one (`trainable_token_indices`; `modules_to_save` with `ensure_weight_tying`).

    Args:
        model: Of Transformers, or of peft around one; it is changed in place.

    Returns:
        The names of the weights that adapters make differ; empty if nothing was changed.
    """
    if not hasattr(model, "merge_and_unload"):
        return []
    causal = model.get_base_model()
    shared = _shared_weights(causal)
    differing = [uses for uses in shared if len({use.value for use in uses}) > 1]
    if not differing:
        return []
    for uses in shared:  # all of them: one switch of the configuration ties them all
        for use in [use for use in uses if not use.replaced][1:]:
            weight = use.owner._parameters[use.parameter]
            assert weight is not None
            own = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
            use.owner._parameters[use.parameter] = own
    for module in causal.modules():
        if isinstance(module, PreTrainedModel):
            for config in (module.config, module.config.get_text_config()):
                if getattr(config, "tie_word_embeddings", None):
                    config.tie_word_embeddings = False
            module.all_tied_weights_keys = {}
    return [use.name for uses in differing for use in uses]


def _shared_weights(causal: Any) -> list[list[_Use]]:
    """The weights that several modules use, each with its uses."""
    uses: dict[int, list[_Use]] = defaultdict(list)
    for use in _uses(causal, "", set()):
        uses[id(use.owner._parameters[use.parameter])].append(use)
    return [each for each in uses.values() if len(each) > 1]


def _uses(module: nn.Module, name: str, seen: set[int]) -> Iterator[_Use]:
    """The uses of all weights in a module, without those of its adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import ModulesToSaveWrapper, TrainableTokensWrapper

    if id(module) in seen:  # one module in two places is one use
        return
    seen.add(id(module))
    if isinstance(module, ModulesToSaveWrapper) and module.active_adapters:
        trained = dict(module.modules_to_save[module.active_adapters[0]].named_parameters())
        for use in _uses(module.original_module, name, seen):
            own = use.name.removeprefix(f"{name}.")
            # A head that peft ties to a trained embedding has no bias.
            value = id(trained[own]) if own in trained else (id(module), own)
            yield _Use(use.name, use.owner, use.parameter, value, replaced=True)
        return
    if isinstance(module, TrainableTokensWrapper | BaseTunerLayer):
        layer, value = module, id(module)
        if isinstance(module, TrainableTokensWrapper):
            layer = module.token_adapter
            value = id(layer.trainable_tokens_delta)  # one object for modules that peft ties
        base = layer.get_base_layer()
        for use in _uses(base, name, seen):
            yield _Use(use.name, use.owner, use.parameter, value)
        return
    for parameter, weight in module._parameters.items():
        if weight is not None:
            yield _Use(f"{name}.{parameter}", module, parameter, _UNCHANGED)
    for child, inner in module.named_children():
        yield from _uses(inner, f"{name}.{child}" if name else child, seen)
