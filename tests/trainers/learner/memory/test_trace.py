"""What a computation allocates is recorded, and when it is freed."""

import numpy as np
import torch

from gymnast.trainers.learner.memory.trace import AllocationTrace, live_bytes

CPU = torch.device("cpu")


def test_storages_are_recorded_when_they_are_made_and_when_they_are_freed() -> None:
    given = torch.ones(8)
    with AllocationTrace(CPU) as trace:
        first = given + 1  # 32 bytes
        view = first[2:]
        second = torch.cat([first, first])  # 64 bytes
        del first
        assert trace.events == [0, 1]  # the view still holds it
        del view
        given.add_(1)  # makes nothing
        del second
    assert trace.sizes == [32, 64]
    assert trace.events == [0, 1, ~0, ~1]
    live = live_bytes(np.array(trace.sizes, dtype=np.float64), trace.events)
    assert live.tolist() == [32, 96, 64, 0]


def test_the_backward_pass_is_recorded_too() -> None:
    weight = torch.ones(256, 256, requires_grad=True)
    with AllocationTrace(CPU) as trace:
        (weight * 2).sum().backward()
    assert max(trace.sizes) == 4 * 256 * 256
    assert weight.grad is not None
    assert trace.events[-1] != len(trace.sizes) - 1 or len(trace.sizes) > 2


def test_what_is_freed_after_the_trace_is_not_in_it() -> None:
    with AllocationTrace(CPU) as trace:
        made = torch.zeros(4)
    del made
    assert trace.events == [0]
