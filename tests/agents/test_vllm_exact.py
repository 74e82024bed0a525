"""What a vLLM server samples is what the engine in this process would sample on the same weights:
tokens, log-probabilities, distributions, stops and budgets."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from drawn_from import drawn_from
from gymnast.agents import PolicyWeights, TransformersAgent, VLLMAgent
from gymnast.agents.base import Agent
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.errors import UsageError
from gymnast.types import Completion, Sampling
from vllm_fixtures import Serve

pytestmark = [pytest.mark.vllm]
CONTEXTS = [[5, 6, 7, 8], [300, 2, 9], [41, 41, 41, 7, 700], [1000, 3]]
ROUNDING = 0.08  # between 8 and 16, neighbouring numbers of bfloat16 are 0.0625 apart
DRAWS = 4000


def sharper(model: Any, factor: float) -> Any:
    """The model with its logits multiplied: at random weights all tokens are about as likely."""
    with torch.no_grad():
        model.model.norm.weight.mul_(factor)
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return sharper(tiny_model().to(torch.bfloat16), 12.0)


@pytest.fixture(scope="module")
def agent(vllm_url: str, model: Any) -> Iterator[VLLMAgent]:
    agent = VLLMAgent([vllm_url], tokenizer=tiny_tokenizer())
    agent.update_weights(PolicyWeights(model), 1)
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def here(model: Any) -> TransformersAgent:
    return TransformersAgent(model, context_length=1024)


def ask(agent: Agent, *requests: tuple[list[int], Sampling]) -> list[Completion]:
    async def together() -> list[Completion]:
        return await asyncio.gather(*(agent.generate(*request) for request in requests))

    return asyncio.run(together())


@torch.no_grad()
def logits(model: Any, ids: list[int]) -> torch.Tensor:
    """What follows each token, [L, V], by a forward pass of Transformers."""
    found: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return found


def test_greedy_tokens_are_equal_up_to_ties(
    agent: VLLMAgent, here: TransformersAgent, model: Any
) -> None:
    greedy = Sampling(temperature=0.0, max_new_tokens=24)
    requests = [(context, greedy) for context in CONTEXTS]
    equal = 0
    for context, ours, theirs in zip(
        CONTEXTS, ask(here, *requests), ask(agent, *requests), strict=True
    ):
        pairs = zip(ours.ids, theirs.ids, strict=True)
        same = next((n for n, (one, other) in enumerate(pairs) if one != other), len(ours.ids))
        equal += same
        if same < len(ours.ids):
            last = logits(model, context + ours.ids[:same])[-1]
            assert abs(last[ours.ids[same]] - last[theirs.ids[same]]) <= ROUNDING
        assert theirs.logprobs[:same] == pytest.approx(ours.logprobs[:same], abs=ROUNDING)
    assert equal >= 24


def test_logprobs_differ_by_rounding_alone(vllm_url: str) -> None:
    """Logits are rounded to eight bits, so the difference is that of rounding small ones."""
    model = sharper(tiny_model().to(torch.bfloat16), 0.5)
    agent = VLLMAgent([vllm_url])
    agent.update_weights(PolicyWeights(model), 1)
    sampled = ask(agent, *((ids, Sampling(seed=1, max_new_tokens=64)) for ids in CONTEXTS))
    agent.close()
    differences = []
    for context, completion in zip(CONTEXTS, sampled, strict=True):
        found = logits(model, context + completion.ids)[len(context) - 1 : -1].log_softmax(-1)
        ours = found.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
        differences += (ours - torch.tensor(completion.logprobs)).abs().tolist()
    assert sum(differences) / len(differences) < 1e-3


KINDS = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_k": 9},
    {"top_p": 0.7},
    {"temperature": 1.5, "top_p": 0.6, "top_k": 40},
    {"temperature": 1.4, "min_p": 0.15},
    {"min_p": 0.05, "top_k": 12},
    {"repetition_penalty": 1.6},
    {"repetition_penalty": 1.3, "temperature": 0.8, "top_p": 0.9},
]


@pytest.fixture(scope="module")
def exactly(vllm_float32_url: str) -> Iterator[tuple[VLLMAgent, Any]]:
    """An agent of a server in float32, in which nothing is rounded so far that it shows."""
    model = sharper(tiny_model(), 12.0)
    agent = VLLMAgent([vllm_float32_url], tokenizer=tiny_tokenizer())
    agent.update_weights(PolicyWeights(model), 1)
    yield agent, model
    agent.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(kind) or "plain")
def test_frequencies_are_those_of_the_distribution(
    exactly: tuple[VLLMAgent, Any], kind: dict[str, Any]
) -> None:
    agent, model = exactly
    context = CONTEXTS[2]
    expected = drawn_from(model, context, Sampling(max_new_tokens=1, **kind)).exp()
    seeded = (Sampling(max_new_tokens=1, seed=seed, **kind) for seed in range(DRAWS))
    drawn = ask(agent, *((context, each) for each in seeded))
    for completion in drawn:
        probability = float(expected[completion.ids[0]])
        assert completion.logprobs[0] == pytest.approx(math.log(probability), abs=1e-4)
    assert chi_square_deviation(Counter(each.ids[0] for each in drawn), expected) < 4.5


def chi_square_deviation(drawn: Counter[int], expected: torch.Tensor) -> float:
    """How many standard deviations above its mean Pearson's statistic is (Wilson and Hilferty).

    Tokens that are expected less than five times count as one.
    """
    total = drawn.total()
    often = [token for token, p in enumerate(expected.tolist()) if p * total >= 5]
    counts = [(drawn[token], float(expected[token]) * total) for token in often]
    rest = total - sum(count for count, _ in counts), total - sum(mean for _, mean in counts)
    if rest[1] >= 5:
        counts.append(rest)
    statistic = sum((count - mean) ** 2 / mean for count, mean in counts)
    freedom = len(counts) - 1
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def test_the_statistic_tells_another_distribution(model: Any) -> None:
    context = CONTEXTS[2]
    expected = drawn_from(model, context, Sampling()).exp()
    generator = torch.Generator().manual_seed(0)
    for temperature, differs in ((1.0, False), (1.2, True)):
        other = drawn_from(model, context, Sampling(temperature=temperature)).exp()
        drawn = torch.multinomial(other, DRAWS, replacement=True, generator=generator)
        deviation = chi_square_deviation(Counter(drawn.tolist()), expected)
        assert (deviation > 4.5) is differs


def test_the_same_seed_samples_the_same_and_others_differ(agent: VLLMAgent) -> None:
    def with_seed(seed: int | None) -> list[int]:
        (found,) = ask(agent, (CONTEXTS[0], Sampling(seed=seed, max_new_tokens=12)))
        return found.ids

    assert with_seed(3) == with_seed(3)
    large = 3 + 2**40  # seeds of episodes have 64 bits
    assert len({tuple(with_seed(seed)) for seed in (3, 4, 5, -1, large, None, None)}) >= 6


def test_a_completion_ends_with_a_stop_id_at_its_budget_or_at_the_context(
    agent: VLLMAgent,
) -> None:
    greedy = Sampling(temperature=0.0, max_new_tokens=8)
    (first,) = ask(agent, (CONTEXTS[0], greedy))
    assert (len(first.ids), first.stop) == (8, "length")
    token = first.ids[3]
    end = first.ids.index(token) + 1
    stopping = Sampling(temperature=0.0, max_new_tokens=8, stop_ids=(999, token))
    (stopped,) = ask(agent, (CONTEXTS[0], stopping))
    assert (stopped.ids, stopped.stop) == (first.ids[:end], "stop")
    assert len(stopped.logprobs) == end
    nearly_full = [5] * (agent.context_length - 2)
    (cut,) = ask(agent, (nearly_full, greedy))
    assert (len(cut.ids), cut.stop) == (2, "length")
    with pytest.raises(UsageError, match="context_length 1024"):
        ask(agent, ([5] * agent.context_length, greedy))


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        (Sampling(temperature=0.005), "vLLM raises 0.005 to 0.01; set it to 0, which is greedy"),
        (Sampling(min_p=0.1, top_p=0.9), "vLLM applies min_p before top_p"),
    ],
)
def test_what_vllm_would_sample_otherwise_is_refused(
    agent: VLLMAgent, sampling: Sampling, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        ask(agent, (CONTEXTS[0], sampling))


def test_greedy_tokens_have_the_logprobs_of_the_unfiltered_distribution_in_both(
    agent: VLLMAgent, here: TransformersAgent
) -> None:
    greedy = Sampling(temperature=0.0, top_k=2, top_p=0.5, max_new_tokens=3)
    request, other = (CONTEXTS[0], greedy), (CONTEXTS[1], Sampling(seed=1, max_new_tokens=3))
    (ours, _), (theirs, _) = ask(here, request, other), ask(agent, request, other)
    assert theirs.ids == ours.ids
    assert theirs.logprobs == pytest.approx(ours.logprobs, abs=ROUNDING)
    assert min(ours.logprobs) < -0.1


def test_ids_beyond_the_tokenizer_and_a_generation_config_change_nothing(serve: Serve) -> None:
    """A model with 34 logits more than tokens, whose own config adds stop ids and filters."""
    tokenizer = tiny_tokenizer()
    model = sharper(tiny_model(len(tokenizer) + 34, seed=2).to(torch.bfloat16), 12.0)
    with torch.no_grad():
        model.get_input_embeddings().weight[len(tokenizer) :] *= 3  # padding that is likely
    model.generation_config.eos_token_id = [2, *range(5, 700)]
    model.generation_config.update(do_sample=True, top_k=3, top_p=0.4, temperature=0.3)
    agent = VLLMAgent(serve(model, tokenizer).urls, tokenizer=tokenizer)
    requests = [(CONTEXTS[0], Sampling(seed=seed, max_new_tokens=8)) for seed in range(100)]
    completions = ask(agent, *requests)
    agent.close()
    assert {len(each.ids) for each in completions} == {8}
    assert max(max(each.ids) for each in completions) < len(tokenizer)
    assert len({each.ids[0] for each in completions}) > 5
    all_logits = logits(model, CONTEXTS[0])[-1]
    assert all_logits.softmax(-1)[len(tokenizer) :].sum() > 0.1
    expected = all_logits[: len(tokenizer)].log_softmax(-1)
    errors = [each.logprobs[0] - float(expected[each.ids[0]]) for each in completions]
    assert max(map(abs, errors)) < 2 * ROUNDING  # this CPU and its kernels round their own way
    assert abs(sum(errors)) / len(errors) < 0.03  # with the padding, all would be 0.1 lower
    assert json.loads(model.generation_config.to_json_string())["top_k"] == 3
