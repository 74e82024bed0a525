"""Attention over packed tokens: one model forward for sequences of any lengths, without padding.

Transformers lets a model call an attention function by name. Ours, "gymnast", hands the packed
queries, keys and values of a layer to a *plan*, which knows what each token may attend to: the
engine's plan keeps keys and values for later turns (`agents/engine/step_plan.py`), the trainer's
shares the prompt of a group (`trainers/learner/policy/packing.py`). Everything else in the model
(projections, norms, MLPs) sees one sequence of tokens.

Models whose layers do not attend through this interface (linear attention, Mamba) are detected by
`agents/models/check_model.py`.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional as F
from transformers import AttentionInterface

from gymnast.errors import UsageError

NAME = "gymnast"
_ROUTES: defaultdict[int, Any] = defaultdict(threading.RLock)  # by the id of a configuration


@dataclass(frozen=True)
class LayerSettings:
    """What a layer asks of its attention besides queries, keys and values.

    Attributes:
        layer: The index of the layer.
        scale: Multiplies the scores.
        window: How many tokens back a token sees, itself included; None sees all.
        softcap: Bounds the scores by `softcap * tanh(score / softcap)`; None does not.
        sinks: One more score per head, which takes weight and has no value, [H], or None.
    """

    layer: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class Plan(Protocol):
    """Knows what each packed token attends to."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings
    ) -> torch.Tensor:
        """Attend with query [N, H, D] over key and value [N, Hkv, D]; returns [N, H, Dv]."""


def planned_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    plan: Plan | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What Transformers calls for each layer: [1, H or Hkv, N, D] in, [1, N, H, Dv] out."""
    if plan is None:
        raise UsageError(
            "the model was called while an engine samples from it on another thread: await the "
            "engine's completions before calling the model itself"
        )
    settings = LayerSettings(
        layer=module.layer_idx,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [N, H, D]
    attended = plan.attend(query, key, value, settings)
    return attended.contiguous()[None], None  # [1, N, H, Dv]


AttentionInterface.register(NAME, planned_attention)


@contextmanager
def planned(model: Any, name: str = NAME) -> Iterator[None]:
    """Route the model's attention through the `plan=` its forward is called with.

    The route is a setting of the model, not of the call, so one thread at a time has it. A copy of
    the model has another.

    Args:
        model: Of Transformers, or of peft around one.
        name: The attention function, among those of `transformers.AttentionInterface`.
    """
    config = model.config.get_text_config()
    with _ROUTES[id(config)]:
        before = config._attn_implementation
        config._attn_implementation = name
        try:
            yield
        finally:
            config._attn_implementation = before


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    settings: LayerSettings,
) -> torch.Tensor:
    """Attention with grouped heads, for a batch of padded sequences.

    The query heads that share a key head are laid along the query's length, which spares the
    copies of keys and values that grouped heads cost otherwise.

    Args:
        query: [B, n, H, D].
        key: [B, L, Hkv, D]; may be an expanded view.
        value: [B, L, Hkv, Dv]; may be an expanded view.
        mask: [B or 1, 1, G * n, L] as `fold` makes it, G being H / Hkv; None hides nothing.
        settings: Of the layer.

    Returns:
        [B, n, H, Dv].
    """
    batch, length, heads, width = query.shape
    shared = heads // key.shape[2]
    folded = query.view(batch, length, -1, shared, width).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, -1, shared * length, width)  # [B, Hkv, G * n, D]
    key, value = key.transpose(1, 2), value.transpose(1, 2)
    if settings.softcap is None and settings.sinks is None:
        out = F.scaled_dot_product_attention(folded, key, value, mask, scale=settings.scale)
    else:
        out = _explicit(folded, key, value, mask, settings)
    out = out.view(batch, -1, shared, length, out.shape[-1]).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, length, heads, -1)


def _explicit(
    query: torch.Tensor,  # [B, Hkv, G * n, D]
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    settings: LayerSettings,
) -> torch.Tensor:
    """What the fused kernels do not offer: bounded scores and sinks."""
    scores = (query @ key.transpose(-1, -2)).float() * settings.scale  # [B, Hkv, G * n, L]
    return weigh(scores, mask, settings).to(value.dtype) @ value


def weigh(scores: torch.Tensor, bias: torch.Tensor | None, settings: LayerSettings) -> torch.Tensor:
    """Turn scaled scores into weights.

    Args:
        scores: [B, Hkv, G * n, L], of the G heads that share a key head and of n queries.
        bias: Broadcasts to the scores; what `fold` makes. None hides nothing.
        settings: Of the layer.
    """
    if settings.softcap is not None:
        scores = settings.softcap * torch.tanh(scores / settings.softcap)
    if bias is not None:
        scores = scores + bias
    if settings.sinks is None:
        return torch.softmax(scores, dim=-1)
    batch, groups, asked, length = scores.shape
    sinks = settings.sinks.float().view(1, groups, -1, 1)  # [1, Hkv, G, 1]
    sinks = sinks.repeat_interleave(asked // sinks.shape[2], dim=2).expand(batch, -1, -1, -1)
    return torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :length]


def fold(mask: torch.Tensor, heads_per_key: int, dtype: torch.dtype) -> torch.Tensor:
    """Turn [B, n, L] (true where a query sees a key) into the bias that `attend` adds.

    Layers of one kind share it, so a plan makes it once.

    Returns:
        [B, 1, G * n, L], 0 where seen and very negative elsewhere.
    """
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    bias.masked_fill_(~mask, torch.finfo(dtype).min)
    return bias[:, None].repeat(1, 1, heads_per_key, 1)


def causal_mask(
    positions: torch.Tensor, key_positions: torch.Tensor, window: int | None
) -> torch.Tensor:
    """Which keys a query sees: [..., n] and [..., L] positions to [..., n, L].

    Args:
        positions: Of the queries in their sequences.
        key_positions: Of the keys; no query sees a negative one (padding).
        window: How many tokens back a query sees, itself included; None sees all.
    """
    distance = positions[..., :, None] - key_positions[..., None, :]
    seen = (distance >= 0) & (key_positions[..., None, :] >= 0)
    if window is not None:
        seen &= distance < window
    return seen
