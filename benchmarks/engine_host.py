"""The scheduler's side of sampling on a GPU, without a GPU: can Python keep a device at work?

    python benchmarks/engine_host.py              about two minutes
    python benchmarks/engine_host.py --seconds 1  shorter cases

The engine schedules, plans and reads steps over pages as on a GPU. The device is simulated: it does
nothing but take its time for each step, one after another, and events end when theirs has come. So
the figures have the whole cost of Python but the calls that launch work on a real device. All rows
decode; threads that compute in pure Python stand for tools.

    steps          a launch may have: 1 alone, or 1, 4 or 16 (`paged_executor.STEPS`)
    interval       Python's switch interval: how long a busy thread keeps the lock
    CPU a launch   of the engine's thread, in milliseconds
    device share   the device's time / wall time
"""

import argparse
import gc
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpu_episodes import busy_threads
from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.paged_executor import PROGRAMS_PER_PROCESSOR, STEPS, PagedExecutor
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.static_step import StepLaunch, StepShape
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Completion, Sampling

VOCABULARY, PROMPT_TOKENS, GROUP_SIZE = 1000, 300, 8
PREFILL_TOKENS = 4096
PROCESSORS, KEY_HEADS = 132, 8  # of an H200, and of the Qwen3 models
TOKEN = 5  # what every row samples


@dataclass(frozen=True)
class Case:
    """What is simulated.

    Attributes:
        rows: That decode.
        step_s: Of the device for one step.
        threads: That compute in Python.
        interval_s: Python's switch interval.
        steps: Of a launch.
    """

    rows: int
    step_s: float
    threads: int
    interval_s: float
    steps: tuple[int, ...]


# Steps of 3 and 6 ms are those of Qwen3-0.6B on an H200.
CASES = [
    Case(rows, step_s, threads, interval_s, steps)
    for rows, step_s in ((64, 0.003), (256, 0.006))
    for threads in (0, 8)
    for interval_s in (0.005, 0.0005)
    for steps in ((1,), STEPS)
]


@dataclass
class Found:
    """What a case took.

    Attributes:
        wall_s: Seconds.
        device_s: Of the device.
        cpu_s: Of the engine's thread.
        launches: The number of launches.
        steps: The number of steps.
    """

    wall_s: float
    device_s: float
    cpu_s: float
    launches: int
    steps: int

    @property
    def share(self) -> float:
        """The device's share of the time."""
        return self.device_s / self.wall_s

    @property
    def launch_ms(self) -> float:
        """CPU milliseconds of a launch."""
        return 1000 * self.cpu_s / self.launches


class _Event:
    """An event of the device, whose time is known when it is made."""

    def __init__(self, at: float) -> None:
        self.at = at

    def query(self) -> bool:
        return time.perf_counter() >= self.at

    def synchronize(self) -> None:
        left = self.at - time.perf_counter()
        if left > 0:
            time.sleep(left)


class SimulatedDevice:
    """Takes the place of `StaticStep`, and keeps time.

    Args:
        rows: Of the executor.
        step_s: Seconds of each step.

    Attributes:
        busy_s: Seconds in which it computed, or will have.
        launches: The number of launches.
        steps: The number of steps.
    """

    nbytes = 0
    captures, capture_s = 0, 0.0

    def __init__(self, rows: int, step_s: float) -> None:
        self.junk_slot = rows
        self.busy_s, self.launches, self.steps = 0.0, 0, 0
        self._step_s, self._free_at = step_s, 0.0
        self._inputs = np.zeros(1, dtype=np.int32)

    def launch(self, shape: StepShape, numbers: np.ndarray, _: int) -> StepLaunch:
        """Copy the inputs, and begin when what was launched before has ended."""
        if len(numbers) > len(self._inputs):
            self._inputs = np.zeros(2 * len(numbers), dtype=np.int32)
        self._inputs[: len(numbers)] = numbers
        spent = shape.steps * self._step_s
        begin = max(time.perf_counter(), self._free_at)
        self._free_at = begin + spent
        self.busy_s += spent
        self.launches += 1
        self.steps += shape.steps
        results = np.full(shape.steps * 2 * shape.samples, float(TOKEN))
        return StepLaunch(results, shape, None, None, _Event(self._free_at), spent)

    def read(self, launch: StepLaunch) -> tuple[np.ndarray, np.ndarray]:
        """Wait for a launch."""
        launch.ended.synchronize()
        results = launch.results.reshape(launch.shape.steps, 2, launch.shape.samples)
        return results[:, 0].astype(np.int64), results[:, 1].copy()

    def begin_row(self, *_: int) -> None:
        """Do nothing."""

    def weights_may_have_moved(self) -> None:
        """Do nothing."""


class SimulatedExecutor(PagedExecutor):
    """Plans steps as for an H200, and launches them on a device that is not there."""

    def __init__(self, case: Case) -> None:
        shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
        super().__init__(
            tiny_model(VOCABULARY, **shape),
            max_rows=case.rows,
            kv_budget_bytes=200_000_000,
            context_length=1024,
            prefill_tokens=PREFILL_TOKENS,
            attention="kernels",
        )
        self._spare_items = PROGRAMS_PER_PROCESSOR * PROCESSORS // KEY_HEADS
        self.device = SimulatedDevice(case.rows, case.step_s)
        self.static: Any = self.device
        self.steps = case.steps


def make_requests(case: Case) -> Iterator[Request]:
    """Make one request a row, in groups that share their prompts."""
    draw = np.random.default_rng(0)
    for number in range(case.rows):
        if number % GROUP_SIZE == 0:
            prompt = draw.integers(0, VOCABULARY, PROMPT_TOKENS).tolist()
        sampling = Sampling(max_new_tokens=512, seed=number)
        yield Request(prompt, sampling, Future[Completion](), limit=700)


def simulate(case: Case, seconds: float) -> Found:
    """Decode for some seconds.

    Args:
        case: What is simulated.
        seconds: The most that it takes, prefill not included.
    """
    executor = SimulatedExecutor(case)
    engine, device = Engine(executor, prefill_tokens=PREFILL_TOKENS), executor.device
    engine.waiting += make_requests(case)
    while engine.waiting or any(row.missing > 1 for row in engine.running.values()):
        engine.step()
    with switching_every(case.interval_s), busy_threads(case.threads):
        before = (device.busy_s, device.launches, device.steps)
        began, cpu = time.perf_counter(), time.thread_time()
        while not engine.idle and time.perf_counter() - began < seconds:
            engine.step()
        wall_s, cpu_s = time.perf_counter() - began, time.thread_time() - cpu
    device_s, launches, steps = (
        now - then
        for now, then in zip((device.busy_s, device.launches, device.steps), before, strict=True)
    )
    return Found(wall_s, min(device_s, wall_s), cpu_s, int(launches), int(steps))


@contextmanager
def switching_every(interval_s: float) -> Iterator[None]:
    """Set Python's switch interval within the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each case at most (5)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
    print("| rows | step | busy threads | interval | steps | CPU a launch | device share |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        found = simulate(case, options.seconds)
        gc.collect()
        steps = ", ".join(map(str, case.steps))
        print(
            f"| {case.rows} | {1000 * case.step_s:.0f} ms | {case.threads} | "
            f"{1000 * case.interval_s:.1f} ms | {steps} (mean {found.steps / found.launches:.1f}) "
            f"| {found.launch_ms:.2f} ms | {found.share:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
