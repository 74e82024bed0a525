"""Several requests handed over at once: in order, all or none, and cancelled together."""

import asyncio
import threading
import time
from typing import Any

import pytest

from executor_fixtures import MakeAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import UsageError
from gymnast.types import Completion, Sampling


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(seed=4)


def test_every_request_is_answered_in_its_place(model: Any, make_agent: MakeAgent) -> None:
    contexts = [[5, 6, 7], [8, 9], [5, 6, 7, 8, 9, 10]]
    greedy = [Sampling(temperature=0.0, max_new_tokens=n) for n in (3, 5, 4)]

    async def both() -> tuple[list[Completion], list[Completion]]:
        together = await make_agent(model).generate_all(list(zip(contexts, greedy, strict=True)))
        agent = make_agent(model)
        alone = [await agent.generate(*request) for request in zip(contexts, greedy, strict=True)]
        return together, alone

    together, alone = asyncio.run(both())
    assert [found.ids for found in together] == [found.ids for found in alone]
    assert [len(found.ids) for found in together] == [3, 5, 4]


def test_no_requests_need_no_answer(model: Any, make_agent: MakeAgent) -> None:
    assert asyncio.run(make_agent(model).generate_all([])) == []


def test_one_request_that_cannot_be_served_leaves_all_unsampled(
    model: Any, make_agent: MakeAgent
) -> None:
    agent = make_agent(model)
    requests = [([5, 6], Sampling(max_new_tokens=2)), ([], Sampling(max_new_tokens=2))]
    with pytest.raises(UsageError, match="the context has 0 tokens"):
        asyncio.run(agent.generate_all(requests))
    assert agent.tokens_pushed == 0


def test_cancelling_frees_all_their_places(model: Any, make_agent: MakeAgent) -> None:
    """Two sample and two wait; afterwards the engine computes for none of them."""
    agent = make_agent(model, max_batch=2)

    async def scenario() -> None:
        long = Sampling(max_new_tokens=1900)
        calls = asyncio.create_task(agent.generate_all([([n], long) for n in range(5, 9)]))
        while agent.tokens_pushed < 20:
            await asyncio.sleep(0.001)
        calls.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls
        before = agent.tokens_pushed
        await agent.generate([9, 10], Sampling(max_new_tokens=3))
        # Its own tokens, and the steps that were under way.
        assert agent.tokens_pushed - before < 100
        settled_at = agent.tokens_pushed
        await asyncio.sleep(0.05)
        assert agent.tokens_pushed == settled_at

    asyncio.run(scenario())


def test_the_model_is_let_go_a_step_after_a_request_was_cancelled(
    model: Any, make_agent: MakeAgent
) -> None:
    """Whoever trains the model next waits for that step."""
    inside = threading.Event()

    def enter(*_: Any) -> None:
        inside.set()
        time.sleep(0.1)

    hooks = [
        model.register_forward_pre_hook(enter),
        model.register_forward_hook(lambda *_: inside.clear()),
    ]
    agent = make_agent(model)
    agent.wait_idle()  # nothing was asked for yet

    async def scenario() -> None:
        call = asyncio.create_task(agent.generate([5, 6], Sampling(max_new_tokens=1900)))
        while not inside.is_set():
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert inside.is_set()
        agent.wait_idle()
        assert not inside.is_set()

    try:
        asyncio.run(scenario())
    finally:
        for hook in hooks:
            hook.remove()
