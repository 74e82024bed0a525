"""Sequences in one cache: whoever joins and leaves, each goes on as it would alone."""

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents.caches.own_forward import OwnForward
from gymnast.agents.caches.parts import nbytes, tensors
from model_contract import tokens
from model_families import tiny

LENGTHS = st.integers(1, 40)


@pytest.fixture(scope="module", params=["qwen3_next", "phimoe", "mamba2"])
def forward(request: pytest.FixtureRequest) -> OwnForward:
    # Keys and values beside a recurrent state; windows of 8 tokens; a recurrent state alone.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OwnForward(tiny(request.param))


def expected(forward: OwnForward, ids: list[int]) -> torch.Tensor:
    """Logits [V] of the model alone, without a cache."""
    logits: torch.Tensor = forward.model(input_ids=torch.tensor([ids]), use_cache=False).logits
    return logits[0, -1]


def assert_alike(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours.log_softmax(-1), theirs.log_softmax(-1), rtol=0, atol=1e-4)


@settings(max_examples=15, deadline=None)
@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("join"), LENGTHS),
            st.tuples(st.just("leave"), st.integers(0, 9)),
            st.tuples(st.just("append"), st.sampled_from([1, 1, 1, 2, 9])),
        ),
        min_size=2,
        max_size=12,
    ),
    most=st.sampled_from([None, 60, 200]),
)
@torch.inference_mode()
def test_whoever_joins_and_leaves_each_goes_on_as_alone(
    forward: OwnForward, moves: list[tuple[str, int]], most: int | None
) -> None:
    batch = forward.batch()
    rows: list[list[int]] = []
    for seed, (move, number) in enumerate(moves):
        if move == "join":
            ids = tokens(seed, number)
            _, cache = forward(ids, None, 0)
            before = [tensor.clone() for tensor in all_tensors(cache)]
            batch.join([cache], [number], most)
            assert all(map(torch.equal, before, all_tensors(cache)))
            rows.append(ids)
        elif rows and move == "leave":
            row = number % len(rows)
            cache, ids = batch.row(row), rows[row]
            batch.leave(row)
            rows[row] = rows[-1]
            rows.pop()
            logits, _ = forward([5], cache, len(ids))
            assert_alike(logits, expected(forward, [*ids, 5]))
        elif rows:
            new = [tokens(100 * seed + row, number) for row in range(len(rows))]
            logits = forward.together(batch, new)
            rows = [ids + more for ids, more in zip(rows, new, strict=True)]
            for ours, ids in zip(logits, rows, strict=True):
                assert_alike(ours, expected(forward, ids))
        assert batch.lengths == [len(ids) for ids in rows]
    if not rows:
        assert batch.nbytes == 0


def all_tensors(cache: Any) -> list[torch.Tensor]:
    return [tensor for _, tensor in tensors(cache)]


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(LENGTHS, min_size=1, max_size=4))
@torch.inference_mode()
def test_prompts_of_unequal_lengths_begin_together(forward: OwnForward, lengths: list[int]) -> None:
    prompts = [tokens(seed, length) for seed, length in enumerate(lengths)]
    logits, batch = forward.begin(prompts)
    for row, (ids, ours) in enumerate(zip(prompts, logits, strict=True)):
        assert_alike(ours, expected(forward, ids))
        continued, _ = forward([7], batch.row(row), len(ids))
        assert_alike(continued, expected(forward, [*ids, 7]))


@torch.inference_mode()
def test_a_batch_keeps_no_more_room_than_its_sequences_may_come_to(forward: OwnForward) -> None:
    batch = forward.batch()
    caches = [forward(tokens(seed, 30), None, 0)[1] for seed in range(4)]
    batch.join(caches, [30] * 4, 40)
    for step in range(10):
        forward.together(batch, [[3 + step]] * 4)
        assert batch.nbytes <= 4 * forward.state_bytes(41)
    for _ in range(3):
        batch.leave(0)
    assert batch.nbytes <= 2 * forward.state_bytes(41)
    copied = forward.copy(caches[0], 30)
    assert nbytes(copied) == nbytes(caches[0])
