"""Requests share forward passes of a model that keeps states, and none of them notices."""

import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gymnast.agents.caches.own_forward import OwnForward
from gymnast.agents.caches.parts import nbytes
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.state_engine import StateEngine
from gymnast.types import Completion, Sampling
from model_contract import check_turn, tokens
from model_families import tiny


@pytest.fixture(autouse=True)
def _no_warnings_of_other_peoples_code() -> None:
    warnings.simplefilter("ignore")


@pytest.fixture(scope="module")
def hybrid() -> Any:
    return tiny("qwen3_next")


@pytest.fixture
def passes(hybrid: Any) -> Iterator[list[torch.Size]]:
    """The shape of the tokens of each forward pass."""
    seen: list[torch.Size] = []
    hook = hybrid.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["input_ids"].shape), with_kwargs=True
    )
    yield seen
    hook.remove()


@cache
def forward_of(model: Any) -> OwnForward:
    """What is found out about a model, once."""
    return OwnForward(model)


def begin(engine: StateEngine, context: list[int], sampling: Sampling) -> "Future[Completion]":
    future: Future[Completion] = Future()
    engine.waiting.append(Request(context, sampling, future, limit=400))
    return future


def finish(engine: StateEngine) -> None:
    while not engine.idle:
        engine.step()


def test_decoding_is_one_pass_whatever_the_lengths(hybrid: Any, passes: list[torch.Size]) -> None:
    engine = StateEngine(forward_of(hybrid), max_batch=8, prefill_tokens=1024)
    greedy = Sampling(temperature=0.0, max_new_tokens=10)
    prompts = [tokens(seed, 7 + 20 * seed) for seed in range(4)]
    passes.clear()
    futures = [begin(engine, prompt, greedy) for prompt in prompts]
    finish(engine)
    # The prompts but for their last tokens, padded to the longest; then a token each.
    assert [tuple(shape) for shape in passes] == [(4, 66)] + [(4, 1)] * 10
    for prompt, future in zip(prompts, futures, strict=True):
        check_turn(hybrid, prompt, future.result(), greedy=True)


def test_prompts_of_very_different_lengths_are_not_padded_to_each_other(
    hybrid: Any, passes: list[torch.Size]
) -> None:
    engine = StateEngine(forward_of(hybrid), max_batch=8, prefill_tokens=1024)
    passes.clear()
    for prompt in (tokens(0, 300), tokens(1, 20), tokens(2, 25)):
        begin(engine, prompt, Sampling(max_new_tokens=1))
    finish(engine)
    assert [tuple(shape) for shape in passes] == [(1, 299), (2, 24), (3, 1)]


def test_what_is_appended_shares_a_pass_where_it_is_equally_long(
    hybrid: Any, passes: list[torch.Size]
) -> None:
    engine = StateEngine(forward_of(hybrid), max_batch=8, prefill_tokens=1024)
    greedy = Sampling(temperature=0.0, max_new_tokens=4)
    contexts = [tokens(seed, 30 + seed) for seed in range(4)]
    futures = [begin(engine, context, greedy) for context in contexts]
    finish(engine)
    passes.clear()
    appended = [5, 9, 9, 5]
    contexts = [
        context + future.result().ids + tokens(50 + seed, appended[seed])
        for seed, (context, future) in enumerate(zip(contexts, futures, strict=True))
    ]
    futures = [begin(engine, context, greedy) for context in contexts]
    finish(engine)
    # The last sampled token was not pushed before.
    assert [tuple(shape) for shape in passes] == [(2, 6), (2, 10)] + [(4, 1)] * 3
    for context, future in zip(contexts, futures, strict=True):
        check_turn(hybrid, context, future.result(), greedy=True)


def test_one_that_would_not_fit_when_padded_runs_alone(
    hybrid: Any, passes: list[torch.Size]
) -> None:
    probe = forward_of(hybrid)
    budget = probe.state_bytes(304) + 3 * probe.state_bytes(24)
    engine = StateEngine(
        forward_of(hybrid), max_batch=8, prefill_tokens=1024, kv_budget_bytes=budget
    )
    sampling = Sampling(temperature=0.0, max_new_tokens=4)
    prompts = [tokens(0, 300)] + [tokens(seed, 20) for seed in range(1, 4)]
    passes.clear()
    futures = [begin(engine, prompt, sampling) for prompt in prompts]
    engine.step()
    assert len(engine.running) == 4
    finish(engine)
    assert max(rows for rows, _ in passes) == 1
    for prompt, future in zip(prompts, futures, strict=True):
        check_turn(hybrid, prompt, future.result(), greedy=True)


