"""Where fused modules are used: `model.kernels` of a run, `kernels=` of `load_model`.

    auto     where the model is on a GPU, liger-kernel is installed, and the log-probabilities are
             as near to those of float64 as the plain modules'; plain modules elsewhere
    liger    an error where they cannot be used
    none     plain modules

A model remembers what was requested, and so does a copy of it: a model is loaded on the CPU, and
decided on where it is placed (`place_model`).
"""

from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch

from gymnast.agents.models.context_limits import longest_context
from gymnast.agents.models.double_precision import in_float64
from gymnast.agents.models.evaluation_mode import evaluate
from gymnast.agents.models.fused import (
    Kernels,
    has_fused_modules,
    liger_kernels,
    plain_modules,
    use_fused_modules,
    use_plain_modules,
)
from gymnast.agents.models.quantized import use_exact_layers
from gymnast.errors import ModelError, first_line
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

KernelChoice = Literal["auto", "liger", "none"]

DEVICE = "cuda"
# Of a model of Transformers: what was requested and not decided yet.
_REQUEST = "_gymnast_kernels"
# The text that modules are compared on, once: sequences and their tokens.
SEQUENCES, TOKENS = 4, 64
# Fused modules may be farther from float64 than the plain ones by this factor; nearer than so many
# nats a token is near enough (float32).
FACTOR, NEAR = 1.1, 1e-4


def request_kernels(model: Any, kernels: str) -> None:
    """Remember by what a model is to compute its norms, MLPs and rotary embeddings.

    Args:
        model: Of Transformers, or of peft around one.
        kernels: "auto", "liger" or "none".

    Raises:
        ModelError: It is none of these.
    """
    _check_name(kernels)
    setattr(_without_adapters(model), _REQUEST, kernels)


def check_kernels(kernels: str) -> None:
    """Check a request before anything is loaded.

    Raises:
        ModelError: It is not known, or liger-kernel is requested and not installed.
    """
    _check_name(kernels)
    if kernels == "liger":
        liger_kernels()


def _check_name(kernels: str) -> None:
    known = get_args(KernelChoice)
    if kernels not in known:
        raise ModelError(f"kernels: must be one of {', '.join(known)}, got {kernels!r:.100}")


def requested_kernels(model: Any) -> str:
    """What was requested for a model; "none" where it was not loaded by `load_model`."""
    request: str = getattr(_without_adapters(model), _REQUEST, "none")
    return request


def place_model(model: Any, device: torch.device | str) -> Any:
    """Move a model to a device, and decide there on fused modules, as was requested.

    Weights in 4 bits move with their scales; they were quantised while they were loaded.

    Args:
        model: Of Transformers, or of peft around one.
        device: As torch names it.

    Returns:
        The model.

    Raises:
        ModelError: liger-kernel is required (`kernels: liger`), and cannot be used.
    """
    use_exact_layers(model)
    model.to(device)
    fuse_as_requested(model)
    return model


def fuse_as_requested(model: Any) -> None:
    """Decide on fused modules for a model where it is; the second call changes nothing.

    Raises:
        ModelError: liger-kernel is required (`kernels: liger`), and cannot be used.
    """
    request = requested_kernels(model)
    if request == "none" or has_fused_modules(model):
        return
    on_device = model.device.type == DEVICE
    if request == "liger":
        if not on_device:
            raise ModelError(
                f"model.kernels: is liger, which needs a GPU ({DEVICE}), and the model is on "
                f"{model.device}. Set it (kernels= of load_model) to auto or none."
            )
        require_kernels(model)
    elif on_device and find_spec("liger_kernel") is None:
        request_kernels(model, "none")  # said once
        logger.info(
            "plain modules: with liger-kernel, sampling and training are up to twice as fast on %s "
            "(pip install gymnast-rl[gpu])",
            model.device,
        )
    elif on_device:
        try_kernels(model)


def require_kernels(model: Any, kernels: Kernels | None = None) -> None:
    """Use fused modules, and report how near to float64 they are.

    Args:
        model: Of Transformers, or of peft around one, on a device of the kernels.
        kernels: By default liger-kernel's.

    Raises:
        ModelError: The model has no such modules, or the kernels fail.
    """
    name = type(_without_adapters(model)).__name__
    fused = use_fused_modules(model, kernels)
    if not fused:
        raise ModelError(
            f"model.kernels: is liger, and {name} has no RMSNorm, gated MLP or rotary embedding of "
            "a known form. Set it (kernels= of load_model) to auto or none."
        )
    try:
        plain, own = distances_from_float64(model)
    except Exception as error:  # of a compiler, a driver
        use_plain_modules(model)
        raise ModelError(
            f"model.kernels: is liger, and its kernels fail for {name} on {model.device} "
            f"({type(error).__name__}: {first_line(error)}). Set it (kernels= of load_model) to "
            "auto or none."
        ) from error
    _report(fused, plain, own, logger.info if _near(plain, own) else logger.warning)


def try_kernels(model: Any, kernels: Kernels | None = None) -> None:
    """Use fused modules if they work and are as near to float64 as plain modules; else do not.

    Args:
        model: Of Transformers, or of peft around one, on a device of the kernels.
        kernels: By default liger-kernel's.
    """
    try:
        fused = use_fused_modules(model, kernels)
        plain, own = distances_from_float64(model) if fused else (0.0, 0.0)
    except Exception as error:  # of a compiler, a driver, an installation
        logger.warning(
            "plain modules: the kernels failed (%s: %s)", type(error).__name__, first_line(error)
        )
    else:
        if fused and _near(plain, own):
            _report(fused, plain, own, logger.info)
            return
        if fused:
            logger.warning(
                "plain modules: with fused ones, log-probabilities are %.2g nats from those of "
                "float64, and %.2g without",
                own,
                plain,
            )
    use_plain_modules(model)
    request_kernels(model, "none")  # decided


@torch.no_grad()
def distances_from_float64(model: Any) -> tuple[float, float]:
    """Compare a model's log-probabilities with those of float64, by plain and by fused modules.

    Args:
        model: With fused modules, of Transformers, or of peft around one; it is put into evaluation
            mode.

    Returns:
        Both distances, in nats: the mean over the vocabulary, of the median token. Half precision
        chooses another expert for some tokens, which says nothing of the modules.
    """
    evaluate(model)
    vocabulary = model.config.get_text_config().vocab_size
    length = min(TOKENS, longest_context(model.config) or TOKENS)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(vocabulary, (SEQUENCES, length), generator=generator, device="cpu")
    plain, fused = [], []
    for ids in drawn.to(model.device).split(1):
        with in_float64(model):
            exact = _logprobs(model, ids)
        fused.append((_logprobs(model, ids) - exact).abs().mean(-1))
        with plain_modules(model):
            plain.append((_logprobs(model, ids) - exact).abs().mean(-1))
    return torch.cat(plain).median().item(), torch.cat(fused).median().item()


def _logprobs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [n, V] of the tokens after each of ids [1, n]."""
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits.double().log_softmax(-1)


def _near(plain: float, fused: float) -> bool:
    return fused <= max(FACTOR * plain, NEAR)  # not where one is not a number


def _report(fused: object, plain: float, own: float, log: Any) -> None:
    log(
        "fused modules: %s; log-probabilities are %.2g nats from those of float64, and %.2g by "
        "plain modules",
        fused,
        own,
        plain,
    )


def _without_adapters(model: Any) -> Any:
    """The model of Transformers, within one of peft."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
