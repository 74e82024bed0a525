"""Checks that a model's forward over packed sequences is the model's own forward.

Two short sequences are packed into one pass and compared with one pass for each, in float64
(agents/models/double_precision.py); a layer that mixes neighbours by other means is exposed when
every token attends to itself alone. What short sequences cannot show (windows, chunks, sparse
attention, rotary frequencies that change with the length) is read from the masks that the model
makes, from what it hands to its attention, and from its configuration.

`agents/engine/state_engine.py` samples from the models that fail.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from gymnast.agents.models.attention import (
    LayerSettings,
    Plan,
    attend,
    causal_mask,
    fold,
    planned,
    planned_attention,
)
from gymnast.agents.models.context_limits import longest_context, rope_changes_beyond
from gymnast.agents.models.double_precision import Precision
from gymnast.errors import ModelError, UsageError

# Attention functions like the one that is used, which also look at the mask they are given: without
# masks, as it is used, and with masks that tell of the rule that made them.
UNMASKED, MASKED = "gymnast-unmasked", "gymnast-masked"
KNOWN_TENSORS = {"s_aux", "position_ids"}  # all else that a layer hands over selects what it sees
LENGTHS = (9, 7)  # of the packed sequences
# Where a model has no longest context of its own, windows are asked for up to here.
FAR = 2**17


class _Packed:
    """The simplest plan: sequences side by side. Notes how often each layer asked, and of what."""

    def __init__(self, lengths: tuple[int, ...], device: Any) -> None:
        self.positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        number = [index for index, length in enumerate(lengths) for _ in range(length)]
        self._sequence = torch.tensor(number, device=device)
        self.calls: Counter[int] = Counter()
        self.token_bytes: dict[int, int] = {}  # by layer
        self.windows: set[tuple[int | None, int | None]] = set()

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings
    ) -> torch.Tensor:
        self.calls[settings.layer] += 1
        width = key[0].numel() + value[0].numel()
        self.token_bytes[settings.layer] = width * key.element_size()
        seen = causal_mask(self.positions, self.positions, settings.window)
        seen &= self._sequence[:, None] == self._sequence
        bias = fold(seen[None], query.shape[1] // key.shape[1], query.dtype)
        query, key, value = (tensor.contiguous()[None] for tensor in (query, key, value))
        return attend(query, key, value, bias, settings)[0]


@torch.no_grad()
def check_model(model: Any, context_length: int | None = None) -> int:
    """Make sure that the model's forward through a plan is the model's own forward.

    Args:
        model: Of Transformers, or of peft around one.
        context_length: The longest sequence it is going to see, in tokens; by default the longest
            it was made for.

    Returns:
        How many bytes the keys and values of one token take, over all layers.

    Raises:
        ModelError: A layer does not attend through Transformers' attention interface, or does so
            in a way that a plan cannot follow.
    """
    name = type(_without_adapters(model)).__name__
    most = context_length or longest_context(model.config) or FAR
    changes = rope_changes_beyond(model)
    if changes is not None and most > changes:
        raise ModelError(
            f"{name} has other rotary frequencies in sequences beyond {changes} tokens (longrope), "
            f"so sequences of up to {most} cannot be packed together. Set "
            f"model.config.max_position_embeddings to {changes}, or choose another model."
        )
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(1, 1 + sum(LENGTHS), device=model.device) % vocabulary
    precision = Precision(model, ids.tolist())
    with precision.computing():
        _check_packing(model, name, ids, precision)
    _check_windows(model, name, ids[: LENGTHS[0]], most)
    return _token_bytes(model, name, ids)


def _without_adapters(model: Any) -> Any:
    """The model of Transformers, within one of peft."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _token_bytes(model: Any, name: str, ids: torch.Tensor) -> int:
    """How many bytes one token's keys and values take, in the model's own precision."""
    plan = _Packed(LENGTHS, model.device)
    _packed_logits(model, name, ids, plan.positions, plan)
    return sum(plan.token_bytes.values())


def _check_packing(model: Any, name: str, ids: torch.Tensor, precision: Precision) -> None:
    """Make sure that packed sequences have the logits that they have alone."""
    plan = _Packed(LENGTHS, model.device)
    ours = _packed_logits(model, name, ids, plan.positions, plan)
    layers = model.config.get_text_config().num_hidden_layers
    if len(plan.calls) != layers:
        raise ModelError(
            f"{name} has {layers} layers, of which {len(plan.calls)} attend through "
            "transformers.AttentionInterface: models with linear attention, state-space or other "
            "layers cannot be driven with packed sequences"
        )
    if max(plan.calls.values()) > 1:
        raise ModelError(
            f"{name} has layers that attend more than once, each time with other keys or values, "
            "so a layer has no one cache"
        )
    _check_neighbours(model, name, ids, precision)
    parts = ids.split(list(LENGTHS))
    theirs = torch.cat([model(input_ids=part[None], use_cache=False).logits for part in parts], 1)
    difference = precision.differ(ours, theirs)
    if difference is not None:
        raise ModelError(
            f"{name} gives other logits with packed sequences than with its own attention "
            f"(relative difference {difference:.2g}): it has a part that is not known here"
        )


