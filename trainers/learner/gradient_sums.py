"""The gradient of one optimisation step, added up over its micro-batches and over processes.

Autograd adds up in the dtype of the weights. In bfloat16, which has 8 significant bits, a sum of
many gradients loses what is small beside it. So where the weights are not float32 and a step has
several micro-batches, each pass's gradient is moved to a float32 sum. Weights that are

    in one process                 move each gradient within the backward pass, once it is complete:
                                   gradients in the weights' dtype exist for about a layer at a time
    whole in every process (DDP)   add up locally; the float32 sums are averaged after the last pass
    divided (FSDP2)                are averaged in every pass; the float32 sums are divided too

A step of one micro-batch has nothing to add up: its gradient stays in the weights' dtype until the
optimizer's step. DeepSpeed is told to do the same in `trainers/learner/optimizers/zero.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel

from gymnast.trainers.learner.optimizers.optimizer import Optimizer

# How many numbers are averaged over processes at once: 64 MiB.
AT_ONCE = 2**24

A = TypeVar("A")
R = TypeVar("R")


def run_passes(
    backward: Callable[[A], R],
    microbatches: Sequence[A],
    policy: torch.nn.Module,
    optimizer: Optimizer,
    accelerator: Accelerator,
) -> list[R]:
    """Run the passes of a step, whose gradients add up; a collective call.

    Args:
        backward: A forward and a backward pass.
        microbatches: Of this process; as many as each process has.
        policy: A `Policy`, wrapped where there are several processes.
        optimizer: Over its weights.
        accelerator: Of this process.

    Returns:
        What each pass returned.
    """
    in_float32 = optimizer.adds_in_float32 and len(microbatches) > 1
    replicated = isinstance(policy, DistributedDataParallel)
    # With several processes a gradient is complete only when they have exchanged it.
    in_backward = in_float32 and accelerator.num_processes == 1
    results = []
    optimizer.zero_grad()  # of a step that an error ended
    with optimizer.adding_in_backward() if in_backward else nullcontext():
        for number, microbatch in enumerate(microbatches, start=1):
            alone = replicated if in_float32 else number < len(microbatches)
            with accelerator.no_sync(policy) if alone else nullcontext():
                results.append(backward(microbatch))
            if in_float32:
                optimizer.add_gradients()
    if in_float32 and replicated:
        _average(optimizer.gradient_sums(), accelerator.num_processes)
    return results


@torch.no_grad()
def _average(gradients: Sequence[torch.Tensor], processes: int) -> None:
    """Average tensors over processes, in place."""
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        torch.distributed.all_reduce(flat)
        parts = (flat / processes).split([gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    bucket: list[torch.Tensor] = []
    for tensor in tensors:
        if bucket and sum(map(torch.numel, bucket)) + tensor.numel() > AT_ONCE:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
