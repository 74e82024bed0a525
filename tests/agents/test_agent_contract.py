"""What everything that continues contexts keeps to: `gymnast.agents.Agent`.

`all_agents.py` has the table of all agents. New weights are the business of
`test_policy_agent_contract.py`; a `ChatAgent`, which has no token ids, that of `test_chat.py`.
"""

import ast
import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
import torch

from all_agents import (
    AGENTS,
    ALONE,
    CLOSES,
    IN_MESSAGES,
    REFUSES,
    ROOT,
    SAMPLES,
    SEEDED,
    STOPS,
    TOGETHER,
    Kind,
    Request,
    ask,
    ask_alone,
    begin,
    of_every_agent,
    said,
)
from asked_on_ray import worker_that_asks
from gymnast.agents import Agent, PolicyWeights, load_model
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.errors import UsageError
from gymnast.types import Completion, Sampling
from model_families import tiny
from process_agent import ProcessAgent, Server

T = TypeVar("T")
Run = Callable[[Callable[[Agent], Awaitable[T]]], T]
LONGEST_S = 300.0  # a test that waits for ever fails then
GREEDY = Sampling(temperature=0.0, max_new_tokens=8)
CONTEXTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [14, 15, 16, 17, 18]]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def short_model() -> Any:
    """Plain attention over pages gathers the keys of the whole context for each token."""
    return tiny_model(max_position_embeddings=200)


@pytest.fixture(scope="module")
def quantized_model() -> Any:
    """Weights in 4 bits, under adapters that do something."""
    pytest.importorskip("bitsandbytes")
    model, _ = load_model("tiny:", lora={"rank": 4}, quantization="nf4", tokenizer=tiny_tokenizer())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    model.config.max_position_embeddings = 200
    return model


@pytest.fixture(scope="module")
def recurrent_model() -> Any:
    """Linear attention beside attention; its path is "states"."""
    return tiny("qwen3_next")


@pytest.fixture(scope="module")
def server(model: Any) -> Iterator[Server]:
    server = Server()
    ProcessAgent(model, address=server.address).update_weights(PolicyWeights(model), 0)
    yield server
    server.close()


@pytest.fixture(scope="module")
def asking_worker(cluster: Any) -> Iterator[Any]:
    with worker_that_asks(cluster.address) as worker:
        yield worker


@pytest.fixture
def run(kind: Kind, request: pytest.FixtureRequest) -> Run[Any]:
    """Runs a coroutine with the agent."""

    def run(check: Callable[[Agent], Awaitable[T]]) -> T:
        async def with_agent() -> T:
            async with kind.make(request.getfixturevalue) as agent:
                return await asyncio.wait_for(check(agent), LONGEST_S)

        return asyncio.run(with_agent())

    return run


@of_every_agent()
def test_a_completion_is_within_its_budget_with_a_log_probability_for_each_token(
    run: Run[list[Completion]],
) -> None:
    samplings = [
        Sampling(max_new_tokens=1, seed=1),
        Sampling(max_new_tokens=7, seed=2, temperature=0.7, top_k=20),
        Sampling(max_new_tokens=5, seed=3, top_p=0.9, stop_ids=(3, 4)),
        Sampling(max_new_tokens=6, temperature=0.0),
    ]
    requests = list(zip(CONTEXTS, samplings, strict=True))
    for completion, sampling in zip(
        run(lambda agent: ask(agent, *requests)), samplings, strict=True
    ):
        assert 1 <= len(completion.ids) <= sampling.max_new_tokens
        assert all(type(each) is int and each >= 0 for each in completion.ids)
        assert len(completion.logprobs) == len(completion.ids)
        assert all(math.isfinite(each) and each <= 0.0 for each in completion.logprobs)
        assert completion.waited_s >= 0.0
        for span in completion.versions:
            assert 0 <= span.start < span.end <= len(completion.ids)
        assert completion.stop in ("stop", "length")


