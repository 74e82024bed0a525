"""The cache is bounded, keeps what was used last, and costs no exactness."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor_fixtures import Executor
from gymnast.agents import TransformersAgent
from gymnast.agents.engine.paged_attention import PAGE
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import UsageError
from gymnast.types import Completion, Sampling

LAYERS, HEADS, WIDTH = 2, 2, 32
TOKEN_BYTES = LAYERS * HEADS * WIDTH * 2 * 4  # keys and values, float32
GREEDY = Sampling(temperature=0.0, max_new_tokens=4)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(200, hidden_size=64, intermediate_size=64, num_hidden_layers=LAYERS)


def tokens(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, 200, length)]


def budgeted(model: Any, held: int, executor: Executor, **settings: Any) -> TransformersAgent:
    """An agent whose keys and values have room for some tokens; a page more is for padding."""
    held += PAGE if executor == "pages" else 0
    return TransformersAgent(
        model, kv_budget_bytes=held * TOKEN_BYTES, executor=executor, **settings
    )


def ask(agent: TransformersAgent, *contexts: list[int]) -> list[Completion]:
    async def together() -> list[Completion]:
        return list(await asyncio.gather(*(agent.generate(c, GREEDY) for c in contexts)))

    return asyncio.run(together())


def pushed(agent: TransformersAgent, context: list[int]) -> int:
    before = agent.tokens_pushed
    ask(agent, context)
    return agent.tokens_pushed - before


def assert_exact(model: Any, context: list[int], completion: Completion) -> None:
    with torch.no_grad():
        logits = model(torch.tensor([context + completion.ids])).logits[0].float()
    logprobs = torch.log_softmax(logits[len(context) - 1 : -1], dim=-1)
    expected = logprobs.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, rtol=0, atol=1e-4)


def test_a_context_beyond_the_budget_is_refused_before_anything_is_sampled(
    model: Any, executor: Executor
) -> None:
    agent = budgeted(model, 50, executor)
    held = {"rows": 50, "pages": 48}[executor]
    assert agent.context_length == held
    given = rf"kv_budget_bytes={agent.kv_budget_bytes} holds {held}"
    with pytest.raises(UsageError, match=f"{held} tokens, and {given}"):
        ask(agent, tokens(0, held))
    assert agent.tokens_pushed == 0
    (completion,) = ask(agent, tokens(0, held - 1))
    assert len(completion.ids) == 1, "the last token that fits"
    assert completion.stop == "length"


@pytest.mark.parametrize("kind", ["rows", "pages"])
def test_a_budget_for_less_than_a_context_is_refused(model: Any, kind: Executor) -> None:
    with pytest.raises(UsageError, match=r"kv_budget_bytes=1024: .* take 1024 bytes"):
        TransformersAgent(model, kv_budget_bytes=TOKEN_BYTES, executor=kind)


def test_a_budget_for_less_than_two_pages_is_refused(model: Any) -> None:
    with pytest.raises(UsageError, match=r"kv_budget_bytes=31744: a page of 16 tokens"):
        TransformersAgent(model, kv_budget_bytes=31 * TOKEN_BYTES, executor="pages")
    TransformersAgent(model, kv_budget_bytes=32 * TOKEN_BYTES, executor="pages")


def test_more_contexts_than_fit_wait_and_none_exceeds_the_budget(
    model: Any, executor: Executor
) -> None:
    agent = budgeted(model, 100, executor)
    contexts = [tokens(i, 20 + i) for i in range(12)]  # 4 at once

    async def watched() -> tuple[list[Completion], int]:
        asked = [asyncio.create_task(agent.generate(c, GREEDY)) for c in contexts]
        most = 0
        while not all(task.done() for task in asked):
            most = max(most, agent.kv_bytes)
            await asyncio.sleep(0)
        return [await task for task in asked], max(most, agent.kv_bytes)

    completions, most = asyncio.run(watched())
    for context, completion in zip(contexts, completions, strict=True):
        assert_exact(model, context, completion)
    assert 0 < most <= agent.kv_budget_bytes


def test_what_was_used_last_stays_and_what_was_not_goes(model: Any, executor: Executor) -> None:
    # Pages: two full ones stay of each context, and the fifth needs three, of which one is free.
    agent = budgeted(model, {"rows": 4 * 44, "pages": 9 * PAGE}[executor], executor)
    first, second, third, fourth, fifth = (tokens(i, 40) for i in range(5))
    again = {"rows": 1, "pages": 40 - 2 * PAGE}[executor] + 3
    for context in (first, second, third, fourth):
        assert pushed(agent, context) == 40 + 3
    assert pushed(agent, first) == again, "all four fit; the last token gives the first sample"
    assert pushed(agent, fifth) == 40 + 3
    assert pushed(agent, first) == again, "it was used before the fifth came"
    assert pushed(agent, second) == 40 + 3, "it had not been used for the longest time"


def test_a_long_context_takes_the_place_of_short_ones(model: Any, executor: Executor) -> None:
    agent = budgeted(model, 300, executor)
    for i in range(6):
        ask(agent, tokens(i, 40))
    context = tokens(9, 280)
    (completion,) = ask(agent, context)
    assert_exact(model, context, completion)
    assert agent.kv_bytes <= agent.kv_budget_bytes
    contexts = [tokens(i, 40) for i in range(6)]  # and they of its
    for short, answered in zip(contexts, ask(agent, *contexts), strict=True):
        assert_exact(model, short, answered)
    assert agent.kv_bytes <= agent.kv_budget_bytes


def test_new_weights_give_the_memory_back(model: Any) -> None:
    agent = budgeted(model, 300, "rows")
    ask(agent, tokens(0, 40))
    assert agent.kv_bytes > 0

    async def freed() -> None:
        while agent.kv_bytes:
            await asyncio.sleep(0.001)

    agent.weights_changed()
    asyncio.run(asyncio.wait_for(freed(), timeout=30))


@settings(max_examples=25)
@given(
    held=st.integers(80, 400),
    max_batch=st.integers(1, 6),
    prefill_tokens=st.sampled_from([3, 16, 1024]),
    episodes=st.lists(
        st.tuples(
            st.sampled_from([0, 10, 40]),  # tokens of the system prompt, common to all
            st.integers(0, 2),  # which group
            st.lists(st.integers(0, 20), min_size=1, max_size=3),  # what each turn appends
            st.booleans(),  # whether it is cancelled
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_whatever_joins_leaves_or_is_evicted_the_logprobs_are_exact(
    model: Any,
    executor: Executor,
    held: int,
    max_batch: int,
    prefill_tokens: int,
    episodes: list[Any],
) -> None:
    agent = budgeted(model, held, executor, max_batch=max_batch, prefill_tokens=prefill_tokens)
    seen: list[tuple[list[int], Completion]] = []

    async def play(number: int, system: int, group: int, appended: list[int]) -> None:
        context = tokens(0, system) + tokens(1 + group, 12)
        for turn, length in enumerate(appended):
            if len(context) + length >= agent.context_length:
                return
            context = context + tokens(10 * number + turn, length)
            sampling = Sampling(max_new_tokens=1 + (number + turn) % 6, seed=number)
            completion = await agent.generate(context, sampling)
            seen.append((context, completion))
            context = context + completion.ids
            await asyncio.sleep(0)

    async def all_of_them() -> None:
        tasks = [
            asyncio.create_task(play(number, system, group, appended))
            for number, (system, group, appended, _) in enumerate(episodes)
        ]
        await asyncio.sleep(0.002)
        for task, (*_, cancelled) in zip(tasks, episodes, strict=True):
            if cancelled:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            assert task.cancelled() or task.exception() is None

    asyncio.run(all_of_them())
    agent.wait_idle()  # a cancelled request may be in one more step
    assert agent.kv_bytes <= agent.kv_budget_bytes
    for context, completion in seen:
        assert_exact(model, context, completion)
