"""The model as the loss sees it: log-probabilities of action tokens, at a bounded peak of memory.

The model computes hidden states; `trainers/learner/policy/head.py` turns those that predict action
tokens into log-probabilities. Trajectories are packed into one sequence where the model can be
driven so (`packing.py`), else they are padded rows (`padded.py`). What the layers compute is kept
for the backward pass, or only their inputs are (`recomputation.py`). On a GPU the kernels of all of
this are compared with plain PyTorch before they train (`kernel_check.py`).

A policy gradient is that of the policy that sampled, so the model computes in training as it does
when it samples: in evaluation mode. Dropout, router noise and whatever else its configuration has
for training stay off. Only the dropout of adapters (`lora.dropout`) acts in training mode.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from gymnast.agents.models.attention import planned
from gymnast.agents.models.check_model import check_model
from gymnast.agents.models.decoder import decoder_of
from gymnast.agents.models.evaluation_mode import evaluate
from gymnast.agents.models.routing import Routers, replaying
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.head import Head, TeacherStates
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, MicroBatch, split
from gymnast.trainers.learner.policy.packing import TreePlan
from gymnast.trainers.learner.policy.padded import PaddedForward
from gymnast.trainers.learner.policy.recomputation import (
    Activations,
    checkpoint_layers,
    waiting_on_host,
)


class Policy(nn.Module):
    """Wraps a causal language model, with or without adapters, and puts it in evaluation mode.

    Args:
        model: Of Transformers, or of peft around one; it stays in evaluation mode.
        temperature: At which the actions were sampled; divides the logits.
        activations: What becomes of what layers compute, until the backward pass: see
            `Activations`. "recompute" is a third more computation for a fraction of the memory.
        replay_routing: Choose the experts that were chosen while sampling, where a micro-batch has
            them.
        unused_ids: Ids that have a logit and are no tokens, which are never sampled: they have no
            share in the distributions.

    Attributes:
        path: How trajectories go through the model. "packed": all tokens of a micro-batch are one
            sequence, in which a shared prompt stands once. "padded": each trajectory is a row. It
            is chosen by what the model does; docs/models.md lists the families of Transformers.
        not_packed: Why the path is "padded"; empty where it is not.

    Raises:
        ModelError: The model is no causal language model; its layers cannot be computed a second
            time; or its experts cannot be replayed.
    """

    path: Literal["packed", "padded"]

    def __init__(
        self,
        model: Any,
        *,
        temperature: float = 1.0,
        activations: Activations = "keep",
        replay_routing: bool = False,
        unused_ids: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self._checkpointed: list[Any] = []
        evaluate(model)
        self.eval()
        self._padded: PaddedForward | None = None
        self.path, self.not_packed = "packed", ""
        try:
            check_model(model)
        except ModelError as error:
            self._padded = PaddedForward(model, self._causal)
            self.path, self.not_packed = "padded", str(error)
        self._routers = Routers(model) if replay_routing else None
        self._head = Head(self._causal, temperature=temperature, unused_ids=unused_ids)
        self.activations = activations

    def train(self, mode: bool = True) -> "Policy":
        """Turn the dropout of adapters on or off; see the top of this file."""
        super().train(False)
        self.training = mode
        for adapter in _adapters(self.model):
            adapter.training = mode
            for part in _own_parts(adapter):
                part.train(mode)
        for layer in self._checkpointed:  # how Transformers is told to compute it again
            layer.training = mode and self._activations != "keep"
        return self

    @property
    def activations(self) -> Activations:
        """What becomes of them in the next passes."""
        return self._activations

    @activations.setter
    def activations(self, activations: Activations) -> None:
        if activations != "keep" and not self._checkpointed:
            self._checkpointed = checkpoint_layers(self._causal, self._second_time)
        self._activations = activations

    @property
    def plain(self) -> bool:
        """True if attention and head are matrix products of PyTorch, on every device."""
        return self._head.plain

    @plain.setter
    def plain(self, plain: bool) -> None:
        self._head.plain = plain

    @property
    def device(self) -> torch.device:
        """Where the model is, and where micro-batches have to be."""
        device: torch.device = self.model.device
        return device

    @property
    def has_dropout(self) -> bool:
        """Whether its log-probabilities are others in training mode, drawn anew in every pass."""
        parts = (part for adapter in _adapters(self.model) for part in _own_parts(adapter))
        modules = (module for part in parts for module in part.modules())
        return any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules)

    def forward(
        self,
        batch: MicroBatch,
        *,
        entropy: Literal["none", "measured", "trained"] = "none",
        teacher: TeacherStates | None = None,
    ) -> torch.Tensor:
        """Log-probabilities of the action tokens, [A], float32.

        With `entropy` [2, A]: those, and the entropies of the distributions they were drawn from.
        Where these are "measured" they have no gradient, and cost next to nothing.
        With `teacher` [4, A]: those two, the divergences from the teacher, and the teacher's own
        log-probabilities.
        """
        offloads = self._activations == "offload" and torch.is_grad_enabled()
        with waiting_on_host() if offloads else nullcontext():
            hidden = self.hidden(batch)
        if teacher is not None:
            return self._head.logprobs_and_divergences(hidden, batch.targets, teacher)
        if entropy == "trained":
            return self._head.logprobs_and_entropies(hidden, batch.targets)
        return self._head.logprobs(hidden, batch.targets, entropies=entropy == "measured")

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """The hidden states that predict the action tokens, [A, width]."""
        if self._padded is None:
            return self._packed(batch)
        return self._padded.hidden(batch, self._routers)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits that actions are drawn from, [a, V], of hidden states [a, width]."""
        return self._head.logits(hidden)

    @property
    def head_is_matrix(self) -> bool:
        """Return True if logits are products of hidden states and one matrix, which is whole."""
        return self._head.is_matrix

    @property
    def output_layer(self) -> nn.Module:
        """What makes logits of hidden states."""
        layer: nn.Module = self._causal.get_output_embeddings()
        return layer

    def split(
        self,
        groups: Sequence[Sequence[CreditedTrajectory]],
        tokens: int,
        *,
        also_idle: bool = False,
    ) -> list[list[CreditedTrajectory]]:
        """Divide trajectories into micro-batches of about `tokens` tokens, as `path` counts them.

        See `split` in `micro_batches.py` and in `padded.py`.
        """
        divide = split if self._padded is None else self._padded.split
        return divide(groups, tokens, also_idle=also_idle)

    def count_tokens(self, batch: MicroBatch) -> int:
        """Return the tokens that a pass of a micro-batch computes, as `split` counts them."""
        if self._padded is None:
            return len(batch.packed.ids)
        return len(batch.packed.index) * max(map(len, batch.packed.index))

    def _packed(self, batch: MicroBatch) -> torch.Tensor:
        """The hidden states that predict the action tokens, [A, width]."""
        device = batch.targets.device
        ids = torch.tensor(batch.packed.ids, device=device)[None]  # [1, N]
        positions = torch.tensor(batch.packed.positions, device=device)[None]
        plan = TreePlan(batch.packed, plain=self.plain)
        with planned(self.model), replaying(self._routers, batch.experts):
            hidden: torch.Tensor = decoder_of(self._causal)(
                input_ids=ids, position_ids=positions, use_cache=False, plan=plan
            ).last_hidden_state[0]  # [N, width]
        return hidden.index_select(0, batch.predicted_from)

    def _second_time(self) -> AbstractContextManager[None]:
        """What a layer is computed within again, after `forward` has left what it was within."""
        route = planned(self.model) if self._padded is None else nullcontext()
        return _both(route, nullcontext() if self._routers is None else self._routers.again())

    @property
    def _causal(self) -> Any:
        model = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def _both(
    outer: AbstractContextManager[None], inner: AbstractContextManager[None]
) -> Iterator[None]:
    with outer, inner:
        yield


def unwrapped(policy: nn.Module) -> Policy:
    """The `Policy` within what several processes need around it."""
    return next(module for module in policy.modules() if isinstance(module, Policy))


def _adapters(model: nn.Module) -> list[nn.Module]:
    """The layers of peft that stand around one of the model's own."""
    return [module for module in model.modules() if hasattr(module, "base_layer")]


def _own_parts(adapter: nn.Module) -> list[nn.Module]:
    """All of an adapter but the layer that it stands around."""
    return [part for name, part in adapter.named_children() if name != "base_layer"]
