"""What is said to a vLLM server and what it answers: pure functions over JSON.

The route is `POST /inference/v1/generate` (vLLM 0.32, `--enable-scale-out`), token ids in and out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gymnast.errors import InfrastructureError, UsageError
from gymnast.types import Sampling

MOST_SEED = 2**31 - 1
LEAST_TEMPERATURE = 0.01  # vLLM takes those between 0 and this for this
NEVER = -1e9  # added to a logit: the token's probability is 0 in float32


@dataclass(frozen=True)
class Sampled:
    """What a server sampled for one context.

    Attributes:
        ids: The sampled token ids, the stop token included.
        logprobs: Of each, under the distribution it was drawn from.
        stop: "stop" after a stop id, "length" when the most tokens were sampled.
        versions: The names of the weights that sampled `ids[start:end]`, as (start, end, name).
        experts: The experts chosen for each token of the context and of `ids` but the last, as the
            server encodes them (`experts.py`); None where it does not say.
    """

    ids: list[int]
    logprobs: list[float]
    stop: Literal["stop", "length"]
    versions: list[tuple[int, int, str]]
    experts: Any = None


def check_sampling(sampling: Sampling) -> None:
    """Check that vLLM samples from the distribution that a `Sampling` means.

    Raises:
        UsageError: It does not.
    """
    if 0 < sampling.temperature < LEAST_TEMPERATURE:
        raise UsageError(
            f"Sampling.temperature: vLLM raises {sampling.temperature:g} to {LEAST_TEMPERATURE}; "
            f"set it to 0, which is greedy, or to {LEAST_TEMPERATURE} or more"
        )
    if sampling.min_p > 0 and sampling.top_p < 1 and sampling.temperature > 0:
        raise UsageError(
            f"Sampling.min_p: is {sampling.min_p:g} with a top_p of {sampling.top_p:g}, and vLLM "
            "applies min_p before top_p, while Sampling means it to come after; set one of the two"
        )


def generate_body(
    context_ids: Sequence[int],
    sampling: Sampling,
    *,
    model: str,
    max_tokens: int,
    version: str,
    unused_ids: Sequence[int] = (),
) -> dict[str, Any]:
    """The body of a request for one completion.

    Every field of the sampling is sent: what is left out, the server takes from the model's
    generation config.

    Args:
        context_ids: Prompt, actions and observations so far.
        sampling: How to sample.
        model: The served name, of the model or of an adapter.
        max_tokens: How many tokens at most.
        version: The name of the weights; contexts computed by other weights are not reused.
        unused_ids: Ids with a logit and no token; they are never sampled.
    """
    parameters: dict[str, Any] = {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": max_tokens,
        "min_tokens": 0,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,  # the stop ids are ours
        "logprobs": 0,  # of the sampled token alone
        "detokenize": False,
        "seed": None if sampling.seed is None else sampling.seed & MOST_SEED,
    }
    if unused_ids:
        parameters["logit_bias"] = {str(each): NEVER for each in unused_ids}
    return {
        "model": model,
        "token_ids": list(context_ids),
        "sampling_params": parameters,
        "cache_salt": version,
        "stream": False,
    }


def read_answer(answer: Mapping[str, Any], sampling: Sampling, max_tokens: int) -> Sampled:
    """The completion in an answer.

    Raises:
        InfrastructureError: It is none: the server ended the request, or answers otherwise than
            the route does.
    """
    try:
        (choice,) = answer["choices"]
        ids = [int(each) for each in choice["token_ids"]]
        content = choice["logprobs"]["content"]
        logprobs = [float(each["logprob"]) for each in content]
        told = [int(each["token_id"]) for each in content]
        reason = choice["finish_reason"]
        versions = [
            (int(span["start"]), int(span["end"]), str(span["version"]))
            for span in choice.get("weight_versions") or ()
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InfrastructureError(
            f"the answer of a vLLM server cannot be read ({error!r}): {answer!r:.300}"
        ) from error
    stopped = bool(ids) and ids[-1] in sampling.stop_ids
    if reason not in ("stop", "length") or not (stopped or len(ids) == max_tokens):
        raise InfrastructureError(
            f"a vLLM server ended a completion after {len(ids)} of {max_tokens} tokens, without a "
            f"stop id, with finish_reason {reason!r}"
        )
    if told != ids:
        raise InfrastructureError(
            f"a vLLM server answers with log-probabilities of other tokens than it sampled: "
            f"{told!r:.100}, {ids!r:.100}"
        )
    return Sampled(
        ids, logprobs, "stop" if stopped else "length", versions, choice.get("routed_experts")
    )
