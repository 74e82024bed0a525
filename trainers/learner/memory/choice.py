"""What becomes of a step's activations, by the memory there is: kept, computed again, moved away.

    keep        where a step then fits into the memory there is
    recompute   else: of each layer its input is kept, and the rest is computed a second time
    offload     else, on an accelerator: the inputs wait in the memory of the host
    refused     else, before the step starts, with the setting that makes it fit

A step is judged by its longest micro-batch, which every process knows, so that all choose alike.

Where no one sets the size of micro-batches, it is chosen too. On a CPU a pass takes far longer than
what starts it. An accelerator waits for thousands of launches in each pass, whatever its length, so
a micro-batch is as long as memory allows: first with activations kept, and where too few tokens fit
so, with layers computed again. The first update is measured, which corrects the estimate
(`measured.py`).
"""

from collections.abc import Callable, Iterator, Sequence
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
from gymnast.trainers.learner.memory.measured import MOST_CORRECTED, MeasuredPass, correction
from gymnast.trainers.learner.memory.passes import PassMemory, measure_pass
from gymnast.trainers.learner.policy.head import CPU_LOGITS_BYTES, GPU_LOGITS_BYTES
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.recomputation import Activations

FEWEST_TOKENS = 256  # below this, no shorter episode is advised
# Of a micro-batch whose size nobody sets, where memory is not filled.
PLAIN_TOKENS = 2048
# Of one that fills the memory. Its kernels keep a large GPU busy from some ten thousand tokens on;
# the estimate is extrapolated from passes of a hundred tokens, and the longer the less certain.
MOST_TOKENS = 65_536
# With fewer, a GPU waits for launches: rather compute layers again than keep activations. Who sets
# `activations` to save memory gets no more.
EFFICIENT_TOKENS = 8192
SHOWN = {"keep": "kept", "recompute": "computed again", "offload": "moved to the host"}


