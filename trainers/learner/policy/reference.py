"""A model that is computed and not trained: what a penalty compares with, or who teaches.

    Reference(model)            the policy as it was before training, or at its last refresh
    Reference(model, as_it_is=True)       a model with the weights it has, whichever they are

Before its first refresh the reference is the base under adapters, or a frozen copy. ProRL (Liu et
al. 2025, arXiv:2505.24864) resets the reference from time to time, so that the penalty does not
hold the policy back for good.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from gymnast.trainers.learner.policy.kernel_check import use_plain
from gymnast.trainers.learner.policy.micro_batches import MicroBatch
from gymnast.trainers.learner.policy.policy import Policy

REFRESHED = "refreshed"


class Reference:
    """Log-probabilities of a model that no gradient reaches.

    Args:
        model: Of Transformers, or of peft around one, before its first update. It is copied unless
            it has adapters.
        temperature: At which the actions are sampled.
        as_it_is: Compute the model itself, with the weights that it has at the time.
        unused_ids: See `Policy`.
    """

    def __init__(
        self,
        model: Any,
        *,
        temperature: float = 1.0,
        as_it_is: bool = False,
        unused_ids: Sequence[int] = (),
    ) -> None:
        self._adapted = hasattr(model, "disable_adapter") and not as_it_is
        self._follows = model
        if not self._adapted and not as_it_is:
            model = copy.deepcopy(model).eval().requires_grad_(False)
        self._model = model
        self._policy = Policy(model, temperature=temperature, unused_ids=unused_ids)
        trained = (name for name, weight in model.named_parameters() if weight.requires_grad)
        self._adapters = frozenset(trained) if self._adapted else frozenset[str]()
        self._refreshed: dict[str, torch.Tensor] = {}  # by name; never written to
        self.split = self._policy.split

    def use_plain(self) -> None:
        """Compute without kernels from now on; see `kernel_check.py`."""
        use_plain(self._policy)

    @torch.no_grad()
    def logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Log-probabilities of the action tokens, [A], float32."""
        with self._own_weights():
            return self._policy(batch)

    @torch.no_grad()
    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """The hidden states that predict the action tokens, [A, width]."""
        with self._own_weights():
            return self._policy.hidden(batch)

    @property
    def logits(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """From hidden states [a, width] to the logits [a, V] that actions would be drawn from."""
        return self._logits

    @torch.no_grad()
    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        # Nothing of peft's is touched where the head has no adapter: a backward pass may be on.
        adapted = hasattr(self._policy.output_layer, "base_layer")
        with self._own_weights() if adapted else nullcontext():
            return self._policy.logits(hidden)

    @torch.no_grad()
    def refresh(self) -> None:
        """Become the policy as it is now, which is whole in this process."""
        named = dict(self._follows.named_parameters())
        chosen = self._adapters if self._adapted else named
        self._use({name: named[name].detach().clone() for name in chosen})

    @property
    def refreshed_bytes(self) -> int:
        """What the weights of one refresh take: of the adapters, or of the whole model."""
        named = self._follows.named_parameters()
        kept = [weight for name, weight in named if not self._adapted or name in self._adapters]
        return sum(weight.numel() * weight.element_size() for weight in kept)

    def state_dict(self) -> dict[str, Any]:
        """The weights of the last refresh, by name; none before the first."""
        return {REFRESHED: self._refreshed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        if state[REFRESHED]:
            self._use(state[REFRESHED])

    def _use(self, weights: dict[str, torch.Tensor]) -> None:
        device = self._model.device
        self._refreshed = {name: weight.to(device) for name, weight in weights.items()}
        if not self._adapted:
            for name, weight in self._model.named_parameters():
                weight.data = self._refreshed[name]

    def _own_weights(self) -> AbstractContextManager[Any]:
        """Within it, the model has the reference's weights."""
        if not self._adapted:
            return nullcontext()
        if not self._refreshed:
            disabled: AbstractContextManager[Any] = self._model.disable_adapter()
            return disabled
        return self._with_refreshed_adapters()

    @contextmanager
    def _with_refreshed_adapters(self) -> Iterator[None]:
        named = dict(self._model.named_parameters())
        adapters = {name: named[name] for name in self._refreshed}
        current = {name: weight.data for name, weight in adapters.items()}
        try:
            for name, weight in adapters.items():
                weight.data = self._refreshed[name]
            yield
        finally:
            for name, weight in adapters.items():
                weight.data = current[name]