@of_every_agent()
def test_a_smaller_budget_cuts_the_same_completion(run: Run[Any]) -> None:
    async def check(agent: Agent) -> None:
        (first,) = await ask(agent, (CONTEXTS[0], GREEDY))
        for budget in range(1, len(first.ids)):
            (cut,) = await ask(
                agent, (CONTEXTS[0], Sampling(temperature=0.0, max_new_tokens=budget))
            )
            assert (cut.ids, cut.stop) == (first.ids[:budget], "length")

    run(check)


@of_every_agent(STOPS)
def test_a_completion_ends_with_the_first_stop_id(run: Run[Any]) -> None:
    async def check(agent: Agent) -> None:
        (first,) = await ask(agent, (CONTEXTS[0], GREEDY))
        assert (len(first.ids), first.stop) == (8, "length")
        other = next(each for each in range(90, 100) if each not in first.ids)
        for stop_id in (first.ids[0], first.ids[2], first.ids[7]):
            sampling = Sampling(temperature=0.0, max_new_tokens=8, stop_ids=(other, stop_id))
            (stopped,) = await ask(agent, (CONTEXTS[0], sampling))
            end = first.ids.index(stop_id) + 1
            assert (stopped.ids, stopped.stop) == (first.ids[:end], "stop")
            assert len(stopped.logprobs) == end

    run(check)


@of_every_agent()
def test_many_at_once_are_each_answered_for_their_own_context(run: Run[Any]) -> None:
    many = [([*context, *range(20, 20 + n)], GREEDY) for n in range(3) for context in CONTEXTS]

    async def check(agent: Agent) -> None:
        together = await ask(agent, *many)
        assert said(await ask_alone(agent, *many)) == said(together)
        assert said(await ask(agent, *reversed(many))) == said(together[::-1])

    run(check)


@of_every_agent()
def test_a_call_depends_on_nothing_that_was_asked_before(run: Run[Any]) -> None:
    async def check(agent: Agent) -> None:
        (first,) = await ask(agent, (CONTEXTS[0], GREEDY))
        longer = [*CONTEXTS[0], *first.ids, 1, 2]
        (next_turn,) = await ask(agent, (longer, GREEDY))
        again = await ask(agent, (CONTEXTS[0], GREEDY), (longer, GREEDY))
        assert said(again) == said([first, next_turn])

    run(check)


@of_every_agent()
def test_the_list_of_a_context_is_left_as_it_is(run: Run[Any]) -> None:
    context = list(CONTEXTS[2])
    run(lambda agent: ask(agent, (context, GREEDY), (context, Sampling(max_new_tokens=3))))
    assert context == CONTEXTS[2]


@of_every_agent()
def test_it_is_asked_from_one_event_loop_after_another(run: Run[Any]) -> None:
    async def check(agent: Agent) -> None:
        here = await ask(agent, (CONTEXTS[0], GREEDY))
        there = await asyncio.to_thread(lambda: asyncio.run(ask(agent, (CONTEXTS[0], GREEDY))))
        assert said(there) == said(here) == said(await ask(agent, (CONTEXTS[0], GREEDY)))

    run(check)


@of_every_agent(SEEDED)
def test_a_seed_repeats_a_completion_and_others_draw_afresh(run: Run[Any]) -> None:
    def seeded(seed: int | None) -> Request:
        return CONTEXTS[0], Sampling(max_new_tokens=8, seed=seed)

    async def check(agent: Agent) -> None:
        large = 11 + 2**40  # seeds of episodes have 64 bits
        seeds = [3, 4, 5, large, None, None]
        first = await ask(agent, *map(seeded, seeds))
        again = await ask_alone(agent, *map(seeded, seeds))
        assert said(again)[:4] == said(first)[:4]
        assert len({tuple(each.ids) for each in [*first, *again[4:]]}) == 8

    run(check)


@of_every_agent(SAMPLES)
def test_log_probabilities_are_those_of_the_distribution_that_was_sampled(
    run: Run[list[Completion]], kind: Kind, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind.model)
    sampling = Sampling(temperature=0.7, max_new_tokens=8, seed=3)
    found = run(lambda agent: ask(agent, *((context, sampling) for context in CONTEXTS)))
    for context, completion in zip(CONTEXTS, found, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([context + completion.ids]), use_cache=False).logits[0]
        likely = torch.log_softmax(logits[len(context) - 1 : -1].float() / 0.7, dim=-1)
        expected = likely.gather(1, torch.tensor(completion.ids)[:, None])[:, 0].tolist()
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


