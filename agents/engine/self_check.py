"""A check that an engine computes what its model computes, made before its first use.

Kernels that few machines have run must not be able to train on wrong numbers.
"""

from concurrent.futures import Future
from typing import Any, cast

import torch

from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.paged_executor import PagedExecutor
from gymnast.agents.engine.request import Request
from gymnast.types import Completion, Sampling

# Mean distances of log-probabilities, in nats, that rounding alone does not reach: several times
# what two ways of computing the same model differ by.
LIMITS = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.05}
PREFIX, SUFFIX, LONG = 300, 9, 1100  # tokens; a long row is divided along its keys
SAMPLED = 8


def check_engine(engine: Engine, model: Any, context_length: int) -> float:
    """Play three short requests, and compare them with the model's own forward.

    Two of them share a prefix, which is read once for both, and one is long. Nothing that was
    computed serves later requests; the engine's counts and times go on.

    Args:
        engine: With nothing to do, over `model`; its executor has pages.
        model: Of Transformers.
        context_length: The longest context with its completion, in tokens.

    Returns:
        In nats: the mean distance of the log-probabilities of greedy tokens from the model's own,
        plus the mean by which the likeliest token exceeds the greedy one there.

    Raises:
        Exception: Whatever the engine raises.
    """
    vocabulary = model.config.get_text_config().vocab_size
    draw = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        count = max(1, min(count, context_length - SAMPLED))
        return torch.randint(vocabulary, (count,), generator=draw).tolist()

    prefix, sampled = tokens(PREFIX), min(SAMPLED, context_length - 1)
    contexts = [prefix + tokens(SUFFIX), prefix + tokens(SUFFIX), tokens(LONG)]
    contexts = [context[: context_length - sampled] for context in contexts]
    sampling = Sampling(temperature=0.0, max_new_tokens=sampled)
    requests = [
        Request(context, sampling, Future[Completion](), limit=context_length - len(context))
        for context in contexts
    ]
    # The second begins when the prefix is there, and decodes next to the others.
    engine.waiting += requests
    paged = cast(PagedExecutor, engine.executor)
    before, paged.worth_joining = paged.worth_joining, 0
    try:
        while not engine.idle:
            engine.step()
    finally:
        paged.worth_joining = before
    engine.forget()
    differences = []
    for request in requests:
        completion = request.future.result()
        expected, best = _own_logprobs(model, request.context, completion.ids)
        distance = (torch.tensor(completion.logprobs) - expected).abs()
        differences.append(distance + best - expected)
    return float(torch.cat(differences).mean())


@torch.inference_mode()
def _own_logprobs(
    model: Any, context: list[int], ids: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of a completion, and of the likeliest tokens, by a plain forward; [T]."""
    given = torch.tensor([context + ids], device=model.device)
    logits = model(input_ids=given, use_cache=False).logits[0, len(context) - 1 : -1].float()
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(1, given[0, len(context) :, None])[:, 0]
    return chosen.cpu(), logprobs.amax(dim=1).cpu()
