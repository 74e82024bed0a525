"""A check that a policy's kernels compute what plain PyTorch does, made before the first step.

Kernels that few machines have run must not be able to train on wrong numbers. A small tree of
trajectories goes through the model three times, with the gradients of all trained weights:

    kernels   as the run would train
    plain     attention and head in matrix products of PyTorch, and the model's own modules
    rounded   plain, each trajectory in a pass of its own, and what each layer returns changed at
              random by about one unit in the last place

The last two differ by rounding alone, which a trained model of many layers makes a tenth of some
gradients in bfloat16. So their distance is the measure of that of the first two, weight by weight.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from gymnast.agents.models.context_limits import longest_context
from gymnast.agents.models.experts import expert_blocks
from gymnast.agents.models.fused import has_fused_modules, plain_modules, use_plain_modules
from gymnast.errors import first_line
from gymnast.trainers.learner.policy.micro_batches import (
    CreditedTrajectory,
    MicroBatch,
    micro_batch,
)
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Span, StopReason, Trajectory
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

# Kernels may differ from plain PyTorch by this factor of what rounding makes of it, plus a share of
# the values themselves. What a wrong mask or a missing term does is of their own size.
FACTOR = 2.5
SHARES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.01, torch.bfloat16: 0.03}
# Where a router chooses experts by rounded scores, some tokens are computed by others altogether.
SHARE_WITH_EXPERTS = 0.5
# The segments of the tree: where each begins to differ from the one before, and its length. Longer
# than a tile of a kernel, and no multiples of one.
BRANCHES = ((0, 190), (75, 150), (110, 41), (110, 22), (75, 33), (0, 31))

Entropy = Literal["measured", "trained"]


@dataclass(frozen=True)
class Agreement:
    """The result of a check.

    Attributes:
        worst: The largest distance of kernels from plain PyTorch, as a share of what is allowed: 1
            is the limit; NaN where a value was not finite.
        of: The weight it was found in, or "log-probabilities".
    """

    worst: float
    of: str

    @property
    def holds(self) -> bool:
        """True if they differ by rounding alone."""
        return self.worst <= 1.0


def choose_kernels(policy: Policy, *, entropy: Entropy = "measured", reports: bool = True) -> bool:
    """Check a policy's kernels, and have it compute without them if they are wrong or fail.

    The outcome is logged in one line, with the time that it took: the first time on a machine,
    most of it is that of compiling, which Triton keeps on the disk.

    Args:
        policy: Whole, on the device that it trains on, and without gradients.
        entropy: Of the passes that are to come.
        reports: Log that they agree; that they do not is logged always.

    Returns:
        True if the kernels stay.
    """
    started = time.perf_counter()
    try:
        agreement = check_kernels(policy, entropy=entropy)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of a compiler, a driver
        why = f"they fail ({type(error).__name__}: {first_line(error)})"
    else:
        if agreement.holds:
            if reports:
                logger.info(
                    "the kernels of training agree with plain PyTorch up to rounding (compiled and "
                    "checked in %.1f s)",
                    time.perf_counter() - started,
                )
            return True
        why = (
            f"in {agreement.of} they differ from plain PyTorch by {agreement.worst:.3g} times what "
            "rounding explains"
        )
    use_plain(policy)
    logger.warning("training is slower, without kernels for %s: %s", policy.device, why)
    return False


def use_plain(policy: Policy) -> None:
    """Have a policy, and its model, compute without kernels from now on."""
    policy.plain = True
    if has_fused_modules(policy.model):
        use_plain_modules(policy.model)


def check_kernels(policy: Policy, *, entropy: Entropy = "measured") -> Agreement:
    """Compare log-probabilities, entropies and gradients by kernels with plain ones.

    Args:
        policy: As for `choose_kernels`.
        entropy: Likewise.

    Raises:
        Exception: Whatever a kernel raises.
    """
    trajectories = _trajectories(policy.model)
    together = [micro_batch(trajectories, policy.device)]
    alone = [micro_batch([each], policy.device) for each in trajectories]
    modules: Any = plain_modules if has_fused_modules(policy.model) else nullcontext
    before, activations, policy.plain = policy.plain, policy.activations, False
    policy.activations = "keep"
    try:
        kernels = _passes(policy, together, entropy)
        policy.plain = True
        with modules(policy.model):
            plain = _passes(policy, together, entropy)
            differences = _distances(kernels, plain)
            del kernels
            with _rounded(policy.model):
                rounding = _distances(_passes(policy, alone, entropy), plain)
    finally:
        policy.plain, policy.activations = before, activations
        for weight in policy.model.parameters():
            weight.grad = None  # of a pass that an error ended
    share = SHARES[policy.model.dtype]
    if expert_blocks(policy.model):
        share = max(share, SHARE_WITH_EXPERTS)
    worst = Agreement(0.0, "log-probabilities")
    for name, distance in differences.items():
        size = float(torch.linalg.vector_norm(plain[name].float()))
        allowed = FACTOR * rounding[name] + share * size
        ratio = 0.0 if distance == 0.0 else distance / max(allowed, 1e-30)
        if math.isnan(ratio):
            return Agreement(ratio, name)
        if ratio > worst.worst:
            worst = Agreement(ratio, name)
    return worst


def _passes(
    policy: Policy, batches: Sequence[MicroBatch], entropy: Entropy
) -> dict[str, torch.Tensor]:
    """Log-probabilities and entropies of some passes, and the gradients of the trained weights."""
    found: list[torch.Tensor] = []
    for batch in batches:
        logprobs, entropies = policy(batch, entropy=entropy)  # [A] each
        weights = batch.advantages
        loss = (weights * logprobs).sum()
        if entropy == "trained":
            loss = loss + 0.5 * (weights * entropies).sum()
        loss.backward()
        found.append(torch.stack([logprobs, entropies]).detach())
    values = {"log-probabilities": torch.cat(found, dim=1)}  # [2, A], in whatever batches
    for name, weight in policy.model.named_parameters():
        if weight.grad is not None:
            values[name], weight.grad = weight.grad, None
    return values


@contextmanager
def _rounded(model: Any) -> Iterator[None]:
    """Within the block, what layers return is changed by about one unit in the last place."""
    draw = torch.Generator(model.device).manual_seed(0)

    def change(module: nn.Module, _: Any, returned: Any) -> Any:
        hidden, *rest = returned if isinstance(returned, tuple) else (returned,)
        noise = torch.randn(hidden.shape, generator=draw, device=hidden.device)
        factor = 1 + torch.finfo(hidden.dtype).eps * noise
        changed = (hidden * factor).to(hidden.dtype)
        return (changed, *rest) if isinstance(returned, tuple) else changed

    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    hooks = [each.register_forward_hook(change) for each in (model.get_input_embeddings(), *layers)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _distances(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> dict[str, float]:
    """The Euclidean distance of each tensor from the other of its name."""
    names = [*some, *(name for name in others if name not in some)]
    norms = []
    for name in names:
        first, second = some.get(name), others.get(name)
        if first is None or second is None:  # a weight without a gradient
            first = second = first if second is None else second
            assert first is not None
            norms.append(torch.linalg.vector_norm(first.float()))
        else:
            norms.append(torch.linalg.vector_norm(first.float() - second.float()))
    return dict(zip(names, torch.stack(norms).tolist(), strict=True))


def _trajectories(model: Any) -> list[CreditedTrajectory]:
    """Trajectories that share prefixes, within the contexts that the model takes."""
    vocabulary = model.config.get_text_config().vocab_size
    most = longest_context(model.config) or 2048
    longest = max(start + length for start, length in BRANCHES)
    part = min(1.0, most / longest)
    draw = torch.Generator().manual_seed(0)
    ids: list[int] = []
    trajectories = []
    for start, length in BRANCHES:
        start, length = int(part * start), max(4, int(part * length))
        new = torch.randint(vocabulary, (length,), generator=draw, device="cpu").tolist()
        ids = ids[:start] + new
        prompt = max(1, start + length // 3)
        actions = len(ids) - prompt
        advantages = torch.randn(actions, generator=draw, device="cpu")
        trajectory = Trajectory(
            ids=ids,
            action_mask=[0] * prompt + [1] * actions,
            logprobs=[0.0] * len(ids),
            prompt_length=prompt,
            turns=[Span(prompt, len(ids))],
            turn_rewards=[0.0],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )
        trajectories.append(CreditedTrajectory(trajectory, advantages, by_token=True))
    return trajectories
