"""The saved model against the trained one: both give the same logits, or the run fails.

What is saved is written by other ways than what is trained: adapters are merged, weights that were
shared get a matrix each, experts are taken apart. So a model that was just written is loaded as
others load it, on the CPU, and both read a few tokens. Two models with the same weights differ by
rounding alone, which depends on their dtype and depth. It is measured: the loaded model reads the
same tokens once more with each weight moved by one unit in its last place.
"""

import warnings
from pathlib import Path
from typing import Any

import torch

from gymnast.agents.loading.model_source import no_progress_bars
from gymnast.agents.models.double_precision import FAILURES, in_float64
from gymnast.agents.models.evaluation_mode import evaluate
from gymnast.agents.models.experts import expert_blocks
from gymnast.errors import ModelError, first_line
from gymnast.trainers.learner.memory.available import available
from gymnast.visible import visible_logger

TOKENS = 16
STRIDE = 7919  # a prime: the tokens come from all of the vocabulary
EXACT = 1e-5  # of the largest logit
TIMES_ROUNDING = 2.0  # measured: 0.1 to 0.4 in bfloat16, over five families and DoRA

logger = visible_logger(__name__)


def check_saved_model(model: Any, folder: Path, name: str | Path) -> None:
    """Check that a folder holds the model that is in memory, by their logits of a few tokens.

    It takes the memory of the saved model once more, on the CPU, and is skipped, with a warning,
    where there is not as much.

    Args:
        model: Of Transformers, or of peft around one; it stays as it is.
        folder: Into which it was saved.
        name: Of the folder, for messages.

    Raises:
        ModelError: The logits differ by more than rounding.
    """
    if why := _why_not_loaded(model, folder):
        logger.warning("%s was not compared with the trained model: %s", name, why)
        return
    try:
        saved = _load(model, folder)
    except Exception as error:  # of a class that Transformers does not know, say
        logger.warning(
            "%s was not compared with the trained model: Transformers cannot load it (%s)",
            name,
            first_line(error),
        )
        return
    ids = _tokens(model)
    ours, theirs = _logits_of_both(model, saved, ids)
    # Rounding may choose other experts for a token, whose logits are then others altogether.
    every_token = not expert_blocks(model)
    difference = _difference(ours, theirs, every_token=every_token)
    finite = ours[ours.isfinite()]
    largest = finite.abs().max().item() if len(finite) else 0.0
    if difference <= EXACT * largest:
        return
    _move_by_rounding(saved)
    _, moved = _logits_of_both(model, saved, ids)
    rounding = _difference(theirs, moved, every_token=every_token)
    if difference <= TIMES_ROUNDING * rounding:
        return
    raise ModelError(
        f"{name}: the saved model is not the trained one, so it was not kept: their logits of "
        f"{len(ids)} tokens differ by {difference:.3g} (the largest is {largest:.3g}, and rounding "
        f"to {str(model.dtype).removeprefix('torch.')} makes {rounding:.1g}). {_fix(model)}"
    )


def _why_not_loaded(model: Any, folder: Path) -> str | None:
    """The reason that there is no room for a second model; None if there is."""
    free = available(torch.device("cpu"))
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    largest = max((weight.numel() for weight in model.parameters()), default=0)
    need = weights + 2 * largest * torch.float64.itemsize
    if free is None or free.nbytes >= need:
        return None
    return f"this takes {need / 1e9:.1f} GB, and {free.of} has {free.nbytes / 1e9:.1f} GB free"


def _load(model: Any, folder: Path) -> Any:
    """The saved model, on the CPU, as `AutoModelForCausalLM` loads it."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    known = type(causal.config) in MODEL_FOR_CAUSAL_LM_MAPPING
    kind: Any = AutoModelForCausalLM if known else type(causal)
    # Warnings of other people's code were given when the model was loaded first.
    quiet = warnings.catch_warnings(action="ignore")
    with quiet, no_progress_bars(), torch.random.fork_rng(devices=[]):
        saved = kind.from_pretrained(folder, dtype="auto")
    evaluate(saved)
    return saved


def _tokens(model: Any) -> list[int]:
    """Some tokens of the vocabulary; those first that are trained by themselves."""
    vocabulary = model.config.get_text_config().vocab_size
    trained = list[int]()
    for config in (getattr(model, "peft_config", None) or {}).values():
        indices = getattr(config, "trainable_token_indices", None) or []
        lists = indices.values() if isinstance(indices, dict) else [indices]
        trained += [index for each in lists for index in each]
    spread = [number * STRIDE % vocabulary for number in range(1, TOKENS + 1)]
    return [*trained[:TOKENS], *spread]


@torch.no_grad()
def _logits_of_both(model: Any, saved: Any, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of two models, [n, V] each: in float64, or in the models' dtype if one cannot."""
    training = [module for module in model.modules() if module.training]
    evaluate(model)
    try:
        try:
            with in_float64(model):
                ours = _logits(model, ids)
            with in_float64(saved):
                theirs = _logits(saved, ids)
        except FAILURES:  # a kernel for one dtype, a device without float64 or without the memory
            ours, theirs = _logits(model, ids), _logits(saved, ids)
    finally:
        for module in training:
            module.training = True
    return ours, theirs


def _logits(model: Any, ids: list[int]) -> torch.Tensor:
    given = torch.tensor([ids], device=model.device)
    logits: torch.Tensor = model(input_ids=given).logits[0]
    return logits.double().cpu()


def _difference(ours: torch.Tensor, theirs: torch.Tensor, *, every_token: bool) -> float:
    """The largest difference of logits [n, V], of all tokens or of the median token."""
    equal = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = torch.where(equal, 0.0, (ours - theirs).abs()).amax(-1)  # [n]
    return (apart.max() if every_token else apart.median()).item()


@torch.no_grad()
def _move_by_rounding(saved: Any) -> None:
    """Move each weight by one unit in its last place, up or down."""
    generator = torch.Generator().manual_seed(0)
    for weight in saved.parameters():
        if weight.is_floating_point():
            up = torch.empty_like(weight).bernoulli_(0.5, generator=generator)
            weight.mul_(1 + torch.finfo(weight.dtype).eps * (2 * up - 1))


def _fix(model: Any) -> str:
    """The sentence that names what was trained and a way to go on."""
    configs = (getattr(model, "peft_config", None) or {}).values()
    if not configs:
        return "All weights were trained. Continue from the checkpoint, or load it in Python."
    targets = [
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and ".base_layer" not in name
    ]
    named = [f"LoRA is on {', '.join(dict.fromkeys(targets))}"]
    for config in configs:
        for option in ("modules_to_save", "trainable_token_indices"):
            if value := getattr(config, option, None):
                named.append(f"{option} is {value}")
    return (
        f"{'; '.join(named)}. Load the adapters with peft around the base model instead, and in "
        "the next run leave out of lora.target and lora.extra what cannot be merged."
    )
