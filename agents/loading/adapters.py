"""Adapters of LoRA on a model, made by peft: their settings, and what is said of wrong ones."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch

from gymnast.agents.models.experts import lora_targets
from gymnast.agents.models.mergeable import CHANGE_BASE, make_mergeable
from gymnast.agents.models.quantized import has_quantized_layers
from gymnast.errors import ModelError, first_line
from gymnast.lookup import did_you_mean

_LORA_DEFAULTS: dict[str, Any] = {
    "rank": 16,
    "alpha": None,
    "target": "all-linear",
    "dropout": 0.0,
    "extra": {},
}
# Options of peft's LoraConfig that are settings here, or that it finds out itself.
_LORA_NAMES = {
    "r": "rank",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "target_modules": "target",
    "target_parameters": "target",
}
_LORA_REFUSED = {
    "bias": "a layer's biases are part of the model without adapters, which has to stay as it was",
    "lora_bias": "an adapter's bias cannot be merged into a layer without one, nor the model saved",
    "alora_invocation_tokens": "adapters that act from a token on are not computed in training",
    "layer_replication": "a copied layer shares its weights, and cannot be saved by itself",
}
# Types of options as peft writes them, and what messages call them.
_TYPES: dict[type, set[str]] = {
    bool: {"bool"},
    list: {"Optional[list[str]]"},
    dict: {"dict", "Optional[dict]"},
}
_WORDS = {bool: "true or false", list: "a list", dict: "a mapping (key: value)"}
_LORA_OWN = {"task_type", "peft_type", "inference_mode", "base_model_name_or_path", "peft_version"}


def check_lora(lora: Mapping[str, Any]) -> None:
    """Check settings of adapters before anything is loaded.

    Args:
        lora: As for `load_model`.

    Raises:
        ModelError: A setting, or an option for peft, does not hold; or peft is not installed.
    """
    adapter_settings(lora)


def adapter_settings(lora: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, with their defaults.

    Raises:
        ModelError: As `check_lora` does.
    """
    unknown = sorted(set(lora) - set(_LORA_DEFAULTS))
    if unknown:
        raise ModelError(
            f"lora: unknown setting {unknown[0]!r}; there are {', '.join(_LORA_DEFAULTS)}"
        )
    settings = _LORA_DEFAULTS | dict(lora)
    if settings["alpha"] is None:
        settings["alpha"] = 2 * settings["rank"]
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise ModelError(
            "lora: training adapters needs the peft package; run: pip install 'gymnast-rl[lora]'"
        ) from error
    _check_extra(settings["extra"])
    return settings


def _check_extra(extra: Mapping[str, Any]) -> None:
    """Check the names and the types of peft's options.

    Raises:
        ModelError: One is a setting of `lora` here, or peft has none of this name or type.
    """
    from peft import LoraConfig

    known = {f.name: str(f.type) for f in fields(LoraConfig) if f.name not in _LORA_OWN}
    for name, value in extra.items():
        if name in _LORA_NAMES:
            raise ModelError(f"lora.extra.{name}: leave it out, and set lora.{_LORA_NAMES[name]}")
        if name not in known:
            hint = did_you_mean(name, known) or f" There are: {', '.join(known)}."
            raise ModelError(f"lora.extra.{name}: peft's LoraConfig has no such option.{hint}")
        if name in _LORA_REFUSED and value not in (None, False, "none"):
            raise ModelError(
                f"lora.extra.{name}: must be left out, got {value!r:.80}: {_LORA_REFUSED[name]}"
            )
        kind = next((k for k, types in _TYPES.items() if known[name] in types), None)
        if value is not None and kind is not None and not isinstance(value, kind):
            raise ModelError(f"lora.extra.{name}: must be {_WORDS[kind]}, got {value!r:.80}")


