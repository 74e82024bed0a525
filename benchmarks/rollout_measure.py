"""What a run costs: wall time, CPU time, and tokens pushed through the decoder.

Tokens pushed are positions that enter the decoder, padding included, counted by a forward pre-hook
on it. CPU seconds are those of all threads of this process, and of children that have ended.
"""

import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Cost:
    """The cost of one run.

    Attributes:
        wall_s: Seconds on the clock.
        cpu_s: Seconds of CPU, all threads.
        tokens: Positions that entered the decoder.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    tokens: int = 0


def cpu_seconds() -> float:
    """The CPU seconds so far of this process and its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Meter:
    """Measures what happens inside `measure()`.

    Args:
        model: A causal language model; the hook sits on its decoder.
    """

    def __init__(self, model: Any = None) -> None:
        self._tokens = 0
        self._cuda = model is not None and model.device.type == "cuda"
        if model is not None:
            model.get_decoder().register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self._tokens += (ids if ids is not None else kwargs["inputs_embeds"][..., 0]).numel()

    @contextmanager
    def measure(self) -> Iterator[Cost]:
        """Yield a cost that is filled in at the end of the block."""
        cost = Cost()
        tokens, cpu, wall = self._tokens, cpu_seconds(), time.perf_counter()
        yield cost
        if self._cuda:
            torch.cuda.synchronize()
        cost.wall_s = time.perf_counter() - wall
        cost.cpu_s = cpu_seconds() - cpu
        cost.tokens = self._tokens - tokens


def in_turns(sides: Sequence[Callable[[], Cost]], repetitions: int) -> list[Cost]:
    """Run the sides in turn (A, B, A, B, ...); returns the medians of each."""
    costs: list[list[Cost]] = [[] for _ in sides]
    for _ in range(repetitions):
        for side, spent in zip(sides, costs, strict=True):
            spent.append(side())
    return [median(spent) for spent in costs]


def median(costs: Sequence[Cost]) -> Cost:
    """The median of every figure."""
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        round(statistics.median(cost.tokens for cost in costs)),
    )
