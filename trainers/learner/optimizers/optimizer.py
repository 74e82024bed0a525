"""What updates the weights of a policy, step by step: the contract, and what all of them count.

`master_optimizer.py` is one, `zero.py` is another. How many skipped steps end a run is in
`not_finite.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
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

            def forget(self):
                self.forget_counts()

            def state_dict(self):
                return {"weight": self.weight.detach(), **self.counts()}

            def load_state_dict(self, state):
                self.weight.data.copy_(state["weight"])
                self.restore_counts(state)

    Args:
        parameters: Of a model; those that require gradients are trained.
        learning_rate: At full strength.
        warmup_steps: The learning rate grows linearly over this many steps.
        rates: Learning rates at full strength of weights that have one of their own.

    Attributes:
        parameters: Those that are trained.
        scheduled: The schedule's share of the learning rates, in the steps to come.
        one_rate: The learning rate of all weights at full strength in the steps to come, in place
            of theirs; None is theirs.
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
        rates: Mapping[torch.nn.Parameter, float] | None = None,
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise ModelError(
                "no weight of the model requires gradients, so there is nothing to train; call "
                "model.requires_grad_(), or add adapters to it"
            )
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.rates = dict(rates or {})
        self.scheduled, self._last_share = 1.0, 0.0
        self.one_rate: float | None = None
        self.steps = self.skipped = self.skipped_in_a_row = 0
        self.last_skip = ""
        self.adds_in_float32 = False

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for weight in self.parameters:
            weight.grad = None

    def add_gradients(self) -> None:  # noqa: B027
        """Move the weights' gradients to sums in float32, where `adds_in_float32` is set."""

    def adding_in_backward(self) -> AbstractContextManager[None]:
        """Within the block, backward passes call `add_gradients` weight by weight.

        Each gradient goes to its sum once it is complete, so that the gradients of all weights
        never exist at the same time. For weights that are whole, in one process.
        """
        return nullcontext()

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

    @abstractmethod
    def forget(self) -> None:
        """Begin anew on the weights as they are: no moments, no steps taken; a collective call.

        How many steps were skipped is kept.
        """

    def forget_counts(self) -> None:
        """The part of `forget` that is not tensors."""
        self.steps = self.skipped_in_a_row = 0
        self._last_share = 0.0

    @property
    def last_learning_rate(self) -> float:
        """Of the last step that was taken; 0 before the first."""
        return self._rate * self._last_share

    @property
    def next_learning_rate(self) -> float:
        """Of the next step that is taken."""
        return self._rate * self.next_share

    @property
    def _rate(self) -> float:
        return self.learning_rate if self.one_rate is None else self.one_rate

    @property
    def next_share(self) -> float:
        """Which share of the learning rates the next step takes: the warm-up's and the schedule's.

        The warm-up is over when `warmup_steps` steps were taken; skipped ones do not count.
        """
        return self.scheduled * min(1.0, (self.steps + 1) / (self.warmup_steps + 1))

    def learning_rates(self) -> dict[str, float]:
        """Of the last step that was taken, for its metrics.

        `learning_rate`, and `learning_rate/adapters` where some weights have one of their own. If
        all have, it is the only one.
        """
        rates = self.rates.values() if self.one_rate is None else ()
        own = {rate * self._last_share for rate in rates}
        if not own:
            return {"learning_rate": self.last_learning_rate}
        if all(weight in self.rates for weight in self.parameters):
            return {"learning_rate": max(own)}
        return {"learning_rate": self.last_learning_rate, "learning_rate/adapters": max(own)}

    def count_taken(self) -> None:
        """Count a step that was taken."""
        self._last_share = self.next_share
        self.steps += 1
        self.skipped_in_a_row = 0

    def count_skipped(self, why: str) -> None:
        """Count a step that was skipped."""
        self.skipped += 1
        self.skipped_in_a_row += 1
        self.last_skip = why

    def counts(self) -> dict[str, float]:
        """The part of a `state_dict` that is not tensors."""
        names = ("steps", "skipped", "skipped_in_a_row")
        return {name: getattr(self, name) for name in names} | {"last_share": self._last_share}

    def restore_counts(self, state: dict[str, Any]) -> None:
        """Take them over from a `state_dict`."""
        self.steps = state["steps"]
        self.skipped = state["skipped"]
        self.skipped_in_a_row = state["skipped_in_a_row"]
        self._last_share = state["last_share"]


def check_state(state: dict[str, Any], shapes: list[torch.Size], classes: str) -> None:
    """Check that the state in a checkpoint is one that an optimizer can go on from.

    Args:
        state: A `state_dict`.
        shapes: Of the trained weights.
        classes: The names of the classes of torch's that update them.

    Raises:
        CheckpointError: Its weights have other shapes, or others updated them.
    """
    if (other := state.get("classes", "an older Gymnast")) != classes:
        raise CheckpointError(
            f"the checkpoint has the state of {other}, from which {classes} cannot go on; resume "
            "with the trainer.optimizer of the run that wrote it, or start anew in another folder"
        )
    ours, theirs = shapes, [master.shape for master in state["master"]]
    if ours != theirs:
        raise CheckpointError(
            f"the checkpoint has {len(theirs)} trained weights of other shapes than the "
            f"{len(ours)} of this model. Resume with the model and adapters of the run that "
            "wrote it."
        )