@dataclass
class Episode:
    """One of the random patterns below."""

    begins_at: int  # step
    system: int  # tokens of a beginning that all may share
    group: int
    appended: list[int]  # by turn
    cancelled_at: int | None  # step


EPISODES = st.lists(
    st.builds(
        Episode,
        begins_at=st.integers(0, 12),
        system=st.sampled_from([0, 20]),
        group=st.integers(0, 2),
        appended=st.lists(st.sampled_from([1, 2, 9, 9, 30]), min_size=1, max_size=3),
        cancelled_at=st.sampled_from([None, None, None, 5, 15]),
    ),
    min_size=1,
    max_size=7,
)


def in_use(engine: StateEngine) -> int:
    """The bytes of all states that are there."""
    own = [progress for progress in engine.running.values() if not progress.borrowed]
    return engine.cache.nbytes + engine.passes.nbytes + sum(nbytes(each.cache) for each in own)


def play(engine: StateEngine, episodes: list[Episode], budget: int) -> list[Any]:
    """Returns each turn's context and completion."""
    contexts = [tokens(0, e.system) + tokens(1 + e.group, 5 + 7 * e.group) for e in episodes]
    asked: dict[int, Future[Completion]] = {}
    turns = [0] * len(episodes)
    done: list[Any] = []
    step = 0
    while step < 13 or asked:
        for number, episode in enumerate(episodes):
            if number in asked and asked[number].done():
                completion = asked.pop(number).result()
                done.append((contexts[number], completion))
                contexts[number] = contexts[number] + completion.ids
            if number in asked and step == episode.cancelled_at:
                asked.pop(number).cancel()
                turns[number] = len(episode.appended)
            if step < episode.begins_at or number in asked:
                continue
            if turns[number] < len(episode.appended):
                more = tokens(10 * number + turns[number], episode.appended[turns[number]])
                contexts[number] = contexts[number] + more
                sampling = Sampling(max_new_tokens=1 + (number + step) % 6, seed=number)
                asked[number] = begin(engine, contexts[number], sampling)
                turns[number] += 1
        engine.step()
        step += 1
        assert in_use(engine) <= engine.kv_bytes
        assert engine.kv_bytes <= budget
    return done


OTHERS = [
    "mamba2",  # a state alone
    "mamba",  # which takes one token at a time
    "lfm2",
    "qwen3_5_text",
    "nemotron_h",
    "phimoe",  # windows of 8 tokens
    "xlstm",  # nothing to pad
    "bloom",  # positions as distances
    "phi3 (longrope)",  # other frequencies beyond 32 tokens
    "minimax_m3_vl_text",  # no shared passes
]


@pytest.mark.parametrize(
    ("family", "examples"),
    [("qwen3_next", 5)] + [pytest.param(each, 15, marks=pytest.mark.slow) for each in OTHERS],
)
def test_whoever_joins_and_leaves_each_samples_as_alone(family: str, examples: int) -> None:
    model = tiny(family)
    probe = forward_of(model)

    @settings(max_examples=examples, deadline=None, phases=[Phase.generate])
    @given(
        episodes=EPISODES,
        max_batch=st.integers(1, 6),
        prefill_tokens=st.sampled_from([4, 16, 1024]),
        held=st.sampled_from([1.0, 2.5, 20.0]),
    )
    def check(episodes: list[Episode], max_batch: int, prefill_tokens: int, held: float) -> None:
        budget = int(held * probe.state_bytes(150))
        engine = StateEngine(
            forward_of(model),
            max_batch=max_batch,
            prefill_tokens=prefill_tokens,
            kv_budget_bytes=budget,
        )
        for context, completion in play(engine, episodes, budget):
            check_turn(model, context, completion, greedy=False)
        assert engine.idle

    check()
