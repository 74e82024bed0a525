"""An optimizer over float32 master weights, whatever dtype the model computes in.

A bfloat16 weight has 8 significant bits: an update of a thousandth of its size is lost. So the
optimizer keeps float32 copies, updates those, and writes them back rounded. What updates them is
AdamW, or another class like those of `torch.optim` (`by_name.py`). DeepSpeed does the same in
`zero.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from gymnast.errors import ConfigError
from gymnast.trainers.distributed.sharding import divided_like, whole
from gymnast.trainers.learner.optimizers.by_name import ADAMW, NamedOptimizer, arguments_of
from gymnast.trainers.learner.optimizers.not_finite import why_not_finite
from gymnast.trainers.learner.optimizers.optimizer import Optimizer, check_state

_SHOWN = 3  # names in a message


@dataclass(frozen=True)
class _Part:
    """An optimizer of torch's, and what it updates.

    Attributes:
        torch: The optimizer.
        numbers: Of its master weights among all, in the order of its groups.
        rates: Of its groups, at full strength.
    """

    torch: torch.optim.Optimizer
    numbers: list[int]
    rates: list[float]

    def set_rates(self, share: float, one_rate: float | None) -> None:
        """Set the learning rates of the coming step; `one_rate` is in place of its own."""
        for group, own in zip(self.torch.param_groups, self.rates, strict=True):
            rate = own if one_rate is None else one_rate
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate * share)
            else:
                group["lr"] = rate * share

    def found(self) -> list[dict[str, Any]]:
        """What the optimizer keeps in its groups beside weights and settings."""
        settings = {"params", "lr", *arguments_of(type(self.torch))}
        groups = self.torch.param_groups
        return [{k: v for k, v in group.items() if k not in settings} for group in groups]

    def load(self, states: Mapping[int, Any], found: Sequence[Mapping[str, Any]]) -> None:
        """Go on from states, by the numbers of their weights, with this run's settings."""
        groups = self.torch.state_dict()["param_groups"]
        if len(found) == len(groups):
            groups = [group | dict(f) for group, f in zip(groups, found, strict=True)]
        own = {place: states[n] for place, n in enumerate(self.numbers) if n in states}
        self.torch.load_state_dict({"param_groups": groups, "state": own})


