"""AdamW over float32 master weights, whatever dtype the model computes in.

A bfloat16 weight has 8 significant bits: an update of a thousandth of its size is lost. So the
optimizer keeps float32 copies, updates those, and writes them back rounded. DeepSpeed does the same
in `zero.py`.
"""

from collections.abc import Iterable
from typing import Any

import torch

from gymnast.trainers.distributed.sharding import divided_like, whole
from gymnast.trainers.learner.optimizers.not_finite import why_not_finite
from gymnast.trainers.learner.optimizers.optimizer import Optimizer, check_shapes


class MasterOptimizer(Optimizer):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) on float32 copies of the weights.

    Args:
        parameters: Those that require gradients; float32 ones are updated in place. They may be
            sharded: then every process calls every method.
        learning_rate: At full strength.
        weight_decay: Decoupled.
        warmup_steps: The learning rate grows linearly over this many steps.

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
        super().__init__(parameters, learning_rate=learning_rate, warmup_steps=warmup_steps)
        self.master = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for p in self.parameters
        ]
        self.adds_in_float32 = any(m is not p for m, p in self._pairs())
        self._adamw = torch.optim.AdamW(
            self.master, lr=learning_rate, weight_decay=weight_decay, betas=(0.9, 0.999)
        )

    def step_if_finite(self, loss: float, max_norm: float) -> float:
        """Clip the gradients and update, or skip the step; see `Optimizer`."""
        norm = self.gather_gradients()
        length = norm.item()
        if why := why_not_finite(loss, length):
            self.skip(why)
        else:
            self.step(norm, max_norm)
        return length

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Move the weights' gradients to those of the master weights, and add them up there."""
        for master, weight in self._pairs():
            if master is not weight and weight.grad is not None:
                if master.grad is None:
                    master.grad = weight.grad.float()
                else:
                    master.grad += weight.grad
                weight.grad = None

    def gradient_sums(self) -> list[torch.Tensor]:
        """The gradients of the master weights, zeros where there was none."""
        for master in self.master:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return [master.grad for master in self.master if master.grad is not None]

    def _pairs(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Each master weight and the weight that it is of."""
        return zip(self.master, self.parameters, strict=True)

    @torch.no_grad()
    def gather_gradients(self) -> torch.Tensor:
        """Move the gradients to the master weights; returns their norm, a scalar."""
        self.add_gradients()
        gradients = [master.grad for master in self.master if master.grad is not None]
        return whole(torch.nn.utils.get_total_norm(gradients))

    @torch.no_grad()
    def step(self, norm: torch.Tensor, max_norm: float) -> None:
        """Clip the gradients, whose norm this is, update, and round back into the model."""
        torch.nn.utils.clip_grads_with_norm_(self.master, max_norm, norm)
        self.count_taken()
        for group in self._adamw.param_groups:
            group["lr"] = self.last_learning_rate
        self._adamw.step()
        self.zero_grad()
        for master, weight in self._pairs():
            if master is not weight:
                weight.copy_(master)

    def skip(self, why: str) -> None:
        """Drop the gradients; weights, moments and the learning rate stay as they are."""
        self.zero_grad()
        self.count_skipped(why)

    def zero_grad(self) -> None:
        """Drop all gradients, sums included."""
        super().zero_grad()
        for master in self.master:
            master.grad = None

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
            **self.counts(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; the model's weights are set from its master weights.

        Raises:
            CheckpointError: It is of another model, or of other trained weights.
        """
        ours, theirs = ([weight.shape for weight in w] for w in (self.master, state["master"]))
        check_shapes(ours, theirs)
        states = {
            number: {
                name: divided_like(value, master) if value.shape == master.shape else value
                for name, value in saved.items()
            }
            for number, saved in state["adamw"]["state"].items()
            for master in [self.master[number]]
        }
        settings = self._adamw.state_dict()["param_groups"]  # this run's: a resumed one may differ
        self._adamw.load_state_dict({"param_groups": settings, "state": states})
        for weight, master, saved in zip(
            self.parameters, self.master, state["master"], strict=True
        ):
            master.copy_(divided_like(saved, master))
            if master is not weight:
                weight.copy_(master)
        self.restore_counts(state)
