"""What servers say of given tokens: the request, its answer, and what must hold of the servers.

vLLM 0.32 gives the log-probability of every token of a prompt under the model's own distribution:
it applies neither filters nor a temperature there. A prompt of which they are asked is computed
whole, whatever is cached.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from gymnast.agents.vllm.checks import (
    PROBE_TIMEOUT_S,
    check_vocabulary,
    longest_context,
    named_by,
)
from gymnast.agents.vllm.server import GENERATE, Server
from gymnast.errors import ConfigError, InfrastructureError

ADVICE = "serve a teacher of the policy's family"
SHOWN = 20  # log-probabilities of one place; vLLM gives at most as many where nothing else is set
ROUNDING = 0.01


def reading_body(ids: Sequence[int], *, model: str, shown: int = 0) -> dict[str, Any]:
    """The body of a request for the log-probabilities of given tokens.

    Args:
        ids: Two at least.
        model: The served name.
        shown: How many other tokens, the likeliest ones, to give in each place as well.
    """
    parameters: dict[str, Any] = {
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": 1,  # the least
        "prompt_logprobs": shown,
        "detokenize": False,
    }
    return {"model": model, "token_ids": list(ids), "sampling_params": parameters, "stream": False}


def read_logprobs(answer: Any, ids: Sequence[int]) -> list[float]:
    """The log-probability of each token but the first, of which there is none.

    Args:
        answer: To the request for these ids.
        ids: At least two.

    Raises:
        InfrastructureError: The answer has not that of every token.
    """
    try:
        _, *told = answer["prompt_logprobs"]
        found = [
            float(place[str(each)]["logprob"]) for each, place in zip(ids[1:], told, strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InfrastructureError(
            f"the answer of a vLLM server has no log-probability of every token that it was asked "
            f"for ({error!r:.100}): {answer!r:.300}"
        ) from error
    if any(map(math.isnan, found)):
        raise InfrastructureError("a vLLM server gives a token a log-probability that is no number")
    return found


async def check_readers(servers: Sequence[Server], model: str, tokenizer: Any, *, key: str) -> int:
    """Check that servers can read a policy's tokens; returns how many each of them takes at once.

    Args:
        servers: That run.
        model: The name that they serve.
        tokenizer: Of the policy.
        key: The setting that named them; errors begin with it.

    Raises:
        ConfigError: One cannot be used.
    """
    longest = await asyncio.gather(
        *(_check_reader(server, model, tokenizer, key) for server in servers)
    )
    return min(longest) - 1  # vLLM samples a token after what it reads


async def _check_reader(server: Server, model: str, tokenizer: Any, key: str) -> int:
    """Check one server; returns the longest context of its model."""
    with named_by(key, server):
        longest = await longest_context(server, model, key)
        unused = await check_vocabulary(server, model, tokenizer, key, ADVICE)
        await _check_probabilities(server, model, len(tokenizer) + len(unused), key)
    return longest


async def _check_probabilities(server: Server, model: str, logits: int, key: str) -> None:
    """They must be log-probabilities, and not logits."""
    body = reading_body([1, 2, 3], model=model, shown=SHOWN)
    answer = await server.ask("POST", GENERATE, body, timeout_s=PROBE_TIMEOUT_S)
    try:
        read_logprobs(answer, [1, 2, 3])
    except InfrastructureError as error:
        raise ConfigError(f"{key}: {server.url}: {error}; vLLM 0.32 or later is needed") from error
    for place in answer["prompt_logprobs"][1:]:
        told = [float(each["logprob"]) for each in place.values()]
        total = sum(math.exp(min(each, 1.0)) for each in told)
        if total > 1 + ROUNDING or max(told) < -math.log(logits) - ROUNDING:
            raise ConfigError(
                f"{key}: {server.url} gives logits for log-probabilities; start it with "
                "--logprobs-mode raw_logprobs"
            )
