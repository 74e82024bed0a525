"""What a server says of itself that decides how it gets new weights."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnast.agents.vllm.server import Server
from gymnast.errors import ServerLost

INFO_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Facts:
    """How one server was started.

    Attributes:
        device: "cuda", "cpu", ...
        dtype: Of its weights, "bfloat16" say.
        untied: Whether its head was told to have a weight of its own.
        ties: Whether its model's configuration ties the head to the embedding; None if it does not
            say.
        float32_head: Whether its head was told to compute in float32.
        lora_rank: The highest rank of an adapter; 0 where it can load none.
        loras_at_once: Of how many adapters it may have requests in one batch.
        transfer: The engine of vLLM's for new weights that it was started with, "nccl" say, or "".
        workers: How many processes hold its model.
        sleeps: Whether it can give its device's memory back.
        unpickles: Whether it takes handles of memory, which come as a pickle.
    """

    device: str
    dtype: str
    untied: bool = False
    ties: bool | None = None
    float32_head: bool = False
    lora_rank: int = 0
    loras_at_once: int = 1
    transfer: str = ""
    workers: int = 1
    sleeps: bool = False
    unpickles: bool = False


async def ask_facts(server: Server) -> Facts:
    """How a server was started.

    Raises:
        ServerLost: It does not answer.
        ConfigError: It has no routes for new weights.
    """
    answer = await server.ask("GET", "/server_info", timeout_s=INFO_TIMEOUT_S, config_format="json")
    try:
        return read_facts(answer)
    except (KeyError, TypeError, AttributeError) as error:
        raise ServerLost(f"{server.url}/server_info: cannot be read ({error!r})") from error


def read_facts(info: Mapping[str, Any]) -> Facts:
    """The facts in an answer of `/server_info?config_format=json`."""
    config, environment = info["vllm_config"], info.get("vllm_env") or {}
    model, lora = config["model_config"], config.get("lora_config") or {}
    given = model.get("hf_overrides")
    overrides = given if isinstance(given, Mapping) else {}
    can_load = environment.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") in (True, 1, "1")
    parallel = config.get("parallel_config") or {}
    return Facts(
        device=str(config["device_config"]["device"]).partition(":")[0],
        dtype=str(model["dtype"]).removeprefix("torch."),
        untied=overrides.get("tie_word_embeddings") is False,
        ties=_ties(model.get("hf_text_config") or model.get("hf_config")),
        float32_head=overrides.get("head_dtype") == "float32",
        lora_rank=int(lora.get("max_lora_rank", 0)) if can_load else 0,
        loras_at_once=int(lora.get("max_loras", 1)),
        transfer=(config.get("weight_transfer_config") or {}).get("backend", ""),
        workers=int(parallel.get("world_size", 1)) * int(parallel.get("data_parallel_size", 1)),
        sleeps=bool(model.get("enable_sleep_mode")),
        unpickles=environment.get("VLLM_ALLOW_INSECURE_SERIALIZATION") in (True, 1, "1"),
    )


def _ties(config: Any) -> bool | None:
    """Tell if a model's configuration ties head and embedding, as a mapping or as it is printed."""
    if isinstance(config, Mapping):
        value = config.get("tie_word_embeddings")
        return value if isinstance(value, bool) else None
    found = re.search(r'"tie_word_embeddings": (true|false)', str(config))
    return found[1] == "true" if found else None
