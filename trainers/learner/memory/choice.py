"""What becomes of a step's activations, by the memory there is: kept, computed again, moved away.

    keep        where a step then fits into the memory there is
    recompute   else: of each layer its input is kept, and the rest is computed a second time
    offload     else, on an accelerator: the inputs wait in the memory of the host
    refused     else, before the step starts, with the setting that makes it fit

A step is judged by its longest micro-batch, which every process knows, so that all choose alike.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from gymnast.errors import ModelError, NotEnoughMemory
from gymnast.trainers.learner.memory.available import Available
from gymnast.trainers.learner.memory.estimate import (
    FixedMemory,
    MemoryEstimate,
    logits_bytes,
    shown_bytes,
)
from gymnast.trainers.learner.memory.heap import HEAP_TOKENS, SLACK
from gymnast.trainers.learner.memory.passes import PassMemory, measure_pass
from gymnast.trainers.learner.policy.head import CPU_LOGITS_BYTES, GPU_LOGITS_BYTES
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.recomputation import Activations

USED = 0.95  # of the memory there is: the rest of the machine lives too
FEWEST_TOKENS = 256  # below this, no shorter episode is advised


@dataclass(frozen=True)
class Choice:
    """How a step is made.

    Attributes:
        activations: What becomes of them.
        exact: Whether freed memory has to go back at once (`heap.py`).
        estimate: Of the step.
        tokens: Of its longest micro-batch.
    """

    activations: Activations
    exact: bool
    estimate: MemoryEstimate
    tokens: int


@dataclass
class StepMemory:
    """Estimates steps, and chooses what becomes of their activations.

    Args:
        policy: Whole: the weights it is measured with are not divided.
        fixed: What a step takes whatever its length.
        room: The bytes of memory for all of it, and whose it is; None where nobody says.
        asked: The way the user asks for; None chooses.
        entropies: Autograd differentiates entropies: those of heads that are one matrix have
            gradients without it.
        kv_bytes: The most that keys and values take while a step is learned from.
        kv_held: The memory that they hold already.
    """

    policy: Policy
    fixed: FixedMemory
    room: Available | None = None
    asked: Activations | None = None
    entropies: bool = False
    kv_bytes: int = 0
    kv_held: int = 0
    _measured: dict[Activations, PassMemory | None] = field(default_factory=dict, repr=False)

    def choose(self, tokens: int, longest: int, actions: int | None = None) -> Choice:
        """How to make a step.

        Args:
            tokens: Of a micro-batch of several episodes, at most.
            longest: How long an episode of the step is at most.
            actions: How many action tokens a micro-batch has at most; None where nobody knows.

        Raises:
            NotEnoughMemory: No way fits.
        """
        largest = max(tokens, longest)
        for way, exact in self._ways(largest):
            estimate = self.estimate(largest, way, exact=exact, actions=actions)
            if self._fits(estimate):
                return Choice(way, exact, estimate, largest)
        raise NotEnoughMemory(self._refusal(tokens, longest))

    def measure(self) -> None:
        """Measure all ways now: weights that are divided cannot be measured any more."""
        for way, _ in self._ways():
            self._pass(way)

    def estimate(
        self, tokens: int, way: Activations, *, exact: bool, actions: int | None = None
    ) -> MemoryEstimate:
        """What a step takes whose longest micro-batch has this many tokens, of them `actions`."""
        measured = self._pass(way)
        assert measured is not None, "only ways that the model has are asked for"
        most = CPU_LOGITS_BYTES if self._on_cpu else GPU_LOGITS_BYTES
        actions = tokens if actions is None else min(actions, tokens)
        logits = logits_bytes(self.policy.model, actions, most, entropies=self.entropies)
        peak, slack = measured.peak_bytes(tokens), SLACK if self._on_cpu and not exact else 1.0
        return MemoryEstimate(
            self.fixed.weights,
            self.fixed.optimizer,
            self.fixed.gradients,
            activations=int(slack * peak),
            logits=max(0, measured.kept_bytes(tokens) + logits - peak),
            kv=self.kv_bytes,
            folded=self.fixed.folded,
        )

    def _ways(self, tokens: int = 0) -> Iterator[tuple[Activations, bool]]:
        """The ways to try in turn, and whether freed memory goes back at once in them."""
        ways: list[tuple[Activations, bool]] = [
            ("keep", False),
            ("keep", True),
            ("recompute", True),
            ("offload", True),
        ]
        for way, exact in ways:
            chosen = way == self.asked if self.asked else way != "offload" or not self._on_cpu
            if not exact and tokens > HEAP_TOKENS:
                continue
            if chosen and self._pass(way) is not None:
                yield way, exact

    def _fits(self, estimate: MemoryEstimate) -> bool:
        return self.room is None or estimate.total <= USED * self.room.nbytes

    @property
    def _on_cpu(self) -> bool:
        return self.policy.device.type == "cpu"

    def _pass(self, way: Activations) -> PassMemory | None:
        """What passes of this way take; None where the model cannot be computed so."""
        if way not in self._measured:
            before = self.policy.activations
            try:
                self.policy.activations = way
                self._measured[way] = measure_pass(self.policy)
            except ModelError:  # its layers cannot be computed again
                if self.asked is not None:
                    raise
                self._measured[way] = None
            finally:
                self.policy.activations = before
        return self._measured[way]

    def _refusal(self, tokens: int, longest: int) -> str:
        assert self.room is not None, "without a limit nothing is refused"
        largest = max(tokens, longest)
        *_, (way, exact) = self._ways()
        estimate = self.estimate(largest, way, exact=exact)
        return (
            f"a step does not fit into memory: with a micro-batch of {largest:,} tokens it takes "
            f"{shown_bytes(estimate.total)} ({shown_parts(estimate, largest, way)}), and "
            f"{self.room.of} has {shown_bytes(self.room.nbytes)} for it. "
            f"{self._remedy(tokens, longest)}"
        )

    def _remedy(self, tokens: int, longest: int) -> str:
        """The setting that makes it fit."""
        assert self.room is not None, "without a limit nothing is refused"
        without = replace(self, kv_bytes=0)
        largest = max(tokens, longest)
        if self.kv_bytes and largest <= without.most_tokens():
            *_, (way, exact) = without._ways(largest)
            least = without.estimate(largest, way, exact=exact).total
            fitting = max(1, int(USED * self.room.nbytes) - least)
            remedy = f"Lower trainer.kv_budget_bytes from {self.kv_bytes} to {fitting}"
            if self.kv_held:
                return f"{remedy}."
            return (
                f"{remedy}, or set trainer.max_staleness to 0: then keys and values are given back "
                "before a step is learned from."
            )
        chosen = replace(self, asked=None)
        if self.asked is not None and max(tokens, longest) <= chosen.most_tokens():
            return f"Set trainer.activations to auto (it is {self.asked}): then it fits."
        most = chosen.most_tokens()
        if most >= max(longest, FEWEST_TOKENS):
            return f"Lower trainer.tokens_per_microbatch from {tokens} to {most}."
        if most >= FEWEST_TOKENS:
            also = "" if tokens <= most else f", and trainer.tokens_per_microbatch to {most}"
            return f"Lower environment.context_length to {most}{also}."
        return (
            "Weights, gradients and optimizer leave no room for an episode: train adapters "
            "(model.lora: {rank: 16}), set model.dtype to bfloat16, take a smaller model, or "
            "divide the weights over processes (docs/processes.md)."
        )

    def most_tokens(self) -> int:
        """The longest micro-batch that fits, in tokens, rounded down to two digits."""
        *_, (way, exact) = self._ways()  # the last takes least
        return longest_that(
            lambda tokens: self._fits(self.estimate(tokens, way, exact=exact)),
        )


def longest_that(fits: Callable[[int], bool]) -> int:
    """The largest number below 2**24 that fits, rounded down to two digits."""
    low, high = 0, 2**24
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    unit = 10 ** max(0, len(str(low)) - 2)
    return low // unit * unit


def memory_line(choice: Choice, room: Available | None, kv_budget_bytes: int | None = None) -> str:
    """Return what a step takes at most, and of how much, in one line; and keys and values."""
    of = "" if room is None else f" of {shown_bytes(room.nbytes)} ({room.of})"
    parts = shown_parts(choice.estimate, choice.tokens, choice.activations)
    line = f"a step takes up to {shown_bytes(choice.estimate.total)}{of}: {parts}"
    if choice.estimate.kv:
        return f"{line}; with max_staleness these stay while a step is learned from"
    if kv_budget_bytes is None or room is None:
        return line
    kept = shown_bytes(kv_budget_bytes)
    return f"{line}; while sampling, up to {kept} of keys and values instead"


def kv_warning(choice: Choice, room: Available | None, kv_budget_bytes: int | None) -> str:
    """A sentence where keys and values may not fit beside weights and optimizer; else ""."""
    if kv_budget_bytes is None or room is None or choice.estimate.kv:
        return ""
    estimate = choice.estimate
    left = room.nbytes - estimate.weights - estimate.optimizer - estimate.folded
    if kv_budget_bytes <= left:
        return ""
    return (
        f"kv_budget_bytes: keys and values may take {shown_bytes(kv_budget_bytes)} while episodes "
        f"are sampled, and {room.of} has {shown_bytes(max(left, 0))} left for them; set "
        f"trainer.kv_budget_bytes to {max(left, 1)}"
    )


def shown_parts(estimate: MemoryEstimate, tokens: int, way: Activations) -> str:
    """The parts of an estimate in words."""
    ways = {"keep": "kept", "recompute": "computed again", "offload": "moved to the host"}
    parts = [
        ("weights", estimate.weights),
        ("optimizer", estimate.optimizer),
        ("gradients", estimate.gradients),
        (f"activations of {tokens:,} tokens, {ways[way]},", estimate.activations),
        ("logits", estimate.logits),
        ("keys and values up to", estimate.kv),
    ]
    return ", ".join(f"{name} {shown_bytes(size)}" for name, size in parts if size)


def room_for(fixed: FixedMemory, free: Available | None) -> Available | None:
    """All memory for a step: what is free, and what its parts hold already."""
    return None if free is None else Available(free.nbytes + fixed.held, free.of)
