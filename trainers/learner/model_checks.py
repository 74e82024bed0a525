"""What a model must be to be trained, and what training leaves out of its configuration."""

from typing import Any

import torch

from gymnast.errors import ConfigError, ModelError
from gymnast.trainers.distributed.divided import Divided

# How adapters may begin so that the model under them is the one from before training.
_CHANGES_NOTHING = (True, "gaussian", "orthogonal")


def check_dtypes(model: Any) -> None:
    """Check that gradients of this model reach its weights.

    Raises:
        ModelError: It computes in float16. Where a loss is a mean over many tokens, what each of
            them adds to a gradient is too small for that, and the loss is not scaled up.
    """
    if any(weight.dtype == torch.float16 for weight in model.parameters()):
        raise ModelError(
            "the model is in float16, in which small gradients become zero. Train in "
            "bfloat16, which takes as much memory, or in float32 (model.dtype); the trained model "
            "can be converted."
        )


def leaves_out(model: Any) -> str:
    """What a model's configuration asks of its loss and training does not do, in words, or ""."""
    config = model.config.get_text_config()
    if not getattr(config, "output_router_logits", False):
        return ""
    weight = getattr(config, "router_aux_loss_coef", None)
    return (
        "the model's configuration has output_router_logits: true (router_aux_loss_coef "
        f"{weight}): the loss that is trained on is the policy's alone, and leaves the router's "
        "auxiliary loss out (docs/moe.md)"
    )


def check_base(model: Any) -> None:
    """Check that the model under its adapters is the one from before training.

    Raises:
        ModelError: Adapters began with a part of its weights.
    """
    for config in getattr(model, "peft_config", {}).values():
        begun = getattr(config, "init_lora_weights", True)
        if begun not in _CHANGES_NOTHING:
            raise ModelError(
                f"lora.extra.init_lora_weights: is {begun!r}, with which the model under its "
                "adapters is not the one that algorithm.kl compares with; leave out either"
            )


def check_divided(divided: Divided) -> None:
    """Check that the launcher leaves a model with 4-bit weights whole in each process.

    Raises:
        ConfigError: FSDP or DeepSpeed is to divide it; both take weights of one float dtype.
    """
    if divided.anything:
        by = "FSDP" if divided.zero is None else f"DeepSpeed's ZeRO-{divided.zero.stage}"
        raise ConfigError(
            f"model.quantization: is nf4, and the launcher asks for {by}, which cannot hold 4-bit "
            "weights. Launch with the whole model in each process (examples/accelerate/cpu.yaml): "
            "what is trained are the adapters alone. Or leave model.quantization out."
        )
