"""Models whose cache cannot be cut: a turn pays for what is appended, a prompt is paid once."""

import asyncio
import copy
import logging
import warnings
from concurrent.futures import Future
from functools import cache
from typing import Any

import pytest
import torch

from gymnast.agents import TransformersAgent
from gymnast.agents.caches.continuation import Continuation
from gymnast.agents.caches.own_forward import OwnForward
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.state_engine import StateEngine
from gymnast.errors import InfrastructureError, ModelError, UsageError
from gymnast.types import Completion, Sampling
from model_contract import check_turn, tokens
from model_families import tiny

GREEDY = Sampling(temperature=0.0, max_new_tokens=12)
# Of each kind of state: continued with chunks, one token at a time, not at all.
CHUNK, TOKEN, NOTHING = "qwen3_next", "mamba", "recurrent_gemma"


@pytest.fixture(autouse=True)
def _no_warnings_of_other_peoples_code() -> None:
    warnings.simplefilter("ignore")


@pytest.fixture(scope="module", params=[CHUNK, TOKEN])
def model(request: pytest.FixtureRequest, device: torch.device) -> Any:
    return tiny(request.param).to(device)


@pytest.fixture(scope="module")
def hybrid() -> Any:
    return tiny(CHUNK)


def generate(agent: TransformersAgent, *requests: tuple[list[int], Sampling]) -> list[Completion]:
    async def together() -> list[Completion]:
        return list(await asyncio.gather(*(agent.generate(c, s) for c, s in requests)))

    return asyncio.run(together())


@cache
def forward_of(model: Any) -> OwnForward:
    """What is found out about a model, once."""
    return OwnForward(model)


def begin(engine: StateEngine, context: list[int], sampling: Sampling = GREEDY) -> Any:
    """Hand an engine a request, without running it."""
    future: Future[Completion] = Future()
    engine.waiting.append(Request(context, sampling, future, limit=400))
    return future


def finish(engine: StateEngine, *futures: Any) -> list[Completion]:
    while not engine.idle:
        engine.step()
    return [future.result(timeout=0) for future in futures]


