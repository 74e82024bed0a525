"""What updates the weights of a policy, step by step: the contract, and what all of them count.

`master_optimizer.py` is one, `zero.py` is another. How many skipped steps end a run is in
`not_finite.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch

from gymnast.errors import CheckpointError, ModelError


class Optimizer(ABC):
    """Updates the weights of a policy, counts its steps, and knows their learning rate.

        class Descent(Optimizer):
            def __init__(self, weight, **settings):
                super().__init__([weight], **settings)
                self.weight = weight

            def step_if_finite(self, loss, max_norm):
                norm = self.weight.grad.norm().item()
                if why := why_not_finite(loss, norm):
                    self.count_skipped(why)
                else:
                    scale = self.next_learning_rate * min(1, max_norm / norm)
                    self.weight.data -= scale * self.weight.grad
                    self.count_taken()
                self.weight.grad = None
                return norm

            def state_dict(self):
                return {"weight": self.weight.detach(), **self.counts()}

            def load_state_dict(self, state):
                self.weight.data.copy_(state["weight"])
                self.restore_counts(state)

    Args:
        parameters: Of a model; those that require gradients are trained.
        learning_rate: At full strength.
        warmup_steps: The learning rate grows linearly over this many steps.

    Attributes:
        parameters: Those that are trained.
        steps: How many were taken.
        skipped: How many were skipped.
        skipped_in_a_row: How many of them after the last that was taken.
        last_skip: Why the last one was skipped, in words.
        adds_in_float32: Whether `add_gradients` is called after each pass of a step with several.

    Raises:
        ModelError: None of them requires gradients.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        learning_rate: float,
        warmup_steps: int = 0,
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise ModelError(
                "no weight of the model requires gradients, so there is nothing to train; call "
                "model.requires_grad_(), or add adapters to it"
            )
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.steps = self.skipped = self.skipped_in_a_row = 0
        self.last_skip = ""
        self.adds_in_float32 = False

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for weight in self.parameters:
            weight.grad = None

    def add_gradients(self) -> None:  # noqa: B027
        """Move the weights' gradients to sums in float32, where `adds_in_float32` is set."""

    def gradient_sums(self) -> list[torch.Tensor]:
        """These sums."""
        return []

    @abstractmethod
    def step_if_finite(self, loss: float, max_norm: float) -> float:
        """Clip the gradients and update, or skip the step and drop them; a collective call.

        Args:
            loss: Over all processes.
            max_norm: Longer gradients are scaled down to this norm.

        Returns:
            The norm of the gradients, over all processes, before they are clipped. The step was
            taken where both it and the loss are finite.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything `load_state_dict` needs to go on exactly; tensors are whole."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; the model's weights are set from its master weights.

        Raises:
            CheckpointError: It is of another model, or of other trained weights.
        """

    @property
    def last_learning_rate(self) -> float:
        """Of the last step that was taken; 0 before the first."""
        return self._learning_rate_of(self.steps)

    @property
    def next_learning_rate(self) -> float:
        """Of the next step that is taken."""
        return self._learning_rate_of(self.steps + 1)

    def count_taken(self) -> None:
        """Count a step that was taken."""
        self.steps += 1
        self.skipped_in_a_row = 0

    def count_skipped(self, why: str) -> None:
        """Count a step that was skipped."""
        self.skipped += 1
        self.skipped_in_a_row += 1
        self.last_skip = why

    def counts(self) -> dict[str, int]:
        """The part of a `state_dict` that is not tensors."""
        names = ("steps", "skipped", "skipped_in_a_row")
        return {name: getattr(self, name) for name in names}

    def restore_counts(self, state: dict[str, Any]) -> None:
        """Take them over from a `state_dict`."""
        self.steps = state["steps"]
        self.skipped = state["skipped"]
        self.skipped_in_a_row = state["skipped_in_a_row"]

    def _learning_rate_of(self, step: int) -> float:
        return self.learning_rate * min(1.0, step / (self.warmup_steps + 1))


def check_shapes(ours: list[torch.Size], theirs: list[torch.Size]) -> None:
    """Check the master weights of a checkpoint.

    Raises:
        CheckpointError: They have other shapes than the trained weights.
    """
    if ours != theirs:
        raise CheckpointError(
            f"the checkpoint has {len(theirs)} trained weights of other shapes than the "
            f"{len(ours)} of this model. Resume with the model and adapters of the run that "
            "wrote it."
        )
