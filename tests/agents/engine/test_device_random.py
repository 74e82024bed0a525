"""Random numbers of tokens on a device: the very bits of the host's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents.engine.device_random import uniforms_by_kernel, uniforms_plain
from gymnast.agents.engine.sampling import uniforms

WORDS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]),
)
INDICES = st.one_of(st.integers(0, 4096), st.integers(0, 2**63 - 1))


def packed(seeds: list[int]) -> torch.Tensor:
    """Low and high words, int32 [2, S]."""
    words = np.array(seeds, dtype="<u8").view("<i4").reshape(-1, 2).T
    return torch.from_numpy(np.ascontiguousarray(words))


@given(st.lists(st.tuples(WORDS, INDICES), min_size=1, max_size=40))
def test_plain_torch_gives_the_bits_of_the_host(drawn: list[tuple[int, int]]) -> None:
    seeds, indices = (list(each) for each in zip(*drawn, strict=True))
    found = uniforms_plain(packed(seeds), torch.tensor(indices))
    expected = uniforms(np.array(seeds, dtype=np.uint64), np.array(indices))
    assert found.dtype == torch.float64
    assert found.numpy().tobytes() == expected.tobytes()


@pytest.mark.triton
def test_the_kernel_gives_the_bits_of_the_host(interpreted: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    for count in (1, 5, 16, 17, 100):
        seeds = [0, 2**64 - 1, *(int(each) for each in random.integers(0, 2**63, count))][:count]
        indices = random.integers(0, 2**40, count)
        found = interpreted(uniforms_by_kernel, packed(seeds), torch.from_numpy(indices))
        expected = uniforms(np.array(seeds, dtype=np.uint64), indices)
        assert found.numpy().tobytes() == expected.tobytes()


@pytest.mark.gpu
def test_the_kernel_gives_the_bits_of_the_host_on_a_gpu() -> None:
    pytest.importorskip("triton")
    seeds, indices = [0, 1, 2**64 - 1, 2**40 + 7], torch.tensor([0, 5, 2**33 + 1, 7])
    found = uniforms_by_kernel(packed(seeds).cuda(), indices.cuda()).cpu()
    expected = uniforms(np.array(seeds, dtype=np.uint64), indices.numpy())
    assert found.numpy().tobytes() == expected.tobytes()
