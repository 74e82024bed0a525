"""Sampling parameters mean what they mean to Transformers' `generate`."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_from import drawn_from
from gymnast.agents import TransformersAgent
from gymnast.agents.engine.sampling import uniforms
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Completion, Sampling
from model_families import tiny

PARAMETERS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 7, 1000]),
    top_p=st.sampled_from([0.05, 0.6, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.7]),
    repetition_penalty=st.sampled_from([0.8, 1.0, 1.3]),
    max_new_tokens=st.integers(1, 4),
    seed=st.integers(0, 1000),
)


@pytest.fixture(scope="module")
def model(device: torch.device) -> Any:
    made = tiny_model(150, hidden_size=32, intermediate_size=32, num_hidden_layers=1).to(device)
    with torch.no_grad():
        made.get_input_embeddings().weight.mul_(10)  # an even distribution would filter nothing
    return made


def tokens(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 150, length)]


def together(model: Any, requests: list[tuple[list[int], Sampling]]) -> list[Completion]:
    agent = TransformersAgent(model)

    async def ask() -> list[Completion]:
        return list(await asyncio.gather(*(agent.generate(c, s) for c, s in requests)))

    return asyncio.run(ask())


@settings(max_examples=30, deadline=None)
@given(st.lists(PARAMETERS, min_size=1, max_size=4), st.integers(0, 100))
def test_logprobs_are_those_of_the_distribution_that_generate_would_draw_from(
    model: Any, kinds: list[Sampling], seed: int
) -> None:
    requests = [(tokens(seed + i, 3 + 5 * i), kind) for i, kind in enumerate([*kinds, kinds[0]])]
    completions = together(model, requests)
    for (context, sampling), completion in zip(requests, completions, strict=True):
        for step, token in enumerate(completion.ids):
            expected = drawn_from(model, context + completion.ids[:step], sampling)[token]
            assert completion.logprobs[step] == pytest.approx(float(expected), abs=1e-4)


def test_draws_follow_the_filtered_distribution(model: Any) -> None:
    context = tokens(1, 9)
    kind = Sampling(temperature=1.5, top_p=0.9, repetition_penalty=1.2, max_new_tokens=1)
    requests = [(context, replace(kind, seed=i)) for i in range(2000)]
    drawn = np.bincount([found.ids[0] for found in together(model, requests)], minlength=150)
    expected = drawn_from(model, context, kind).exp().double().numpy()
    assert set(np.flatnonzero(drawn)) <= set(np.flatnonzero(expected))
    deviation = np.sqrt(expected * (1 - expected) / 2000)
    assert (np.abs(drawn / 2000 - expected) <= 5 * deviation + 1e-9).all()
    assert 3 < (expected > 0).sum() < 140, "some are filtered, several are not"


@pytest.mark.parametrize("engine", ["packed", "states"])
def test_tokens_are_drawn_by_seed_and_index(engine: str) -> None:
    model = tiny("mamba2", vocab_size=150) if engine == "states" else tiny_model(150)
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()  # every token is equally likely
    seeds = [0, 1, 2**64 - 1, 12345]
    requests = [
        (tokens(i, 3 + i), Sampling(max_new_tokens=9 + i, seed=s)) for i, s in enumerate(seeds)
    ]
    for seed, completion in zip(seeds, together(model, requests), strict=True):
        points = uniforms(np.uint64(seed), np.arange(len(completion.ids)))
        assert completion.ids == (points * 150).astype(int).tolist()
