"""What servers that a run starts begin with, so that new weights reach them later."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gymnast.agents.loading.model_source import no_progress_bars
from gymnast.agents.models.merging import save_base, save_merged
from gymnast.agents.vllm.weights.adapters import highest_rank, server_rank, why_merged
from gymnast.agents.vllm.weights.choice import ADAPTERS, AUTO, check_way
from gymnast.agents.vllm.weights.heads import (
    IN_FLOAT32,
    UNTIED,
    check_own_head,
    has_float32_head,
    option,
    save_head,
    trains_tied_head,
)
from gymnast.agents.vllm.weights.sleeping import OPTION

# Requests that begin with newer adapters do not wait for those that go on with older ones; on a CPU
# they do, because vLLM 0.32 dies there of two in one batch.
ADAPTERS_AT_ONCE, ADAPTERS_AT_ONCE_ON_A_CPU, ADAPTERS_LOADED = 2, 1, 4


def write_start(
    model: Any, folder: Path, *, way: str = AUTO, shares_device: bool = False
) -> Sequence[str]:
    """Write the model that servers start with; returns the options of `vllm serve` that it needs.

    Args:
        model: That is trained.
        folder: New.
        way: Of new weights: one of `choice.WAYS`.
        shares_device: Whether the servers are to sleep while the model is trained.

    Raises:
        ConfigError: There is no such way, or it needs another device; or vLLM has no head of its
            own for this family.
    """
    check_way(way, shares_device=shares_device)
    check_own_head(model)
    sleeps = (OPTION,) if shares_device else ()
    overrides = dict(IN_FLOAT32) if has_float32_head(model) else {}
    with no_progress_bars():
        if way in (AUTO, ADAPTERS) and why_merged(model) is None:
            save_base(model, folder)
            on_gpu = torch.accelerator.is_available()
            at_once = ADAPTERS_AT_ONCE if on_gpu else ADAPTERS_AT_ONCE_ON_A_CPU
            rank = server_rank(highest_rank(model))
            return (
                *sleeps,
                *("--enable-lora", "--max-lora-rank", str(rank)),
                *("--max-loras", str(at_once), "--max-cpu-loras", str(ADAPTERS_LOADED)),
                *option(overrides),
            )
        save_merged(model, folder)
        if not torch.accelerator.is_available() and trains_tied_head(model):
            save_head(model, folder)
            overrides |= UNTIED
    return (*sleeps, *option(overrides))