@pytest.mark.parametrize(
    ("family", "continuation"),
    [(CHUNK, Continuation.CHUNK), (TOKEN, Continuation.TOKEN), (NOTHING, Continuation.NOTHING)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_how_a_state_can_be_continued_is_found_out(
    family: str, continuation: Continuation, dtype: torch.dtype
) -> None:
    model = tiny(family).to(dtype)
    # Nothing is kept of what was tried: it is found out anew.
    assert [OwnForward(model).continuation for _ in range(2)] == [continuation] * 2


def test_the_path_is_told_and_why(hybrid: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gymnast"):
        assert TransformersAgent(tiny("llama")).path == "packed"
        assert not caplog.records
        assert TransformersAgent(hybrid).path == "states"
    assert "path 'states' (sequences share a forward pass)" in caplog.text
    assert "2 attend through" in caplog.text


def test_a_turn_pushes_only_what_was_appended(model: Any) -> None:
    agent = TransformersAgent(model)
    context = tokens(1, 60)
    (first,) = generate(agent, (context, GREEDY))
    pushed = agent.tokens_pushed
    assert pushed == 60 + 11  # the last sampled token is not pushed
    observation = tokens(2, 7)
    (second,) = generate(agent, (context + first.ids + observation, GREEDY))
    assert agent.tokens_pushed - pushed == (1 + 7) + 11
    check_turn(model, context + first.ids + observation, second, greedy=True)


def test_a_shared_prompt_is_computed_once_even_when_all_ask_at_once(model: Any) -> None:
    agent = TransformersAgent(model)
    prompt = tokens(1, 60)
    generate(agent, *((prompt, GREEDY) for _ in range(4)))
    assert agent.tokens_pushed == 60 + 3 + 4 * 11  # each other member: its last prompt token
    generate(agent, (prompt, GREEDY))  # one that comes later
    assert agent.tokens_pushed == 60 + 4 + 5 * 11


@pytest.mark.parametrize("late", [False, True])
def test_a_common_system_prompt_is_computed_once(hybrid: Any, late: bool) -> None:
    engine = StateEngine(forward_of(hybrid), max_batch=4, prefill_tokens=16)
    system = tokens(1, 60)
    prompts = [[*system, 3 + i, *tokens(i, 5)] for i in range(4)]
    futures = [begin(engine, prompts[0])]
    if late:
        engine.step()
    futures += [begin(engine, prompt) for prompt in prompts[1:]]
    completions = finish(engine, *futures)
    assert engine.tokens_pushed == 60 + 4 * 6 + 4 * 11
    for prompt, completion in zip(prompts, completions, strict=True):
        check_turn(hybrid, prompt, completion, greedy=True)


def test_a_system_prompt_is_noticed_with_the_second_that_has_it(hybrid: Any) -> None:
    agent = TransformersAgent(hybrid)
    system = tokens(1, 60)
    pushed = []
    for i in range(3):
        before = agent.tokens_pushed
        generate(agent, ([*system, 3 + i, *tokens(i, 5)], GREEDY))
        pushed.append(agent.tokens_pushed - before)
    assert pushed == [66 + 11, 66 + 11, 6 + 11]


def test_a_long_prompt_holds_nobody_up(hybrid: Any) -> None:
    engine = StateEngine(forward_of(hybrid), max_batch=4, prefill_tokens=16)
    short = begin(engine, tokens(0, 5))
    engine.step()
    long = begin(engine, tokens(1, 300))
    for _ in range(16):
        engine.step()
    assert short.done()
    assert not long.done()
    check_turn(hybrid, tokens(1, 300), finish(engine, long)[0], greedy=True)


def test_a_context_of_one_token_is_computed_beside_a_long_prompt(hybrid: Any) -> None:
    engine = StateEngine(forward_of(hybrid), max_batch=4, prefill_tokens=16)
    futures = [begin(engine, tokens(1, 40)), begin(engine, [5])]
    completions = finish(engine, *futures)
    for context, completion in zip([tokens(1, 40), [5]], completions, strict=True):
        check_turn(hybrid, context, completion, greedy=True)


def test_a_seeded_request_samples_the_same_alone_and_in_company(model: Any) -> None:
    sampling = Sampling(max_new_tokens=10, seed=7)
    context = tokens(5, 30)
    (alone,) = generate(TransformersAgent(model), (context, sampling))
    others = [(tokens(i, 10 + i), Sampling(max_new_tokens=15, seed=i)) for i in range(6)]
    in_company = generate(TransformersAgent(model), *others, (context, sampling))[-1]
    assert in_company.ids == alone.ids


def test_states_stay_within_the_budget_and_the_least_recently_used_go(hybrid: Any) -> None:
    one = forward_of(hybrid).state_bytes(40 + 12)
    engine = StateEngine(
        forward_of(hybrid), max_batch=4, prefill_tokens=64, kv_budget_bytes=3 * one
    )
    contexts = [tokens(seed, 40) for seed in range(6)]
    for context in contexts:
        (completion,) = finish(engine, begin(engine, context))
        check_turn(hybrid, context, completion, greedy=True)
        assert 0 < engine.cache.nbytes <= 3 * one
    before = engine.tokens_pushed
    finish(engine, begin(engine, contexts[-1]))
    assert engine.tokens_pushed - before == 1 + 11  # the newest is there
    finish(engine, begin(engine, contexts[0]))
    assert engine.tokens_pushed - before == 1 + 11 + 40 + 11  # the oldest is not


def test_requests_that_would_not_fit_together_take_turns(hybrid: Any) -> None:
    one = forward_of(hybrid).state_bytes(40 + 12)
    engine = StateEngine(
        forward_of(hybrid), max_batch=4, prefill_tokens=64, kv_budget_bytes=one * 2
    )
    futures = [begin(engine, tokens(seed, 40)) for seed in range(5)]
    most = 0
    while not engine.idle:
        engine.step()
        most = max(most, len(engine.running))
    assert most == 2
    for seed, future in enumerate(futures):
        check_turn(hybrid, tokens(seed, 40), future.result(timeout=0), greedy=True)


def test_a_context_beyond_the_budget_fails_before_anything_is_computed(hybrid: Any) -> None:
    budget = forward_of(hybrid).state_bytes(100)
    engine = StateEngine(forward_of(hybrid), max_batch=4, prefill_tokens=64, kv_budget_bytes=budget)
    large, small = begin(engine, tokens(0, 90)), begin(engine, tokens(1, 30))
    (completion,) = finish(engine, small)
    assert len(completion.ids) == 12
    with pytest.raises(UsageError, match=r"102 tokens .* kv_budget_bytes is \d+"):
        large.result(timeout=0)


@pytest.mark.parametrize("family", [CHUNK, "bloom", "minimax", "mistral", "rwkv"])
def test_what_a_state_takes_is_rather_over_than_underestimated(family: str) -> None:
    forward = OwnForward(tiny(family))
    engine = StateEngine(forward, max_batch=1, prefill_tokens=64)
    finish(engine, begin(engine, tokens(0, 100)))
    (longest,) = [state for state in engine.cache.states if len(state.tokens) > 100]
    assert 0 < longest.nbytes <= forward.state_bytes(len(longest.tokens))


def test_cancelling_a_request_frees_its_place(hybrid: Any) -> None:
    agent = TransformersAgent(hybrid, max_batch=1)

    async def scenario() -> Completion:
        slow = asyncio.create_task(agent.generate(tokens(8, 5), Sampling(max_new_tokens=400)))
        while agent.tokens_pushed == 0:
            await asyncio.sleep(0.001)
        slow.cancel()
        return await agent.generate(tokens(9, 5), GREEDY)

    assert len(asyncio.run(scenario()).ids) == 12


def test_new_weights_are_used_after_weights_changed_also_amid_a_request() -> None:
    model = tiny(CHUNK)
    engine = StateEngine(forward_of(model), max_batch=2, prefill_tokens=64)
    context = tokens(10, 40)
    finish(engine, begin(engine, context))
    amid = begin(engine, context)
    for _ in range(3):
        engine.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    engine.cache.clear()
    finish(engine, amid)  # its state is of both weights, and is not kept
    (completion,) = finish(engine, begin(engine, context))
    check_turn(model, context, completion, greedy=True)


def test_an_engine_that_breaks_fails_its_requests_and_serves_the_next(hybrid: Any) -> None:
    agent = TransformersAgent(hybrid)
    with pytest.raises(InfrastructureError, match="the engine failed"):
        generate(agent, ([10**9], GREEDY))
    assert len(generate(agent, ([5], GREEDY))[0].ids) == 12


def test_a_model_that_sees_what_comes_later_is_refused() -> None:
    from transformers import BertConfig, BertLMHeadModel

    config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    with pytest.raises(ModelError, match="depend on tokens that come later"):
        TransformersAgent(BertLMHeadModel(config))


def test_frequencies_that_change_with_the_length_do_not_mix() -> None:
    # Below 32 tokens and beyond, in turn and at once, across the border while sampling.
    model = tiny("phi3 (longrope)")
    agent = TransformersAgent(model, prefill_tokens=16)
    assert agent.path == "states"
    contexts = [tokens(0, length) for length in (10, 25, 31, 32, 33, 60)]
    completions = generate(agent, *((context, GREEDY) for context in contexts))
    for context, completion in zip(contexts, completions, strict=True):
        check_turn(model, context, completion, greedy=True)


def test_a_model_without_a_longest_context_takes_any() -> None:
    agent = TransformersAgent(tiny("mamba"))
    assert agent.context_length > 100_000
    assert TransformersAgent(tiny("mamba"), context_length=50).context_length == 50


@torch.no_grad()
def test_what_old_weights_computed_serves_no_request_that_comes_later(model: Any) -> None:
    model, context = copy.deepcopy(model), tokens(1, 30)
    engine = StateEngine(forward_of(model), max_batch=4, prefill_tokens=64)
    before = begin(engine, context)
    for _ in range(4):
        engine.step()
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        weight.add_(0.05 * noise.to(weight.device))
    engine.version = 1
    assert engine.forget() == 1
    beside = begin(engine, context)
    first, second = finish(engine, before, beside)
    (third,) = finish(engine, begin(engine, context))
    (alone,) = generate(TransformersAgent(model), (context, GREEDY))
    assert second.ids == third.ids == alone.ids
    assert [version for _, _, version in first.versions] == [0, 1]
