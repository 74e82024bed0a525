"""Decoding in batches of rows: what rows share is read once, and nobody's scores change."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM

from gymnast.agents import TransformersAgent
from gymnast.agents.engine.kv_cache import Prefix, Row
from gymnast.agents.engine.step_plan import WASTE_TOKENS, Chunk, decoding_order, runs
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.attention import attend
from gymnast.types import Completion, Sampling

SHAPE = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}


def tokens(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, 200, length)]


def small(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "windows and softcap":
        return Gemma2ForCausalLM(
            Gemma2Config(**SHAPE, sliding_window=50, attn_logit_softcapping=2.0)
        ).eval()
    if kind == "sinks":
        return GptOssForCausalLM(
            GptOssConfig(
                **SHAPE,
                sliding_window=50,
                num_local_experts=2,
                num_experts_per_tok=1,
                layer_types=["sliding_attention", "full_attention"],
            )
        ).eval()
    return tiny_model(**{name: value for name, value in SHAPE.items() if name != "pad_token_id"})


@pytest.mark.parametrize("kind", ["plain", "windows and softcap", "sinks"])
def test_groups_with_long_prompts_stay_exact_while_members_come_and_go(
    device: torch.device, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small(kind).to(device)
    agent = TransformersAgent(model)
    shared: list[int] = []
    monkeypatch.setattr("gymnast.agents.engine.step_plan.runs", _watched(shared))
    seen: list[tuple[list[int], Completion]] = []

    async def episode(group: int, member: int) -> None:
        context = tokens(0, 150) + tokens(1 + group, 60)
        for turn in range(2):
            sampling = Sampling(max_new_tokens=4 + (5 * member + turn) % 9, seed=member)
            completion = await agent.generate(context, sampling)
            seen.append((context, completion))
            context = context + completion.ids + tokens(member, member % 5)

    async def all_of_them() -> None:
        await asyncio.gather(*(episode(group, member) for group in range(2) for member in range(8)))

    asyncio.run(all_of_them())
    assert max(shared) >= 200, "a group's prompt was read once for its members"
    for context, completion in seen:
        with torch.no_grad():
            ids = torch.tensor([context + completion.ids], device=device)
            logits = model(ids).logits[0].float().cpu()
        logprobs = torch.log_softmax(logits[len(context) - 1 : -1], dim=-1)
        expected = logprobs.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["plain", "windows and softcap", "sinks"])
def test_a_chunk_may_attend_in_blocks(
    device: torch.device, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, contexts = small(kind).to(device), [tokens(0, 100), tokens(0, 80) + tokens(1, 70)]

    def logprobs() -> list[list[float]]:
        agent = TransformersAgent(model, prefill_tokens=64)
        sampling = Sampling(temperature=0.0, max_new_tokens=3)
        return [asyncio.run(agent.generate(each, sampling)).logprobs for each in contexts]

    whole = logprobs()
    calls: list[int] = []
    monkeypatch.setattr("gymnast.agents.engine.step_plan.MOST_SCORES", 4 * 100 * 10)
    monkeypatch.setattr("gymnast.agents.engine.step_plan.attend", _counting(calls))
    in_blocks = logprobs()
    assert max(calls) <= 4 * 100 * 10
    for ours, theirs in zip(in_blocks, whole, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def _counting(scores: list[int]) -> Any:
    def counting(query: Any, key: Any, *rest: Any) -> Any:
        scores.append(query.shape[1] * query.shape[2] * key.shape[1])
        return attend(query, key, *rest)

    return counting


def _watched(shared: list[int]) -> Any:
    def watched(chunks: Any) -> Any:
        found = runs(chunks)
        shared.extend(run.shared for run in found)
        return found

    return watched


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 2000)), min_size=1, max_size=20
)  # which prefix, and how much longer the row is
PREFIXES = st.lists(st.integers(1, 1500), min_size=4, max_size=4)
PLACES = st.permutations(range(30))


@given(ROWS, PREFIXES, PLACES, st.integers(0, 3))
def test_every_row_attends_in_one_run_and_shares_only_what_is_its_own(
    made: list[tuple[int, int]], lengths: list[int], places: list[int], prefilling: int
) -> None:
    prefixes = [Prefix(number + 1, length) for number, length in enumerate(lengths)]
    rows = [
        Row(index=place, prefix=prefixes[which], computed=prefixes[which].length + more)
        for (which, more), place in zip(made, places, strict=False)
    ]
    prefilled = min(prefilling, len(rows) - 1)
    ordered = [*decoding_order(rows[prefilled:]), *rows[:prefilled]]
    chunks, start = [], 0
    for number, row in enumerate(ordered):
        length = 1 if number < len(rows) - prefilled else 7
        chunks.append(Chunk(row.index, start, start + length, row.computed, row.prefix))
        start += length
    found = runs(chunks)
    assert [chunk for run in found for chunk in run.chunks] == chunks
    for run in found:
        assert run.length == max(chunk.length for chunk in run.chunks)
        if len(run.chunks) > 1:
            assert all(chunk.single for chunk in run.chunks)
            places = [chunk.row for chunk in run.chunks]
            assert places == sorted(set(places))
            read = (places[-1] - places[0] + 1) * (run.length - run.shared)
            asked = sum(chunk.length - run.shared for chunk in run.chunks)
            assert read - asked <= WASTE_TOKENS * (len(places) - 1)
        if run.shared:
            assert all(chunk.prefix is run.chunks[0].prefix for chunk in run.chunks)
            assert run.shared <= min(chunk.first_position for chunk in run.chunks)
