"""How long a sequence a model takes, and beyond which length its positions mean something else."""

from collections.abc import Iterator, Mapping
from typing import Any

# The names under which configurations say how many positions a model has.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "context_length")


def longest_context(config: Any) -> int | None:
    """How many tokens a model was made for; None where it has no such limit (Mamba, ALiBi).

    Args:
        config: The model's configuration.
    """
    config = config.get_text_config()
    for name in _POSITIONS:
        positions = getattr(config, name, None)
        if isinstance(positions, int) and positions > 0:
            return positions
    return None


def rope_changes_beyond(model: Any) -> int | None:
    """The length beyond which *every* token of a sequence has other rotary frequencies.

    With "longrope", keys computed in a sequence up to that length do not fit into a longer one,
    and sequences on both sides of it cannot share a forward pass. ("dynamic" frequencies change
    only beyond the model's longest context.) None if nothing changes.
    """
    config = model.config.get_text_config()
    lengths = [
        parameters.get("original_max_position_embeddings")
        or getattr(config, "original_max_position_embeddings", None)
        or config.max_position_embeddings
        for parameters in _rope_parameters(getattr(config, "rope_parameters", None))
        if parameters.get("rope_type") == "longrope"
    ]
    return min(lengths) if lengths else None


def slots_count_beyond(model: Any) -> int | None:
    """The length beyond which padding on the left changes what the model computes.

    Some models take a token's place in the cache, padding included, for its position: in a scale of
    attention that begins at a length (Llama 4, Inkling), or in blocks of which the best are chosen
    once there are many (MiniMax M3). A trial on a few tokens cannot show it. None if nothing does.
    """
    config = model.config.get_text_config()
    lengths = [getattr(config, "log_scaling_n_floor", None)]
    if getattr(config, "attn_temperature_tuning", False):
        lengths.append(config.floor_scale - 1)
    block = getattr(config, "index_block_size", None)
    if block is not None:
        lengths.append(block * getattr(config, "index_topk_blocks", 1))
    return min((length for length in lengths if length is not None), default=None)


def _rope_parameters(parameters: Any) -> Iterator[Mapping[str, Any]]:
    """One for the model, or one for each type of layer."""
    if not isinstance(parameters, Mapping):
        return
    if "rope_type" in parameters:
        yield parameters
    else:
        yield from (part for part in parameters.values() if isinstance(part, Mapping))
