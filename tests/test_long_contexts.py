"""What is done with token ids costs the same in a long context, or grows with its length alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents.engine.kv_cache import COMPARED_AT_ONCE, KVCache, Prefix, Row
from gymnast.envs import Renderer
from long_context import WORKS, exponent, milliseconds


class CountedIds(list[int]):
    """Counts how many ids are read of it."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.read += len(found) if isinstance(found, list) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        self.read += len(self)
        return super().__iter__()


def test_reading_and_answering_an_action_reads_only_the_end_of_the_context(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    action = renderer.encode({"role": "assistant", "content": "Fine."})
    answer = [{"role": "user", "content": "Go on."}]
    read = []
    for length in (100, 100_000):
        context = CountedIds([20] * length)
        renderer.parse(action, context_ids=context)
        context.extend(action)
        renderer.observe(context, answer)
        read.append(context.read)
    assert read[0] == read[1] < 100


def cache_of(contexts: list[list[int]]) -> KVCache:
    cache = KVCache(len(contexts), 10**9)
    cache.capacity = max(map(len, contexts))
    cache.tokens = np.full((len(contexts), cache.capacity), -1, dtype=np.int64)
    for index, context in enumerate(contexts):
        cache.tokens[index, : len(context)] = context
        cache.rows.append(
            Row(index=index, prefix=Prefix(index, 0), length=len(context), computed=len(context))
        )
    return cache


IDS = st.lists(st.integers(0, 1), max_size=12)


@given(contexts=st.lists(IDS, min_size=1, max_size=6), ids=IDS, repeats=st.sampled_from([1, 100]))
def test_the_longest_prefix_is_that_of_comparing_token_by_token(
    contexts: list[list[int]], ids: list[int], repeats: int
) -> None:
    """Repeated, they are longer than what is compared at once."""
    assert COMPARED_AT_ONCE < 12 * 100
    contexts = [list(np.repeat(context, repeats)) for context in contexts]
    ids = list(np.repeat(ids, repeats))
    shared = []
    for context in contexts:
        pairs = enumerate(zip(context, ids, strict=False))
        end = min(len(context), len(ids))
        shared.append(next((place for place, (a, b) in pairs if a != b), end))
    row, length = cache_of(contexts).longest_prefix(np.array(ids, dtype=np.int64))
    assert length == max(shared)
    assert (row is None) == (length == 0)
    assert row is None or row.index == shared.index(length)


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_time_is_flat_or_linear_in_the_context(work: str) -> None:
    lengths = [4096, 16384, 65536]
    times = [milliseconds(WORKS[work](length)) for length in lengths]
    assert exponent(lengths, times) < 1.4