@dataclass(frozen=True)
class Choice:
    """How a step is made.

    Attributes:
        activations: What becomes of them.
        exact: Whether freed memory has to go back at once (`heap.py`).
        estimate: Of the step.
        tokens: Of its longest micro-batch.
        limit: The tokens of a micro-batch of several contexts, at most.
    """

    activations: Activations
    exact: bool
    estimate: MemoryEstimate
    tokens: int
    limit: int


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
        share: Of the room, that a step may take.
        fills: Choose the size of micro-batches by the room, where nobody sets it.
        in_one_process: No gradients are added up over processes.

    Attributes:
        scale: By which activations and logits are larger than estimated, as measured.
        most_that_fit: The tokens of a micro-batch at most, after a longer one did not fit.
    """

    policy: Policy
    fixed: FixedMemory
    room: Available | None = None
    asked: Activations | None = None
    entropies: bool = False
    kv_bytes: int = 0
    kv_held: int = 0
    share: float = 0.9
    fills: bool = False
    in_one_process: bool = True
    scale: float = 1.0
    most_that_fit: int = MOST_TOKENS
    _measured: dict[Activations, PassMemory | None] = field(default_factory=dict, repr=False)

    def choose(
        self,
        tokens: int | None,
        longest: int,
        actions: int | None = None,
        *,
        batch_tokens: int = MOST_TOKENS,
    ) -> Choice:
        """Choose how to make a step.

        Args:
            tokens: Of a micro-batch of several episodes, at most; None chooses it.
            longest: The tokens of the longest episode, at most.
            actions: The action tokens of a micro-batch, at most; None where nobody knows.
            batch_tokens: Of all episodes together, at most.

        Raises:
            NotEnoughMemory: No way fits.
        """
        if tokens is None and self.fills and self.room is not None:
            return self._fill(longest, actions, batch_tokens)
        limit = self.plain_limit(tokens)
        tokens = min(limit, batch_tokens)
        largest = max(tokens, longest)
        for way, exact in self._ways(largest):
            estimate = self.estimate(largest, way, exact=exact, actions=actions)
            if self._fits(estimate):
                return Choice(way, exact, estimate, largest, limit)
        raise NotEnoughMemory(self._refusal(tokens, longest))

    def plain_limit(self, tokens: int | None) -> int:
        """Return the tokens of a micro-batch, at most, where they do not depend on the room."""
        return min(PLAIN_TOKENS, self.most_that_fit) if tokens is None else tokens

    def _fill(self, longest: int, actions: int | None, batch_tokens: int) -> Choice:
        """Choose the size of micro-batches by the room.

        Raises:
            NotEnoughMemory: The longest episode does not fit in any way.
        """
        most = max(longest, min(self.most_that_fit, batch_tokens))
        efficient = min(most, max(longest, EFFICIENT_TOKENS))
        least = min(most, max(longest, FEWEST_TOKENS))
        if self.asked in ("recompute", "offload"):
            most = efficient
        ways = list(self._ways(HEAP_TOKENS + 1))  # those that free exactly
        for number, (way, exact) in enumerate(ways, start=1):
            enough = efficient if way == "keep" and number < len(ways) else least
            found = self._longest(way, exact, actions, most)
            if found >= enough:
                if found < most:
                    found = max(enough, two_digits(found))  # the same in similar steps
                estimate = self.estimate(found, way, exact=exact, actions=actions)
                return Choice(way, exact, estimate, found, found)
        raise NotEnoughMemory(self._refusal(least, longest, sized=False))

    def correct(self, off_by: float) -> None:
        """Scale the estimates of activations and logits by a measured factor, within bounds."""
        self.scale *= min(max(off_by, 1 / MOST_CORRECTED), MOST_CORRECTED)

    def off_by(self, passes: Sequence[MeasuredPass], choice: Choice) -> float | None:
        """Return the factor by which measured passes took more than estimated.

        Args:
            passes: Of a step.
            choice: How it was made.

        Returns:
            See `correction`.
        """

        def of_pass(measured: MeasuredPass) -> int:
            way, actions = choice.activations, measured.actions
            found = self.estimate(measured.tokens, way, exact=choice.exact, actions=actions)
            return found.activations + found.logits

        return correction(passes, of_pass)

    def halve(self, tokens: int, longest: int) -> bool:
        """Allow micro-batches of half as many tokens from now on, after these did not fit.

        Returns:
            False where the longest episode is longer than that, or next to nothing is left.
        """
        half = tokens // 2
        if half < max(longest, FEWEST_TOKENS):
            return False
        self.most_that_fit = half
        return True

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
            activations=int(self.scale * slack * peak),
            logits=int(self.scale * max(0, measured.kept_bytes(tokens) + logits - peak)),
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
        return self.room is None or estimate.total <= self.share * self.room.nbytes

    @property
    def _on_cpu(self) -> bool:
        return self.policy.device.type == "cpu"

    def _pass(self, way: Activations) -> PassMemory | None:
        """What passes of this way take; None where the model cannot be computed so."""
        if way not in self._measured:
            before = self.policy.activations
            try:
                self.policy.activations = way
                self._measured[way] = measure_pass(self.policy, self.in_one_process)
            except ModelError:  # its layers cannot be computed again
                if self.asked is not None:
                    raise
                self._measured[way] = None
            finally:
                self.policy.activations = before
        return self._measured[way]

    def _refusal(self, tokens: int, longest: int, *, sized: bool = True) -> str:
        """Say that a step does not fit, and the fix.

        Args:
            tokens: Of a micro-batch of several episodes.
            longest: The tokens of the longest episode.
            sized: Whether `tokens` is a setting.
        """
        assert self.room is not None, "without a limit nothing is refused"
        largest = max(tokens, longest)
        *_, (way, exact) = self._ways()
        estimate = self.estimate(largest, way, exact=exact)
        return (
            f"a step does not fit into memory: with a micro-batch of {largest:,} tokens, "
            f"activations {SHOWN[way]}, it takes {shown_bytes(estimate.total)} "
            f"({shown_parts(estimate)}), and "
            f"{self.room.of} has {shown_bytes(self.room.nbytes)} for it, of which "
            f"trainer.memory leaves it {self.share:g}. {self._remedy(tokens, longest, sized=sized)}"
        )

    def _remedy(self, tokens: int, longest: int, *, sized: bool) -> str:
        """The setting that makes it fit."""
        assert self.room is not None, "without a limit nothing is refused"
        without = replace(self, kv_bytes=0)
        largest = max(tokens, longest)
        if self.kv_bytes and largest <= without.most_tokens():
            *_, (way, exact) = without._ways(largest)
            least = without.estimate(largest, way, exact=exact).total
            fitting = max(1, int(self.share * self.room.nbytes) - least)
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
        if sized and most >= max(longest, FEWEST_TOKENS):
            return f"Lower trainer.tokens_per_microbatch from {tokens} to {most}."
        if most >= FEWEST_TOKENS:
            also = (
                ""
                if tokens <= most or not sized
                else f", and trainer.tokens_per_microbatch to {most}"
            )
            return f"Lower environment.context_length to {most}{also}."
        return (
            "Weights, gradients and optimizer leave no room for an episode: train adapters "
            "(model.lora: {rank: 16}), set model.dtype to bfloat16, take a smaller model, or "
            "divide the weights over processes (docs/processes.md)."
        )

    def most_tokens(self) -> int:
        """The longest micro-batch that fits, in tokens, rounded down to two digits."""
        *_, (way, exact) = self._ways()  # the last takes least
        return two_digits(self._longest(way, exact))

    def _longest(
        self, way: Activations, exact: bool, actions: int | None = None, most: int = 2**24
    ) -> int:
        """Return the tokens of the longest micro-batch that fits, up to `most`; 0 if none does."""

        def fits(tokens: int) -> bool:
            return self._fits(self.estimate(tokens, way, exact=exact, actions=actions))

        return largest_that(fits, most)


def largest_that(fits: Callable[[int], bool], most: int = 2**24) -> int:
    """Return the largest number up to `most` that fits, where all smaller ones fit too; else 0."""
    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def two_digits(number: int) -> int:
    """Return a number rounded down to two digits."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return number // unit * unit


