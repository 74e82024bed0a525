"""By which way new weights go to the servers: asked for, or the best that both sides can."""

from collections.abc import Mapping
from typing import Any

from gymnast.agents.models.experts import expert_blocks
from gymnast.agents.vllm.weights.adapters import highest_rank, why_merged
from gymnast.agents.vllm.weights.engines import IPC, NCCL, why_not_engine
from gymnast.agents.vllm.weights.facts import Facts
from gymnast.agents.vllm.weights.heads import (
    IN_FLOAT32,
    UNTIED,
    check_own_head,
    has_float32_head,
    has_own_head,
    option,
    trains_tied_head,
)
from gymnast.errors import ConfigError

AUTO, FOLDER, ADAPTERS = "auto", "folder", "adapters"
WAYS = (AUTO, FOLDER, ADAPTERS, NCCL, IPC)


def check_way(way: str, *, shares_device: bool = False) -> None:
    """Check the name of a way.

    Args:
        way: Asked for, or chosen.
        shares_device: Whether the servers are on the trainer's device.

    Raises:
        ConfigError: There is none of this name, or it needs another device.
    """
    if way == NCCL and shares_device:
        raise ConfigError(
            "agent.weights: nccl does not join two processes on one GPU, which share_device is "
            "for; set agent.weights to auto, folder or ipc, and leave --weight-transfer-config out "
            "or give it ipc"
        )
    if way not in WAYS:
        raise ConfigError(f"agent.weights: must be one of {', '.join(WAYS)}, got {way!r:.40}")


def choose_way(way: str, model: Any, servers: Mapping[str, Facts]) -> tuple[str, str]:
    """The way of new weights, and the reason, for the log.

    Args:
        way: What the user asks for.
        model: That is trained.
        servers: How each server was started, by its URL.

    Raises:
        ConfigError: The way that was asked for is not open.
    """
    not_adapters = why_not_adapters(model, servers)
    if way == ADAPTERS and not_adapters:
        raise ConfigError(f"agent.weights: adapters cannot be served: {not_adapters}")
    if way in (AUTO, ADAPTERS) and not not_adapters:
        return ADAPTERS, "the base on the servers stays as it is"
    if way in (NCCL, IPC):
        if why := why_not_on(way, model, servers):
            raise ConfigError(f"agent.weights: {way} is not open: {why}")
        return way, "as agent.weights says"
    for engine in (IPC, NCCL) if way == AUTO else ():
        if not why_not_on(engine, model, servers):
            return engine, "the servers were started with it"
    return FOLDER, not_adapters or "as agent.weights says"


def why_not_adapters(model: Any, servers: Mapping[str, Facts]) -> str | None:
    """Why the servers cannot load a model's adapters as such; None if they can."""
    if why := why_merged(model):
        return why
    rank = highest_rank(model)
    for url, facts in servers.items():
        if not facts.lora_rank:
            return (
                f"{url} cannot load any; start it with --enable-lora --max-lora-rank {rank} and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
            )
        if facts.lora_rank < rank:
            return (
                f"{url} takes ranks up to {facts.lora_rank}, not {rank}; start it with a higher "
                "--max-lora-rank"
            )
    return None


def why_not_on(engine: str, model: Any, servers: Mapping[str, Facts]) -> str | None:
    """Why one of vLLM's own engines cannot send a model's weights to all; None if it can."""
    reasons = (why_not_engine(engine, model, url, facts) for url, facts in servers.items())
    return next((reason for reason in reasons if reason), None)


def check_servers(way: str, model: Any, servers: Mapping[str, Facts]) -> None:
    """Check that what the servers would sample from is the model that is trained.

    Raises:
        ConfigError: A server has another dtype or no head of its own, would not get a weight that
            is trained, or would die of two adapters in one batch.
    """
    check_own_head(model)
    dtype = str(model.dtype).removeprefix("torch.")
    for url, facts in servers.items():
        if facts.dtype != dtype:
            raise ConfigError(
                f"{url}: has weights of {facts.dtype}, and the trained model is in {dtype}; start "
                f"it with --dtype {dtype}, or set model.dtype: {facts.dtype}"
            )
        if facts.ties and has_own_head(model):
            raise ConfigError(
                f"{url}: its head shares the embedding's weight, and that of the trained model has "
                "one of its own (adapters on either make them differ), so it would sample from "
                f"another model; start it with {_shown(UNTIED)} and the weight of the head in its "
                "folder, or let the run start it (agent.launch)"
            )
        if has_float32_head(model) and not facts.float32_head and dtype != "float32":
            raise ConfigError(
                f"{url}: computes its logits in {dtype}, and the trained model in float32 "
                f"(model.float32_head); start it with {_shown(IN_FLOAT32)}, or leave "
                "model.float32_head out"
            )
        if facts.device == "cpu":
            _check_on_a_cpu(url, way, model, facts)


def _check_on_a_cpu(url: str, way: str, model: Any, facts: Facts) -> None:
    """Check what vLLM's CPU build cannot do."""
    if way == ADAPTERS and facts.loras_at_once > 1:
        raise ConfigError(
            f"{url}: a vLLM server on a CPU dies of two adapters in one batch, and this one takes "
            f"{facts.loras_at_once}; start it with --max-loras 1, or set agent.weights: folder"
        )
    if way != ADAPTERS and expert_blocks(model):  # packed when it starts, and not again
        raise ConfigError(
            f"{url}: a vLLM server on a CPU does not take new weights for experts: it would sample "
            "with others than were sent; use one on a GPU, or sample in the training process "
            "(agent.backend: transformers)"
        )
    if way != ADAPTERS and not facts.untied and trains_tied_head(model):
        raise ConfigError(
            f"{url}: a vLLM server on a CPU does not take new weights for a head that shares "
            f"the embedding's, which this run trains; start it with {_shown(UNTIED)} and the "
            "weight of the head in its folder, or let the run start it (agent.launch)"
        )


def _shown(overrides: Mapping[str, Any]) -> str:
    """Overrides as they are written in a shell."""
    name, value = option(overrides)
    return f"{name} '{value}'"
