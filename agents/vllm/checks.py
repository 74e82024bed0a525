"""What must hold of vLLM servers before a run begins, each refused with what to change.

settings    URLs or a launch, read without asking anybody
servers     the name, the key, token ids, the kind of log-probabilities, the vocabulary, the
            longest context
"""

import asyncio
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gymnast.agents.loading.vocabulary import token_ids, unused_ids
from gymnast.agents.vllm.experts import check_experts, decode
from gymnast.agents.vllm.launch import make_launch
from gymnast.agents.vllm.server import GENERATE, Server, open_session
from gymnast.errors import ConfigError, ServerLost

ANSWER_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 300.0  # a server compiles its kernels when it is asked for the first time
IMPOSSIBLE = -9000.0  # vLLM writes -9999 for a probability of 0
IDS_AT_ONCE = 16_384
OF_POLICY = "serve the model that is trained"


@dataclass(frozen=True)
class Offer:
    """What servers offer.

    Attributes:
        context_length: The shortest of their longest contexts, in tokens.
        unused_ids: Ids that they have logits for and the tokenizer has no token for.
    """

    context_length: int
    unused_ids: Sequence[int]


def check_urls(urls: Any) -> list[str]:
    """The URLs of servers, without slashes at their ends.

    Raises:
        ConfigError: They are no list of different URLs.
    """
    if isinstance(urls, str) or not isinstance(urls, Sequence) or not urls:
        raise ConfigError(
            f"urls: must be a list of URLs of vLLM servers, such as [http://127.0.0.1:8000], got "
            f"{urls!r:.100}"
        )
    found = []
    for url in urls:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"urls: each must begin with http:// or https:// and name a host, such as "
                f"http://127.0.0.1:8000, got {url!r:.100}"
            )
        found.append(str(url).rstrip("/").removesuffix("/v1"))
    if twice := sorted({url for url in found if found.count(url) > 1}):
        raise ConfigError(f"urls: names {', '.join(twice)} twice; name every server once")
    return found


def check_times(settings: Mapping[str, Any]) -> None:
    """Check the settings that are times.

    Raises:
        ConfigError: One is not above 0.
    """
    for name, value in settings.items():
        if name.endswith("_s") and not (isinstance(value, int | float) and value > 0):
            raise ConfigError(f"{name}: must be > 0, in seconds, got {value!r:.100}")