def with_adapters(model: Any, settings: Mapping[str, Any], seed: int) -> Any:
    """Put adapters on a model.

    Args:
        model: Of Transformers.
        settings: What `adapter_settings` returned.
        seed: Of their first weights.

    Raises:
        ModelError: A name finds nothing in the model, peft refuses an option, or the adapters could
            not be merged into the trained model.
    """
    from peft import LoraConfig, get_peft_model

    extra = settings["extra"]
    _check_names(model, "target", settings["target"])
    _check_names(model, "extra.modules_to_save", extra.get("modules_to_save") or [])
    if has_quantized_layers(model):
        _check_leaves_base(model, extra)
    target = lora_targets(model, settings["target"])
    if target.parameters and settings["dropout"]:
        raise ModelError(
            f"lora: dropout is {settings['dropout']}, and the adapters of experts "
            f"({', '.join(target.parameters)}) can have none. Set lora.dropout to 0, or leave the "
            "experts out: name in lora.target the modules that get adapters."
        )
    if target.parameters and extra.get("use_dora"):
        raise ModelError(
            f"lora.extra.use_dora: is true, and the adapters of experts "
            f"({', '.join(target.parameters)}) cannot have it. Leave it out, or leave the experts "
            "out: name in lora.target the modules that get adapters."
        )
    make: Any = LoraConfig
    try:
        config = make(
            r=settings["rank"],
            lora_alpha=settings["alpha"],
            lora_dropout=settings["dropout"],
            target_modules=target.modules,
            target_parameters=target.parameters or None,
            task_type="CAUSAL_LM",
            **extra,
        )
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            # peft asks models for names that Transformers has deprecated.
            warnings.simplefilter("ignore", FutureWarning)
            # What it warns of is done below: the weights are untied.
            warnings.filterwarnings("ignore", "Model (has|with) `tie_word_embeddings=True`")
            torch.manual_seed(seed)
            adapted = get_peft_model(model, config, autocast_adapter_dtype=False)
    except (ValueError, TypeError, NotImplementedError, ImportError, AttributeError) as error:
        options = f" with extra {dict(extra)!r:.200}" if extra else ""
        why = first_line(error).replace("[PEFT:PeftType.LORA] ", "")
        raise ModelError(
            f"lora{options}: {why.replace('`target_modules`', 'lora.target')}"
        ) from error
    if has_quantized_layers(model):  # whose codes have no dtype for their adapters
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.data = weight.data.to(model.dtype)
    make_mergeable(adapted)
    return adapted


def _check_leaves_base(model: Any, extra: Mapping[str, Any]) -> None:
    """Check that options of peft leave the weights of a model with 4-bit weights as they are.

    Raises:
        ModelError: Adapters begin with a part of them, or they are trained as whole modules.
    """
    begun = extra.get("init_lora_weights", True)
    if str(begun).startswith(CHANGE_BASE):
        raise ModelError(
            f"lora.extra.init_lora_weights: is {begun!r}, with which adapters take a part of the "
            "weights under them, and those in 4 bits (model.quantization) stay as they are. Leave "
            "it out."
        )
    for wanted in extra.get("modules_to_save") or []:
        for name, module in model.named_modules():
            if f".{name}".endswith(f".{wanted}") and has_quantized_layers(module):
                raise ModelError(
                    f"lora.extra.modules_to_save: has {wanted!r}, and {name} has 4-bit weights "
                    "(model.quantization), which cannot be trained themselves. Leave it out, or "
                    "name it in lora.target."
                )


def _check_names(model: Any, setting: str, names: str | Iterable[str]) -> None:
    """Check that each name ends that of a module or a weight, or is a pattern of one.

    Raises:
        ModelError: One is not; peft would leave it out without a word where another is found.
    """
    every = [name for name, _ in [*model.named_modules(), *model.named_parameters()]]
    if isinstance(names, str):  # a pattern
        if names.lower() == "all-linear" or any(re.fullmatch(names, name) for name in every):
            return
        names = [names]
    for wanted in names:
        if not any(name == wanted or name.endswith(f".{wanted}") for name in every):
            last = list(dict.fromkeys(name.rpartition(".")[2] for name in every))
            own = [name for name in last if name and not name.isdigit()]
            raise ModelError(
                f"lora.{setting}: nothing in {type(model).__name__} is called {wanted!r}."
                f"{did_you_mean(wanted, own)} There are: {', '.join(own[:40])}."
            )
