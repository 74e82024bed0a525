"""vLLM servers that share the trainer's device: they sleep while the model is trained.

    play     they are awake
    sleep    what is under way is given up, keys and values are dropped; the weights go to the
             machine's memory, or are dropped too where the folder of new weights has them
    train
    wake     room for the weights; the weights; room for keys and values

`VLLMAgent.awake` says when, `servers.py` (`rest`, `wake`) has it done by all servers. It follows
the sources of vLLM 0.32. On a CPU a server that sleeps stops sampling and keeps its memory; that
memory of a GPU is given back has never been run.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from gymnast.agents.vllm.checks import named_by
from gymnast.agents.vllm.server import Server
from gymnast.agents.vllm.weights.facts import ask_facts
from gymnast.errors import ConfigError, ServerLost

OPTION = "--enable-sleep-mode"
SLEEP_TIMEOUT_S = 600.0
WEIGHTS, KEYS_AND_VALUES = "weights", "kv_cache"  # what wakes by itself, as vLLM calls it
UNABLE = "Sleep mode is not supported"  # says vLLM where it is started with the option


async def check_sleeps(servers: Sequence[Server]) -> None:
    """Check that servers were started so that they can sleep.

    Raises:
        ConfigError: One was not, or does not answer.
    """
    for server in servers:
        with named_by("urls", server):
            facts = await ask_facts(server)
        if not facts.sleeps:
            raise ConfigError(
                f"share_device: {server.url} cannot give its memory back; start it with {OPTION}, "
                "on a GPU, or leave share_device out"
            )


async def sleep(server: Server, *, keeps_weights: bool) -> None:
    """Have a server give its device's memory back; what it has under way is given up.

    Args:
        server: Whose.
        keeps_weights: Whether its weights go to the machine's memory; else it has none afterwards.

    Raises:
        ServerLost: It does not.
        ConfigError: It refuses.
    """
    level = "1" if keeps_weights else "2"
    await server.ask("POST", "/sleep", timeout_s=SLEEP_TIMEOUT_S, level=level, mode="abort")


async def wake(server: Server, *parts: str) -> None:
    """Have a server take memory of its device; nothing happens to what is awake.

    It samples again once it has room for all.

    Args:
        server: Which.
        parts: What for, in this order; by default for the weights, then for keys and values.

    Raises:
        ServerLost: It does not.
        ConfigError: It refuses.
    """
    for part in parts or (WEIGHTS, KEYS_AND_VALUES):
        answer = await server.ask("POST", "/wake_up", timeout_s=SLEEP_TIMEOUT_S, tags=part)
    if KEYS_AND_VALUES in (parts or (KEYS_AND_VALUES,)) and answer.get("status") != "awake":
        raise ServerLost(f"{server.url}: it was woken, and still sleeps: {answer!r:.100}")


def give_back_cached_memory() -> None:
    """Give what this process has cached of a GPU's memory to the servers."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def explained() -> Iterator[None]:
    """Within the block, where servers are started: one that cannot sleep is told as such."""
    try:
        yield
    except ConfigError as error:
        if UNABLE not in str(error):
            raise
        raise ConfigError(
            f"share_device: is true, and this vLLM does not start with {OPTION}: a server on a CPU "
            "cannot sleep. Leave share_device out, or start a vLLM on a GPU (launch.command). It "
            f"says: {error}"
        ) from error
