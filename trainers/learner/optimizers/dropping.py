"""An optimizer that drops every gradient, for updates that are only measured."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from gymnast.trainers.learner.optimizers.optimizer import Optimizer


class Dropping(Optimizer):
    """Goes through the steps of another one and takes none: no weight and no moment changes.

    Args:
        optimizer: The other one, whose gradients it holds meanwhile.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer.parameters, learning_rate=optimizer.learning_rate)
        self._optimizer = optimizer
        self.adds_in_float32 = optimizer.adds_in_float32

    def zero_grad(self) -> None:
        """Drop all gradients, sums included."""
        self._optimizer.zero_grad()

    def add_gradients(self) -> None:
        """Add them up as the other one does."""
        self._optimizer.add_gradients()

    def adding_in_backward(self) -> AbstractContextManager[None]:
        """Add them up as the other one does."""
        return self._optimizer.adding_in_backward()

    def step_if_finite(self, loss: float, max_norm: float) -> float:
        """Measure the gradients of whole weights, and drop them."""
        sums = self._optimizer.gradient_sums() if self.adds_in_float32 else []
        held = [weight.grad for weight in self.parameters if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm([*sums, *held]).item()
        self.zero_grad()
        return norm

    def forget(self) -> None:
        """There is nothing to forget."""

    def state_dict(self) -> dict[str, Any]:
        """There is nothing to go on from but the other one's state."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As the other one does."""
        self._optimizer.load_state_dict(state)
