"""The simulated device keeps time, and the real scheduler decodes on it."""

import time

import pytest

import engine_host
from engine_host import Case, SimulatedDevice, SimulatedExecutor, make_requests, simulate
from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.static_step import StepShape


def test_steps_of_the_device_follow_each_other() -> None:
    device = SimulatedDevice(rows=4, step_s=0.02)
    shape = StepShape(tokens=4, samples=4, steps=2)
    began = time.perf_counter()
    first, second = (device.launch(shape, device._inputs, 1) for _ in range(2))
    assert not second.done
    ids, logprobs = device.read(second)
    assert time.perf_counter() - began >= 0.08
    assert first.done
    assert ids.shape == logprobs.shape == (2, 4)
    assert device.busy_s == pytest.approx(0.08)
    assert (device.launches, device.steps) == (2, 4)


@pytest.mark.parametrize("steps", [(1,), (1, 4, 16)])
def test_every_row_samples_all_its_tokens(steps: tuple[int, ...]) -> None:
    executor = SimulatedExecutor(Case(16, 0.0, 0, 0.005, steps))
    engine = Engine(executor, prefill_tokens=4096)
    requests = list(make_requests(Case(16, 0.0, 0, 0.005, steps)))
    engine.waiting += requests
    while not engine.idle:
        engine.step()
    for request in requests:
        assert request.future.result().ids == [engine_host.TOKEN] * 512


def test_a_slow_device_is_never_at_rest() -> None:
    found = simulate(Case(8, 0.05, 0, 0.005, (1,)), seconds=1.0)
    assert found.share > 0.8
    assert found.launches == found.steps >= 15
    assert 0 < found.launch_ms < 50


def test_a_fast_device_waits_for_python() -> None:
    found = simulate(Case(64, 1e-5, 0, 0.005, (1,)), seconds=0.3)
    assert 0 < found.share < 0.5
