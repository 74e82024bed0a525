"""AdamW over float32 master weights, whatever dtype the model computes in.

A bfloat16 weight has 8 significant bits: an update of a thousandth of its size is lost. So the
optimizer keeps float32 copies, updates those, and writes them back rounded. It also counts the
steps that were skipped; how many of them end a run is `trainers/divergence.py`.
"""

from collections.abc import Iterable
from typing import Any

import torch

from gymnast.errors import CheckpointError, ModelError
from gymnast.trainers.sharding import divided_like, whole


class MasterAdamW:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) on float32 copies of the weights.

    Args:
        parameters: Those that require gradients; float32 ones are updated in place. They may be
            sharded: then every process calls every method.
        learning_rate: At full strength.
        weight_decay: Decoupled.
        warmup_steps: The learning rate grows linearly over this many steps.

    Attributes:
        steps: How many were taken.
        skipped: How many were skipped.
        skipped_in_a_row: How many of them after the last that was taken.
        last_skip: Why the last one was skipped, in words.

    Raises:
        ModelError: None of them requires gradients.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
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
        self.master = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for p in self.parameters
        ]
        self._adamw = torch.optim.AdamW(
            self.master, lr=learning_rate, weight_decay=weight_decay, betas=(0.9, 0.999)
        )

    @torch.no_grad()
    def gather_gradients(self) -> torch.Tensor:
        """Move the gradients to the master weights; returns their norm, a scalar."""
        for weight, master in zip(self.parameters, self.master, strict=True):
            if master is not weight:
                master.grad = None if weight.grad is None else weight.grad.float()
                weight.grad = None
        gradients = [master.grad for master in self.master if master.grad is not None]
        return whole(torch.nn.utils.get_total_norm(gradients))

    @torch.no_grad()
    def step(self, norm: torch.Tensor, max_norm: float) -> None:
        """Clip the gradients, whose norm this is, update, and round back into the model."""
        torch.nn.utils.clip_grads_with_norm_(self.master, max_norm, norm)
        self.steps += 1
        self.skipped_in_a_row = 0
        for group in self._adamw.param_groups:
            group["lr"] = self.last_learning_rate
        self._adamw.step()
        self.zero_grad()
        for weight, master in zip(self.parameters, self.master, strict=True):
            if master is not weight:
                weight.copy_(master)

    @property
    def last_learning_rate(self) -> float:
        """Of the last step that was taken; 0 before the first."""
        return self.learning_rate * min(1.0, self.steps / (self.warmup_steps + 1))

    def skip(self, why: str) -> None:
        """Drop the gradients; weights, moments and the learning rate stay as they are."""
        self.zero_grad()
        self.skipped += 1
        self.skipped_in_a_row += 1
        self.last_skip = why

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for weight in [*self.parameters, *self.master]:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Everything `load_state_dict` needs to go on exactly; tensors are whole."""
        adamw = self._adamw.state_dict()
        states = {
            number: {name: whole(value) for name, value in state.items()}
            for number, state in adamw["state"].items()
        }
        return {
            "adamw": adamw | {"state": states},
            "master": [whole(master.detach()) for master in self.master],
            "steps": self.steps,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; the model's weights are set from its master weights.

        Raises:
            CheckpointError: It is of another model, or of other trained weights.
        """
        ours, theirs = ([weight.shape for weight in w] for w in (self.master, state["master"]))
        if ours != theirs:
            raise CheckpointError(
                f"the checkpoint has {len(theirs)} trained weights of other shapes than the "
                f"{len(ours)} of this model. Resume with the model and adapters of the run that "
                "wrote it."
            )
        states = {
            number: {
                name: divided_like(value, master) if value.shape == master.shape else value
                for name, value in saved.items()
            }
            for number, saved in state["adamw"]["state"].items()
            for master in [self.master[number]]
        }
        self._adamw.load_state_dict(state["adamw"] | {"state": states})
        for weight, master, saved in zip(
            self.parameters, self.master, state["master"], strict=True
        ):
            master.copy_(divided_like(saved, master))
            if master is not weight:
                weight.copy_(master)
        self.steps = state["steps"]
        self.skipped = state.get("skipped", 0)  # checkpoints of version 0.1 have none
        self.skipped_in_a_row = state.get("skipped_in_a_row", 0)
