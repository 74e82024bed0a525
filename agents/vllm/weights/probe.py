"""Whether a server samples with the weights that were handed over.

The log-probabilities of a fixed row of tokens by the trained model are compared with what the
server says of the same tokens, after each hand-over. It finds another model, and weights that did
not arrive at all; it cannot tell the small steps of a training apart from the rounding of bfloat16.
It costs one forward pass over 32 tokens, and one request.
"""

from dataclasses import dataclass
from typing import Any

import torch

from gymnast.agents.vllm.reading import read_logprobs, reading_body
from gymnast.agents.vllm.server import GENERATE, Server
from gymnast.errors import ConfigError, InfrastructureError, ServerLost

TOKENS = 32
STRIDE = 7919  # a prime: the tokens come from all of the vocabulary
MOST_DIFFERENCE = 0.25  # nats on average
PROBE_TIMEOUT_S = 600.0  # the first request may have to wait until kernels are compiled


@dataclass(frozen=True)
class Probe:
    """Some tokens, and the log-probability of each but the first after those before it."""

    ids: list[int]
    logprobs: list[float]


@torch.no_grad()
def make_probe(model: Any) -> Probe:
    """A probe of a model's weights as they are now.

    Args:
        model: Of Transformers, or of peft around one; it stays in its mode.
    """
    embedding = model.get_input_embeddings().weight
    vocabulary = model.config.get_text_config().vocab_size
    ids = [number * STRIDE % vocabulary for number in range(1, TOKENS + 1)]
    trains = model.training
    model.eval()
    try:
        logits = model(torch.tensor([ids], device=embedding.device), use_cache=False).logits
    finally:
        model.train(trains)
    logprobs = logits[0, :-1].float().log_softmax(-1)
    return Probe(ids, logprobs[range(TOKENS - 1), ids[1:]].tolist())


async def check_probe(server: Server, probe: Probe, model: str) -> float:
    """Compare a server's log-probabilities with a probe's; returns their mean difference, in nats.

    Args:
        server: Which has the weights.
        probe: Made of the same weights.
        model: The name of the model, or of the adapter.

    Raises:
        ConfigError: They are of other weights.
        ServerLost: The server does not answer, or not with log-probabilities.
    """
    body = reading_body(probe.ids, model=model)
    answer = await server.ask("POST", GENERATE, body, timeout_s=PROBE_TIMEOUT_S)
    try:
        theirs = read_logprobs(answer, probe.ids)
    except InfrastructureError as error:
        raise ServerLost(f"{server.url}: {error}") from error
    pairs = zip(probe.logprobs, theirs, strict=True)
    difference = sum(abs(ours - each) for ours, each in pairs) / len(theirs)
    if not difference <= MOST_DIFFERENCE:  # NaN is none
        raise ConfigError(
            f"{server.url}: samples with other weights than those that were handed over to it: "
            f"the log-probabilities of {len(theirs)} tokens differ by {difference:.2f} nats on "
            f"average (at most {MOST_DIFFERENCE} is rounding). Start it with the model that is "
            "trained, in the same dtype and without quantization"
        )
    return difference
