"""Ids that have a logit and no token are never sampled, and have no share in the distributions."""

import asyncio
from typing import Any

import pytest
import torch

from executor_fixtures import MakeAgent
from gymnast.agents import TransformersAgent
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.types import Completion, Sampling
from model_families import tiny
from padded_vocabulary import LOGITS, UNUSED, padded_model, prefer_unused, tokenizer_with_holes

CONTEXT = [5, 6, 7, 300]
TOKENS = [each for each in range(LOGITS) if each not in UNUSED]
KINDS = [
    Sampling(max_new_tokens=24, seed=0),
    Sampling(max_new_tokens=24, seed=1, temperature=0.5, top_p=0.9),
    Sampling(max_new_tokens=24, seed=2, top_k=5, repetition_penalty=1.2),
    Sampling(max_new_tokens=24, seed=3, min_p=0.05),
    Sampling(max_new_tokens=24, temperature=0.0),
]


@pytest.fixture(params=["packed", "states"])
def model(request: pytest.FixtureRequest) -> Any:
    if request.param == "packed":
        return padded_model()
    return prefer_unused(tiny("mamba2", vocab_size=LOGITS))


def sample(agent: TransformersAgent) -> list[Completion]:
    async def together() -> list[Completion]:
        return list(await agent.generate_all([(CONTEXT, sampling) for sampling in KINDS]))

    return asyncio.run(together())


def share_of_unused(model: Any) -> float:
    with torch.no_grad():
        logits = model(torch.tensor([CONTEXT])).logits[0, -1].float()
    return float(logits.softmax(-1)[UNUSED].sum())


def test_they_are_never_sampled(model: Any, make_agent: MakeAgent) -> None:
    assert share_of_unused(model) > 0.1
    agent = make_agent(model, tokenizer_with_holes())
    assert agent.unused_ids == UNUSED
    ids = {each for completion in sample(agent) for each in completion.ids}
    assert ids and not ids & set(UNUSED)
    unmasked = sample(make_agent(model))
    assert {each for found in unmasked for each in found.ids} & set(UNUSED)


def test_logprobs_are_of_the_distribution_over_the_tokens(
    model: Any, make_agent: MakeAgent
) -> None:
    agent = make_agent(model, tokenizer_with_holes())
    plain, *_, greedy = sample(agent)
    for completion in (plain, greedy):
        with torch.no_grad():
            logits = model(torch.tensor([CONTEXT + completion.ids])).logits[0].float()
        over_tokens = logits[len(CONTEXT) - 1 : -1, TOKENS].log_softmax(-1)
        places = torch.tensor([TOKENS.index(each) for each in completion.ids])
        expected = over_tokens.gather(1, places[:, None])[:, 0]
        found = torch.tensor(completion.logprobs)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert greedy.ids == [TOKENS[int(row.argmax())] for row in over_tokens]


def test_a_tokenizer_without_unused_ids_changes_no_bit(make_agent: MakeAgent) -> None:
    model, tokenizer = tiny_model(400), tiny_tokenizer(400)
    with_tokens, without = make_agent(model, tokenizer), make_agent(model)
    assert with_tokens.unused_ids == []
    for ours, theirs in zip(sample(with_tokens), sample(without), strict=True):
        assert (ours.ids, ours.logprobs) == (theirs.ids, theirs.logprobs)