def _without_mask(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *positional: Any,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    unknown = {
        name
        for name, value in settings.items()
        if isinstance(value, torch.Tensor) and name not in KNOWN_TENSORS
    }
    if attention_mask is not None:  # Transformers makes none for a function it does not know
        unknown.add("attention_mask")
    if unknown:
        raise ModelError(
            f"{type(module).__name__} tells its attention what to see ({', '.join(sorted(unknown))}"
            "): in longer contexts that is not known here"
        )
    return planned_attention(module, query, key, value, None, *positional, **settings)


AttentionInterface.register(UNMASKED, _without_mask)


def _packed_logits(
    model: Any, name: str, ids: torch.Tensor, positions: torch.Tensor, plan: Plan
) -> torch.Tensor:
    try:
        with planned(model, UNMASKED):
            logits: torch.Tensor = model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                plan=plan,
                logits_to_keep=torch.arange(len(ids), device=ids.device),
            ).logits
    except ModelError:
        raise
    except UsageError as error:
        raise ModelError(
            f"{name} does not hand the arguments of its forward pass on to its attention: packed "
            "sequences need that"
        ) from error
    except (TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"{name} cannot be driven with packed sequences ({type(error).__name__}: {error}): its "
            "attention must go through transformers.AttentionInterface and its forward must take "
            "logits_to_keep. Most decoder-only models of Transformers do; choose one of them."
        ) from error
    return logits


class _OnlyItself:
    """A plan in which a token sees itself alone, as much of it as its query and key agree."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: LayerSettings
    ) -> torch.Tensor:
        shared = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(shared, dim=1) for tensor in (key, value))
        agreement = (query * key).sum(dim=-1, keepdim=True) * settings.scale  # [N, H, 1]
        return torch.sigmoid(agreement) * value


def _check_neighbours(model: Any, name: str, ids: torch.Tensor, precision: Precision) -> None:
    """Make sure that tokens that see only themselves have the same logits beside any others."""
    positions = torch.arange(len(ids), device=ids.device)
    forth = _packed_logits(model, name, ids, positions, _OnlyItself())
    back = _packed_logits(model, name, ids.flip(0), positions.flip(0), _OnlyItself())
    if precision.differ(back.flip(1), forth) is None:
        return
    others = ids.clone()
    others[1::2] = ids[1::2].flip(0)
    beside = _packed_logits(model, name, others, positions, _OnlyItself())
    if precision.differ(beside[:, ::2], forth[:, ::2]) is not None:
        raise ModelError(
            f"{name} mixes tokens by other means than attention (a convolution, a recurrent "
            "state): what is packed side by side would mix too"
        )
    raise ModelError(
        f"{name} counts tokens by where they stand in a pass, whatever position_ids say: those of "
        "packed sequences would be others than they have alone"
    )


# What a token sees is asked of the model's masks at a far position, where a mask of all positions
# would not fit. A "mask" here holds nothing but the number of the rule that made it.
_RULES: list[Callable[..., torch.Tensor]] = []


def _numbered_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Any, device: Any, **_: Any
) -> torch.Tensor:
    _RULES.append(mask_function)
    return torch.full((batch_size, 1, q_length, kv_length), float(len(_RULES) - 1), device=device)


def _window_recorder(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    plan: _Packed,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    rule = None if attention_mask is None else int(attention_mask.flatten()[0])
    plan.windows.add((settings.get("sliding_window"), rule))
    return planned_attention(module, query, key, value, None, scaling, plan=plan, **settings)


AttentionInterface.register(MASKED, _window_recorder)
AttentionMaskInterface.register(MASKED, _numbered_mask)


def _check_windows(model: Any, name: str, ids: torch.Tensor, most: int) -> None:
    """Make sure that what layers tell a plan of their windows is what their masks do."""
    plan = _Packed((len(ids),), ids.device)
    with planned(model, MASKED):
        _RULES.clear()
        model(input_ids=ids[None], position_ids=plan.positions[None], use_cache=False, plan=plan)
        rules = list(_RULES)
    for window, number in plan.windows:
        rule = rules[number] if number is not None and 0 <= number < len(rules) else None
        if number is not None and rule is None:
            raise ModelError(f"{name} makes attention masks of its own: they are not known here")
        for position in {most - 1, most // 2}:
            keys = torch.arange(position + 1, device=ids.device)
            ours = causal_mask(keys[-1:], keys, window)[0]
            zero = keys[0]
            theirs = ours.new_ones(()) if rule is None else rule(zero, zero, keys[-1], keys)
            if not torch.equal(ours, theirs.expand_as(ours)):
                raise ModelError(
                    f"{name} hides tokens by another rule than its sliding windows: in a layer "
                    f"with sliding_window={window}, the token at position {position} sees others "
                    "than that says (chunks, perhaps). Choose another model, or a shorter "
                    "context_length."
                )
