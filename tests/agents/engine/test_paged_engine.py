"""The engine over pages: memory, preemption, new weights, steps in advance, and failures."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from executor_fixtures import Executor, MakeAgent
from gymnast.agents import PolicyWeights, TransformersAgent
from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.paged_attention import PAGE
from gymnast.agents.engine.paged_executor import PagedExecutor
from gymnast.agents.engine.request import Request
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import InfrastructureError, UsageError
from gymnast.types import Completion, Sampling, VersionSpan

Asked = Sequence[tuple[list[int], Sampling]]
LONGEST = 512


def make_model(seed: int = 0) -> Any:
    return tiny_model(
        200, seed=seed, hidden_size=32, intermediate_size=32, num_hidden_layers=2, head_dim=16
    )


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model()


def tokens(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, 200, length)]


def generate(agent: TransformersAgent, requests: Asked) -> list[Completion]:
    return asyncio.run(agent.generate_all(requests))


def make_engine(model: Any, pages: int = 200, **settings: Any) -> Engine:
    page_bytes = 2 * PAGE * 2 * (16 + 16) * 4
    settings = {
        "max_rows": 16,
        "context_length": LONGEST,
        "prefill_tokens": 64,
        "attention": "plain",
        **settings,
    }
    executor = PagedExecutor(model, kv_budget_bytes=(pages + 1) * page_bytes, **settings)
    assert executor.page_bytes == page_bytes
    return Engine(executor, prefill_tokens=settings["prefill_tokens"])


def submit(engine: Engine, requests: Asked) -> list[Request]:
    longest = engine.executor.context_length
    made = [Request(ids, each, Future(), limit=longest - len(ids)) for ids, each in requests]
    engine.waiting += made
    return made


def play(
    engine: Engine, requests: Asked, each_step: Callable[[], Any] = lambda: None
) -> list[Completion]:
    made = submit(engine, requests)
    while not engine.idle:
        each_step()
        engine.step()
    return [request.future.result() for request in made]


def assert_same(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.ids, one.stop) == (other.ids, other.stop)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def mixture(count: int) -> list[tuple[list[int], Sampling]]:
    """Requests of all settings, of which several begin alike."""
    return [
        (
            tokens(0, 20) + tokens(1 + number // 3, 3 + 7 * (number % 4)),
            Sampling(
                max_new_tokens=2 + (5 * number) % 23,
                seed=number,
                temperature=[1.0, 0.7, 0.0][number % 3],
                top_k=[0, 5][number % 2],
                top_p=[1.0, 1.0, 0.9][number % 3],
                min_p=[0.0, 0.0, 0.0, 0.05][number % 4],
                repetition_penalty=[1.0, 1.0, 1.2, 0.9, 1.0][number % 5],
                stop_ids=tuple(range(3, 23)) if number % 4 == 1 else (),
            ),
        )
        for number in range(count)
    ]


# --- The same, alone and in company, on rows and over pages


def test_a_request_draws_the_same_on_every_executor_and_in_any_company(model: Any) -> None:
    requests = mixture(15)
    pages, rows = (
        TransformersAgent(model, executor=each, kv_budget_bytes=2**21, prefill_tokens=16)
        for each in _BOTH
    )
    together = generate(pages, requests)
    assert_same(together, generate(rows, requests))
    assert_same([generate(pages, [request])[0] for request in requests], together)
    assert_same(generate(pages, requests[::-1])[::-1], together)
    assert len({tuple(each.ids) for each in together}) > 10


_BOTH: tuple[Executor, Executor] = ("pages", "rows")


def test_logprobs_are_those_of_a_plain_forward(model: Any) -> None:
    requests = [
        (tokens(0, 20) + tokens(number, 9), Sampling(max_new_tokens=5 + number, seed=number))
        for number in range(8)
    ]
    for (context, _), found in zip(requests, play(make_engine(model), requests), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([context + found.ids])).logits[0, len(context) - 1 : -1]
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        expected = logprobs.gather(1, torch.tensor(found.ids)[:, None])[:, 0].tolist()
        assert found.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_surplus_steps_are_dropped(model: Any, level: int) -> None:
    """A stop id is seen up to two launches late; what they sampled changes nothing."""
    requests = [
        (context, replace(sampling, max_new_tokens=60, stop_ids=tuple(range(3, 9))))
        for context, sampling in mixture(12)
    ]
    engine = make_engine(model)
    steps: list[int] = []
    launch = engine.executor.launch

    def noting(parts: Any, count: int) -> Any:
        steps.append(count)
        return launch(parts, count)

    engine.executor.launch = noting  # type: ignore[method-assign,assignment]

    def force() -> None:
        engine._level = level

    found = play(engine, requests, force)
    assert max(steps) == engine.executor.steps[level]
    assert {each.stop for each in found} == {"stop", "length"}
    assert_same(found, [play(make_engine(model), [request])[0] for request in requests])


def test_no_launch_has_more_steps_than_somebody_needs(model: Any) -> None:
    engine = make_engine(model)
    engine._level = 2
    before = engine.tokens_pushed
    play(engine, [(tokens(0, 10), Sampling(max_new_tokens=7, seed=1))])
    assert engine.tokens_pushed - before == 10 + 6


def test_a_context_of_one_token_is_served(model: Any) -> None:
    requests = [([number + 5], Sampling(max_new_tokens=20, seed=number)) for number in range(3)]
    together = play(make_engine(model), requests)
    assert_same(together, [play(make_engine(model), [request])[0] for request in requests])


@pytest.mark.parametrize("length", [31, 32, 33, 47])
def test_the_context_length_is_reached_exactly(model: Any, length: int) -> None:
    for context_length in (48, 50):
        engine = make_engine(model, context_length=context_length)
        furthest = 0

        def look(engine: Engine = engine) -> None:
            nonlocal furthest
            static = engine.executor.static  # type: ignore[attr-defined]
            furthest = max(furthest, int(static.position[: static.junk_slot].max()))
            engine._level = 2

        (found,) = play(engine, [(tokens(0, length), Sampling(max_new_tokens=99, seed=0))], look)
        assert (len(found.ids), found.stop) == (context_length - length, "length")
        assert furthest < context_length, "no position beyond it enters the model"


# --- Memory


def test_a_budget_for_two_of_64_episodes_serves_them_all(model: Any) -> None:
    requests = [
        (
            tokens(number, 20),
            Sampling(max_new_tokens=44, seed=number, repetition_penalty=[1.0, 1.2][number % 2]),
        )
        for number in range(64)
    ]
    engine = make_engine(model, pages=2 * 4, max_rows=64)
    engine.version = 3
    found = play(engine, requests)
    assert engine.preempted > 0
    assert_same(found, play(make_engine(model, pages=64 * 4, max_rows=64), requests))
    assert all(each.versions == [VersionSpan(0, 44, 3)] for each in found)


def test_a_request_larger_than_the_pool_is_refused_before_sampling(model: Any) -> None:
    agent = TransformersAgent(model, kv_budget_bytes=9 * 8192, executor="pages")
    assert agent.context_length == 8 * PAGE
    with pytest.raises(UsageError, match="128 tokens"):
        generate(agent, [(tokens(0, 10), Sampling(max_new_tokens=2)), (tokens(1, 128), Sampling())])
    assert agent.tokens_pushed == 0
    (found,) = generate(agent, [(tokens(1, 127), Sampling(max_new_tokens=9))])
    assert len(found.ids) == 1


def test_nothing_is_reserved_beyond_the_next_page(model: Any) -> None:
    engine = make_engine(model)
    pool = engine.executor._pool  # type: ignore[attr-defined]
    before = pool.available
    requests = [(tokens(number, 20), Sampling(max_new_tokens=200, seed=0)) for number in range(4)]
    made = submit(engine, requests)
    while not engine.idle:
        engine._level = 0
        engine.step()
        used = before - pool.available
        launched = 1 + engine.executor.max_unread  # steps that are under way
        most = sum(-(-(20 + len(each.ids) + launched) // PAGE) for each in made)
        assert used <= most
    assert pool.available == before


def test_every_page_comes_back(model: Any) -> None:
    engine = make_engine(model, pages=20)
    pool = engine.executor._pool  # type: ignore[attr-defined]
    before = pool.available
    play(engine, mixture(20))
    made = submit(engine, mixture(9))
    for _ in range(6):
        engine.step()
    for request in made:
        request.future.cancel()
    while not engine.idle:
        engine.step()
    assert pool.available == before


# --- New weights, cancelled requests, failures


def test_new_weights_serve_the_next_token_and_nothing_old_stays(make_agent: MakeAgent) -> None:
    model = make_model()
    agent = make_agent(make_model(1), prefill_tokens=16)
    agent.update_weights(PolicyWeights(model), 0)
    system = tokens(0, 40)
    long = [(system + tokens(n, 3), Sampling(max_new_tokens=300, seed=n)) for n in range(3)]

    async def scenario() -> tuple[list[Completion], list[Completion]]:
        under_way = asyncio.ensure_future(agent.generate_all(long))
        while agent.tokens_pushed < 200:
            await asyncio.sleep(0.001)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.05 * torch.randn(weight.shape))
        await asyncio.to_thread(agent.update_weights, PolicyWeights(model), 1)
        later = await agent.generate_all([([*system, 9], Sampling(max_new_tokens=8, seed=5))])
        return await under_way, later

    first, (later,) = asyncio.run(scenario())
    assert agent.kept_across_weights == 3
    for each in first:
        start, end = each.versions
        assert (start.version, end.version) == (0, 1)
        assert 0 < start.end == end.start < 300
    fresh = make_agent(model)
    assert_same([later], generate(fresh, [([*system, 9], Sampling(max_new_tokens=8, seed=5))]))


def test_requests_that_outlive_their_weights_are_computed_anew_when_preempted() -> None:
    model = make_model()
    engine = make_engine(model, pages=8)
    made = submit(engine, [(tokens(n, 20), Sampling(max_new_tokens=60, seed=n)) for n in range(3)])
    for _ in range(10):
        engine.step()
    assert engine.forget() == len(engine.running) > 1
    engine.version = 1
    while not engine.idle:
        engine.step()
    assert engine.preempted > 0
    for request in made:
        found = request.future.result()
        assert len(found.ids) == 60 and found.versions[-1].version == 1


def test_requests_cancelled_in_flight_disturb_nobody(model: Any) -> None:
    requests = mixture(12)
    expected = play(make_engine(model), requests)
    for after in range(1, 9):
        engine = make_engine(model, max_rows=6)
        made = submit(engine, requests)
        for _ in range(after):
            engine.step()
        cancelled = [number for number in range(0, 12, 3) if made[number].future.cancel()]
        while not engine.idle:
            engine.step()
        for number, request in enumerate(made):
            if number not in cancelled:
                assert_same([request.future.result()], [expected[number]])
        again = [requests[number] for number in cancelled]
        assert_same(play(engine, again), [expected[number] for number in cancelled])


def test_diverged_weights_are_reported_and_leave_nothing_behind(make_agent: MakeAgent) -> None:
    model = make_model()
    agent = make_agent(model)
    requests = mixture(6)
    expected = generate(agent, requests)
    head = model.get_output_embeddings().weight
    kept = head.detach().clone()
    with torch.no_grad():
        head.fill_(float("nan"))
    agent.weights_changed()
    with pytest.raises(InfrastructureError, match="diverged"):
        generate(agent, requests)
    with torch.no_grad():
        head.copy_(kept)
    agent.weights_changed()
    assert_same(generate(agent, requests), expected)


@pytest.mark.parametrize("failing", [1, 2, 5, 9])
def test_a_step_that_fails_fails_those_under_way_alone(make_agent: MakeAgent, failing: int) -> None:
    model = make_model()
    requests = mixture(8)
    agent = make_agent(model, max_batch=4, prefill_tokens=16)
    expected = generate(make_agent(model), requests)
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise RuntimeError("out of luck")

    hook = model.register_forward_pre_hook(fail)
    with pytest.raises(InfrastructureError, match="out of luck"):
        generate(agent, requests)
    hook.remove()
    assert_same(generate(agent, requests), expected)