def memory_line(choice: Choice, room: Available | None, kv_budget_bytes: int | None = None) -> str:
    """Return what a step takes at most, and of how much, in one line; and keys and values."""
    of = "" if room is None else f" of {shown_bytes(room.nbytes)} ({room.of})"
    sizes = micro_batches_line(choice)
    parts = shown_parts(choice.estimate)
    line = f"a step takes up to {shown_bytes(choice.estimate.total)}{of}, in {sizes}: {parts}"
    if choice.estimate.kv:
        return f"{line}; with max_staleness these stay while a step is learned from"
    if kv_budget_bytes is None or room is None:
        return line
    kept = shown_bytes(kv_budget_bytes)
    return f"{line}; while sampling, up to {kept} of keys and values instead"


def micro_batches_line(choice: Choice) -> str:
    """Return the size of micro-batches and what becomes of their activations."""
    return (
        f"micro-batches of up to {choice.tokens:,} tokens, activations {SHOWN[choice.activations]}"
    )


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


def shown_parts(estimate: MemoryEstimate) -> str:
    """The parts of an estimate in words."""
    parts = [
        ("weights", estimate.weights),
        ("optimizer", estimate.optimizer),
        ("gradients", estimate.gradients),
        ("activations", estimate.activations),
        ("logits", estimate.logits),
        ("keys and values up to", estimate.kv),
    ]
    return ", ".join(f"{name} {shown_bytes(size)}" for name, size in parts if size)


def room_for(fixed: FixedMemory, free: Available | None) -> Available | None:
    """All memory for a step: what is free, and what its parts hold already."""
    return None if free is None else Available(free.nbytes + fixed.held, free.of)