class MasterOptimizer(Optimizer):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), or another, on float32 copies.

    Args:
        parameters: Those that require gradients; float32 ones are updated in place. They may be
            sharded: then every process calls every method.
        learning_rate: At full strength.
        weight_decay: As the optimizer understands it; AdamW's is decoupled.
        warmup_steps: The learning rate grows linearly over this many steps.
        rates: Learning rates of weights that have one of their own.
        named: The optimizer.
        others: The weights that are no matrices within layers, with their names.

    Raises:
        ModelError: None of them requires gradients.
        ConfigError: The optimizer does not take these weights.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        rates: Mapping[torch.nn.Parameter, float] | None = None,
        named: NamedOptimizer = ADAMW,
        others: Mapping[torch.nn.Parameter, str] | None = None,
    ) -> None:
        super().__init__(
            parameters, learning_rate=learning_rate, warmup_steps=warmup_steps, rates=rates
        )
        self.master = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for p in self.parameters
        ]
        self.adds_in_float32 = any(m is not p for m, p in self._pairs())
        self._classes = named.classes
        self._make_parts = partial(self._make, named, weight_decay, others or {})
        self._parts = self._make_parts()

    def _make(
        self,
        named: NamedOptimizer,
        weight_decay: float,
        others: Mapping[torch.nn.Parameter, str],
    ) -> list[_Part]:
        """Make the optimizers of torch's.

        Raises:
            ConfigError: One does not take its weights.
        """
        numbers = list(range(len(self.parameters)))
        if named.others is None:
            try:
                return [self._part(named, numbers, weight_decay)]
            except ConfigError as error:
                way_out = "" if "weight_decay" in str(error) else f". {_way_out(others)}"
                raise ConfigError(f"trainer.optimizer: {error}{way_out}") from error
        rest = [number for number in numbers if self.parameters[number] in others]
        inner = [number for number in numbers if self.parameters[number] not in others]
        shared = [(named, inner), (named.others, rest)]
        try:
            return [self._part(kind, some, weight_decay) for kind, some in shared if some]
        except ConfigError as error:
            raise ConfigError(f"trainer.optimizer: {error}") from error

    def _part(self, named: NamedOptimizer, numbers: Sequence[int], weight_decay: float) -> _Part:
        by_rate: dict[float, list[int]] = {}
        for number in numbers:
            rate = self.rates.get(self.parameters[number], self.learning_rate)
            by_rate.setdefault(rate, []).append(number)
        groups = [
            {"params": [self.master[number] for number in some], "lr": rate}
            for rate, some in by_rate.items()
        ]
        in_order = [number for some in by_rate.values() for number in some]
        if (
            named.kind is torch.optim.AdamW
            and not {"foreach", "differentiable"} & named.options.keys()
            and all(weight.device.type == "cuda" for weight in self.master)
        ):
            # torch's default on CUDA makes square roots of all second moments at once, 4 bytes a
            # weight; the fused kernel makes none.
            named = replace(named, options={"fused": True, **named.options})
        return _Part(named.make(groups, weight_decay), in_order, list(by_rate))

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
            if master is not weight:
                _add_gradient(master, weight)

    @contextmanager
    def adding_in_backward(self) -> Iterator[None]:
        """Add each gradient to its sum within the backward pass; see `Optimizer`."""
        hooks = [
            weight.register_post_accumulate_grad_hook(partial(_add_gradient, master))
            for master, weight in self._pairs()
            if master is not weight
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

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
        for part in self._parts:
            part.set_rates(self.next_share, self.one_rate)
        self.count_taken()  # before any weight changes, so that no error hides that some did
        for part in self._parts:
            part.torch.step()
        self.zero_grad()
        for master, weight in self._pairs():
            if master is not weight:
                weight.copy_(master)

    def skip(self, why: str) -> None:
        """Drop the gradients; weights, moments and the learning rate stay as they are."""
        self.zero_grad()
        self.count_skipped(why)

    def forget(self) -> None:
        """Begin anew; see `Optimizer`."""
        self._parts = self._make_parts()
        self.forget_counts()

    def zero_grad(self) -> None:
        """Drop all gradients, sums included."""
        super().zero_grad()
        for master in self.master:
            master.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Everything `load_state_dict` needs to go on exactly; tensors are whole."""
        states = {}
        for part in self._parts:
            packed = part.torch.state_dict()["state"]
            for place, number in enumerate(part.numbers):
                if place in packed:
                    values = packed[place].items()
                    states[number] = {name: whole(value) for name, value in values}
        return {
            "classes": self._classes,
            "states": states,
            "found": [part.found() for part in self._parts],
            "master": [whole(master.detach()) for master in self.master],
            **self.counts(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; the model's weights are set from its master weights.

        Raises:
            CheckpointError: It is of another model, of other trained weights, or of another
                optimizer.
        """
        check_state(state, [master.shape for master in self.master], self._classes)
        states = {
            number: {
                name: divided_like(value, self.master[number])
                if isinstance(value, torch.Tensor) and value.shape == self.master[number].shape
                else value
                for name, value in saved.items()
            }
            for number, saved in state["states"].items()
        }
        for part, found in zip(self._parts, state["found"], strict=True):
            part.load(states, found)
        for weight, master, saved in zip(
            self.parameters, self.master, state["master"], strict=True
        ):
            master.copy_(divided_like(saved, master))
            if master is not weight:
                weight.copy_(master)
        self.restore_counts(state)


@torch.no_grad()
def _add_gradient(master: torch.Tensor, weight: torch.Tensor) -> None:
    """Move the gradient of a weight, if it has one, to the sum of its master weight."""
    if weight.grad is None:
        return
    if master.grad is None:
        master.grad = weight.grad.float()
    else:
        master.grad += weight.grad
    weight.grad = None


def _way_out(others: Mapping[torch.nn.Parameter, str]) -> str:
    """What to do where a class takes matrices alone."""
    named = [name for weight, name in others.items() if weight.requires_grad and weight.ndim != 2]
    if not named:
        return "Name another optimizer"
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return (
        f"Weights that are no matrices: {', '.join(named[:_SHOWN])}{more}. With "
        "`others: adamw` beside its name, these, embeddings and the head are AdamW's"
    )