@of_every_agent()
def test_requests_that_are_cancelled_take_no_others_with_them(run: Run[Any]) -> None:
    many = [([*context, 30 + n], GREEDY) for n in range(2) for context in CONTEXTS]

    async def check(agent: Agent) -> None:
        expected = said(await ask_alone(agent, *many))
        for pauses in (1, 20):  # before it samples, and while it does
            asked = begin(agent, *many)
            for _ in range(pauses):
                await asyncio.sleep(0.001)
            given_up = [place for place in range(0, len(many), 2) if asked[place].cancel()]
            found = await asyncio.gather(*asked, return_exceptions=True)
            for place, each in enumerate(found):
                if place in given_up:
                    assert isinstance(each, asyncio.CancelledError)
                else:
                    assert isinstance(each, Completion)
                    assert said([each]) == [expected[place]]
        assert said(await ask(agent, *many)) == expected

    run(check)


@of_every_agent(REFUSES)
@pytest.mark.parametrize("length", ["empty", "full", "longer"])
def test_a_context_without_room_is_refused_and_later_ones_are_answered(
    run: Run[Any], kind: Kind, request: pytest.FixtureRequest, length: str
) -> None:
    longest = request.getfixturevalue(kind.model).config.max_position_embeddings
    context = [5] * {"empty": 0, "full": longest, "longer": longest + 3}[length]

    async def check(agent: Agent) -> None:
        before = await ask(agent, (CONTEXTS[0], GREEDY))
        with pytest.raises(UsageError, match=f"the context has {len(context)} tokens"):
            await ask(agent, (context, GREEDY))
        (last,) = await ask(agent, ([5] * (longest - 1), GREEDY))
        assert (len(last.ids), last.stop) == (1, "length")
        assert said(await ask(agent, (CONTEXTS[0], GREEDY))) == said(before)

    run(check)


@of_every_agent(REFUSES, ALONE)
def test_a_request_that_is_refused_is_of_no_concern_to_others(run: Run[Any]) -> None:
    async def check(agent: Agent) -> None:
        expected = await ask(agent, *((context, GREEDY) for context in CONTEXTS))
        asked = begin(agent, *((context, GREEDY) for context in [[], *CONTEXTS, []]))
        first, *others, last = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(first, UsageError) and isinstance(last, UsageError)
        assert said([each for each in others if isinstance(each, Completion)]) == said(expected)

    run(check)


@of_every_agent(TOGETHER)
def test_requests_of_one_call_are_answered_in_their_order(run: Run[Any]) -> None:
    requests = [(context, GREEDY) for context in CONTEXTS]

    async def check(agent: Any) -> None:
        assert said(await agent.generate_all(requests)) == said(await ask(agent, *requests))
        assert await agent.generate_all([]) == []

    run(check)


@of_every_agent(CLOSES)
def test_once_it_is_closed_it_says_so(run: Run[Any]) -> None:
    async def check(agent: Any) -> None:
        await ask(agent, (CONTEXTS[0], GREEDY))
        agent.close()
        agent.close()
        with pytest.raises(UsageError, match="is closed; make another one"):
            await ask(agent, (CONTEXTS[0], GREEDY))

    run(check)


def test_every_agent_of_the_repository_is_in_the_table() -> None:
    found = set()
    for path in [*ROOT.glob("agents/**/*.py"), *ROOT.glob("trainers/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and _continues_contexts(node):
                found.add(node.name)
    shown = {each.of.__name__ for each in AGENTS if each.of is not None}
    assert found - {"Agent"} == shown | IN_MESSAGES


def _continues_contexts(node: ast.ClassDef) -> bool:
    """Whether a class that has a public name has the method of an agent."""
    if node.name.startswith("_"):
        return False
    methods = [each for each in node.body if isinstance(each, ast.AsyncFunctionDef)]
    return any(
        each.name == "generate" and [arg.arg for arg in each.args.args][1:2] == ["context_ids"]
        for each in methods
    )