def check_one_process(share_device: bool) -> None:
    """Check that servers take turns with one training process.

    Raises:
        ConfigError: There are several.
    """
    if share_device and (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ConfigError(
            f"share_device: is for one training process, and this run has {processes}, of which "
            "one may train while another still samples; train in one process, or give the servers "
            "GPUs of their own and leave share_device out"
        )


def check_settings(
    urls: Any, launch: Mapping[str, Any] | None, *, share_device: Any = False
) -> None:
    """Check which servers are to be used, without asking any.

    Raises:
        ConfigError: There are neither URLs nor a launch, or both; or a value does not hold.
    """
    if not isinstance(share_device, bool):
        raise ConfigError(f"share_device: must be true or false, got {share_device!r:.100}")
    check_one_process(share_device)
    if (urls is None) == (launch is None):
        raise ConfigError(
            "backend: vllm needs the urls of servers that run (urls: [http://...]) or how to start "
            "some (launch: {command: [/path/to/venv/bin/vllm]}), and one of the two alone"
        )
    if launch is None:
        check_urls(urls)
        if share_device:
            raise ConfigError(
                "share_device: goes with servers that the run starts and ends (launch): those at "
                "urls would stay asleep after a run that is killed; set launch, or leave "
                "share_device out"
            )
        return
    program = make_launch(launch).command[0]
    if shutil.which(program) is None:
        why = "is no program that can be run" if Path(program).exists() else "is not there"
        raise ConfigError(
            f"launch.command: {program} {why}; install vLLM in an environment of its own and name "
            "its command, such as [/path/to/venv/bin/vllm]"
        )


async def check_servers(
    servers: Sequence[Server],
    model: str,
    tokenizer: Any,
    *,
    key: str = "urls",
    needs_control: bool = False,
) -> Offer:
    """Check that servers can be sampled from; returns what all of them offer.

    Args:
        servers: That run.
        model: See `check_server`, as for the following.
        tokenizer: Of the model that is trained.
        key: The setting that named them.
        needs_control: Whether they are to take new weights.

    Raises:
        ConfigError: One cannot be used.
    """
    checks = (
        check_server(server, model, tokenizer, key=key, needs_control=needs_control)
        for server in servers
    )
    offers = await asyncio.gather(*checks)
    unused = max((offer.unused_ids for offer in offers), key=len)
    if any(list(offer.unused_ids) != list(unused) for offer in offers):
        raise ConfigError(f"{key}: the servers do not have as many logits; serve one model by all")
    return Offer(min(offer.context_length for offer in offers), unused)


async def check_server(
    server: Server, model: str, tokenizer: Any, *, key: str = "urls", needs_control: bool = False
) -> Offer:
    """Check that a server can be sampled from, exactly; returns what it offers.

    Args:
        server: That runs.
        model: The name that it is to serve.
        tokenizer: Of the model that is trained; None leaves the vocabulary unchecked.
        key: The setting that named it; errors begin with it.
        needs_control: Whether it is to take new weights.

    Raises:
        ConfigError: It cannot be reached, or was started otherwise than it must be.
    """
    with named_by(key, server):
        context_length = await longest_context(server, model, key)
        await _check_probabilities(server, model, key)
        if needs_control:
            await server.ask("GET", "/weight_info", timeout_s=ANSWER_TIMEOUT_S)
        unused = await check_vocabulary(server, model, tokenizer, key) if tokenizer else []
    return Offer(context_length, unused)


@contextmanager
def named_by(key: str, server: Server) -> Iterator[None]:
    """Within the block errors of a server begin with the setting that named it.

    Raises:
        ConfigError: In place of `ServerLost` too: before a run, no other server takes its turns.
    """
    try:
        yield
    except ServerLost as error:
        raise ConfigError(
            f"{key}: a vLLM server cannot be used: {error}; is it running, and is this its URL?"
        ) from error
    except ConfigError as error:
        if str(error).startswith(server.url):
            raise ConfigError(f"{key}: {error}") from error
        raise


async def longest_context(server: Server, model: str, key: str) -> int:
    """The longest context of a model that a server serves."""
    found = await server.ask("GET", "/v1/models", timeout_s=ANSWER_TIMEOUT_S)
    try:
        served = {str(each["id"]): each for each in found["data"]}
        if model in served:
            return int(served[model]["max_model_len"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{key}: {server.url} answers otherwise than a vLLM server of version 0.32 or later: "
            f"{found!r:.100}"
        ) from error
    raise ConfigError(
        f"{key}: {server.url} serves {', '.join(served)}, and not {model!r}; start it with "
        f"--served-model-name {model}, or give the name that it serves as served_model (model of "
        "VLLMAgent)"
    )


async def _check_probabilities(server: Server, model: str, key: str) -> None:
    """The log-probabilities must be of the distribution that was sampled from, filters included."""
    parameters = {"max_tokens": 1, "temperature": 2.0, "top_k": 2, "logprobs": 3, "seed": 0}
    parameters |= {"top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "detokenize": False}
    body = {"model": model, "token_ids": [1, 2, 3], "sampling_params": parameters}
    answer = await server.ask("POST", GENERATE, body, timeout_s=PROBE_TIMEOUT_S)
    try:
        (choice,) = answer["choices"]
        best = [float(each["logprob"]) for each in choice["logprobs"]["content"][0]["top_logprobs"]]
        _, _, third = sorted(best, reverse=True)[:3]
        choice["weight_versions"]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{key}: {server.url}{GENERATE} answers otherwise than vLLM 0.32 or later does "
            f"({error!r}): {answer!r:.200}"
        ) from error
    total = sum(math.exp(min(each, 1.0)) for each in best)
    if third > IMPOSSIBLE or abs(total - 1.0) > 0.01:
        raise ConfigError(
            f"{key}: the log-probabilities of {server.url} are not those of the distribution that "
            "it samples from, temperature and filters included; start it with --logprobs-mode "
            "processed_logprobs"
        )


async def check_vocabulary(
    server: Server, model: str, tokenizer: Any, key: str, advice: str = OF_POLICY
) -> list[int]:
    """Check that ids mean the same tokens; returns the ids that have logits and no token.

    Args:
        server: That runs.
        model: The name that it serves.
        tokenizer: Of the model that is trained.
        key: The setting that named the server.
        advice: What to serve instead.

    Raises:
        ConfigError: They do not; it names one that differs.
    """
    ids = token_ids(tokenizer)
    logits = await _logits(server, model, key)
    if logits <= ids[-1]:
        raise ConfigError(
            f"{key}: {server.url} has logits for {logits:,} tokens, and the tokenizer of the run's "
            f"model has ids up to {ids[-1]:,}; {advice}"
        )
    for start in range(0, len(ids), IDS_AT_ONCE):
        await _compare(server, model, tokenizer, ids[start : start + IDS_AT_ONCE], key, advice)
    return unused_ids(tokenizer, logits)


async def _logits(server: Server, model: str, key: str) -> int:
    """How many logits a server has; no route says it, but an error does."""
    most = 2**31 - 1
    parameters = {"max_tokens": 1, "logit_bias": {str(most): 0.0}}
    body = {"model": model, "token_ids": [1], "sampling_params": parameters}
    try:
        await server.ask("POST", GENERATE, body, timeout_s=PROBE_TIMEOUT_S)
    except ConfigError as error:
        if said := re.search(r"[Vv]ocabulary size: (\d+)", str(error)):
            return int(said[1])
        raise
    raise ConfigError(f"{key}: {server.url} takes a logit_bias for the token {most}, so it is none")


async def _compare(
    server: Server, model: str, tokenizer: Any, ids: Sequence[int], key: str, advice: str
) -> None:
    """Check that some ids are the same text on both sides."""
    ours, theirs = await _texts(server, model, tokenizer, ids)
    if ours == theirs:
        return
    while len(ids) > 1:  # which of them differs?
        half = ids[: len(ids) // 2]
        found = await _texts(server, model, tokenizer, half)
        ids = half if found[0] != found[1] else ids[len(half) :]
    ours, theirs = await _texts(server, model, tokenizer, ids)
    raise ConfigError(
        f"{key}: {server.url} has another vocabulary than the model of the run: its token {ids[0]} "
        f"is {theirs!r:.40}, the run's is {ours!r:.40}; {advice}, with its tokenizer"
    )


async def _texts(server: Server, model: str, tokenizer: Any, ids: Sequence[int]) -> tuple[str, str]:
    """The text of some ids: of the run's tokenizer, and of a server's."""
    body = {"model": model, "tokens": list(ids)}
    said = await server.ask("POST", "/detokenize", body, timeout_s=ANSWER_TIMEOUT_S)
    return str(tokenizer.decode(list(ids))), str(said["prompt"])


def check_vllm_settings(
    tokenizer: Any,
    *,
    urls: Sequence[str] | None = None,
    launch: Mapping[str, Any] | None = None,
    served_model: str = "policy",
    api_key_env: str = "VLLM_API_KEY",
    share_device: bool = False,
    keep_experts: bool = False,
    **others: Any,
) -> int | None:
    """Check the `agent` section of a YAML, and servers that run, before any model is loaded.

    Args:
        tokenizer: The model's.
        urls: As in `gymnast.agents.vllm_trained.trained_vllm_agent`, like the following.
        launch: How to start servers.
        served_model: The name of the model.
        api_key_env: Of the key.
        share_device: Whether the servers are on the trainer's device.
        keep_experts: Whether the servers are to say which experts they choose.
        **others: Further settings.

    Returns:
        The servers' longest context, in tokens; None where they have yet to be started.

    Raises:
        ConfigError: A value does not hold, or a server cannot be used.
    """
    with of_agent(urls, launch):
        check_times(others)
        check_settings(urls, launch, share_device=share_device)
        if urls is None:
            return None

        async def ask() -> Offer:
            async with open_session(os.environ.get(api_key_env)) as session:
                servers = [Server(url, session, api_key_env, "") for url in check_urls(urls)]
                found = await check_servers(servers, served_model, tokenizer, needs_control=True)
                if keep_experts:
                    await check_experts(servers, served_model, decode)
                return found

        return asyncio.run(ask()).context_length


@contextmanager
def of_agent(urls: Any, launch: Any) -> Iterator[None]:
    """Within the block errors name the settings of a YAML's section, and who named the servers."""
    try:
        yield
    except ConfigError as error:
        said = str(error)
        if urls is None and launch is not None and said.startswith("urls: "):
            said = said.replace("urls: ", "launch: ", 1)
        raise ConfigError(f"agent.{said}") from error
