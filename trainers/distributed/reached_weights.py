"""Weights that a pass does not reach, where torch's DDP waits for the gradients of all.

An expert that no token was sent to has no gradient, nor has what only chooses (the indexer of
DeepSeek's sparse attention). DDP can look for such weights, at the price of a walk through the
graph in every pass; here the graph reaches every weight instead, at no price.
"""

from typing import Any

import torch
from torch import nn


class ReachedWeights(nn.Module):
    """A policy whose result depends on all of its weights, on some with no gradient.

    Args:
        policy: Its forward returns one tensor.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, *arguments: Any, **options: Any) -> torch.Tensor:
        """What the policy returns."""
        result: torch.Tensor = self.policy(*arguments, **options)
        weights = [weight for weight in self.policy.parameters() if weight.requires_grad]
        function: Any = _Reached
        reached: torch.Tensor = function.apply(result, *weights)
        return reached


class _Reached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.weights = len(weights)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, *[None] * ctx.weights
