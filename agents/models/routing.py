"""Which experts a model chooses for each token: noted while it samples, chosen again in training.

Rounding moves a token whose best experts are nearly equal to others, and its log-probabilities
with it. Where the trainer takes the experts that the engine chose, that difference is gone (Ma et
al. 2025, "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers",
arXiv:2510.11370). What is replayed is the choice alone: how much each chosen expert counts comes
from the router's own scores, so gradients reach it.

Every family chooses by `topk`, over scores made in many ways. So a router is found by running the
model once: it is the module that calls `topk` last in a block with stacked experts. While it
computes, the result of that call is read, or replaced.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gymnast.agents.models.double_precision import FAILURES
from gymnast.agents.models.experts import expert_blocks
from gymnast.errors import ModelError

UNKNOWN = -1  # in place of an expert: the model chooses
TRIED = 8  # tokens of the trial
_TOPK = {torch.topk, torch.Tensor.topk}


@dataclass(frozen=True)
class _Router:
    """A module that chooses experts.

    Attributes:
        module: The module.
        block: The name of the module that holds the experts and this one.
        call: Which of its calls of `topk` chooses experts; those before it choose groups.
        experts: How many it chooses among.
        chosen: How many it chooses.
    """

    module: nn.Module
    block: str
    call: int
    experts: int
    chosen: int


# Takes the number of the call, the scores, and a function that computes `topk`.
_Choose = Callable[[int, torch.Tensor, Callable[[torch.Tensor], Any]], Any]


class _AtTopk(TorchFunctionMode):
    """Calls a function in place of `topk`."""

    def __init__(self, choose: _Choose) -> None:
        super().__init__()
        self._choose, self._calls = choose, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _TOPK:
            return func(*args, **kwargs)
        number, self._calls = self._calls, self._calls + 1
        scores, rest = (args[0], args[1:]) if args else (kwargs.pop("input"), ())
        return self._choose(number, scores, lambda given: func(given, *rest, **kwargs))


class Routers:
    """The routers of a model, in the order in which they are called.

    Args:
        model: Of Transformers, or of peft around one, in evaluation mode.

    Attributes:
        shape: [layers with experts, experts that each chooses], of one token.
        blocks: Of each layer with experts, the name of the module that holds them.
        experts: How many each of these layers has.
        kept: An empty array of what is chosen for tokens, [0, *shape], in the narrowest dtype that
            holds the numbers of all experts, and `UNKNOWN`.

    Raises:
        ModelError: The model has no experts, or chooses them in a way that cannot be replayed.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._replayed: torch.Tensor | None = None
        self._routers = self._found()
        self.shape = (len(self._routers), self._routers[0].chosen)
        self.blocks = [router.block for router in self._routers]
        self.experts = [router.experts for router in self._routers]
        narrow = max(self.experts) <= 2**7
        self.kept = np.zeros((0, *self.shape), dtype=np.int8 if narrow else np.int16)
        self._try()

    @contextmanager
    def recording(self) -> Iterator[list[torch.Tensor]]:
        """Within the block one forward pass may be made; a list that is filled at its end.

        Yields:
            In the end one tensor, [tokens of the pass, *shape].
        """
        chosen: list[torch.Tensor | None] = [None] * len(self._routers)
        filled: list[torch.Tensor] = []

        def note(layer: int, router: _Router) -> _Choose:
            def choose(number: int, scores: torch.Tensor, topk: Callable[..., Any]) -> Any:
                found = topk(scores)
                if number == router.call:
                    chosen[layer] = found[1].to(torch.int16)
                return found

            return choose

        with self._within(note):
            yield filled
        filled.append(torch.stack([each for each in chosen if each is not None], dim=1))

    @contextmanager
    def replaying(self, experts: torch.Tensor) -> Iterator[None]:
        """Within the block, forward passes choose these experts.

        Args:
            experts: [tokens of a pass, *shape]; `UNKNOWN` where the model chooses.
        """

        def force(layer: int, router: _Router) -> _Choose:
            return partial(_chosen, experts[:, layer].long(), router)

        before, self._replayed = self._replayed, experts
        try:
            with self._within(force):
                yield
        finally:
            self._replayed = before

    def again(self) -> AbstractContextManager[None]:
        """What layers are computed within the second time, to choose what they choose now."""
        return nullcontext() if self._replayed is None else self.replaying(self._replayed)

    @contextmanager
    def _within(self, make: Callable[[int, _Router], _Choose]) -> Iterator[None]:
        """Within the block, routers compute with what is made for each in place of `topk`."""
        with ExitStack() as stack:
            for layer, router in enumerate(self._routers):
                stack.enter_context(_computing(router.module, make(layer, router)))
            yield

    def _found(self) -> list[_Router]:
        """The routers, from one pass over a few tokens."""
        name, blocks = type(self._model).__name__, expert_blocks(self._model)
        if not blocks:
            raise ModelError(
                f"{name} has no experts whose choice could be replayed: set replay_routing to false"
            )
        calls: list[tuple[nn.Module, int, torch.Size, Any]] = []

        def note(module: nn.Module) -> _Choose:
            def choose(number: int, scores: torch.Tensor, topk: Callable[..., Any]) -> Any:
                found = topk(scores)
                calls.append((module, number, scores.shape, found[1]))
                return found

            return choose

        last: dict[str, _Router] = {}
        times: Counter[tuple[int, int]] = Counter()
        parts = [(block, self._model.get_submodule(block).modules()) for block in blocks]
        inside = {id(module): block for block, modules in parts for module in modules}
        modules = [m for m in self._model.modules() if id(m) in inside and _computes(m)]
        with ExitStack() as stack:
            for module in modules:
                stack.enter_context(_computing(module, note(module)))
            self._logits()
        for module, number, scores, indices in calls:
            times[id(module), number] += 1
            if indices.dim() == 2 and len(indices) == TRIED:
                block = inside[id(module)]
                last.pop(block, None)
                last[block] = _Router(module, block, number, scores[-1], indices.shape[1])
        routers = list(last.values())
        if not routers:
            raise _cannot(name, f"no module of {blocks[0]} chooses experts by torch.topk")
        if any(times[id(router.module), router.call] > 1 for router in routers):
            raise _cannot(name, "a router chooses more than once for a token")
        if len({router.chosen for router in routers}) > 1:
            raise _cannot(name, "its layers choose different numbers of experts")
        return routers

    @torch.no_grad()
    def _try(self) -> None:
        """Make sure that what is replayed is what the model computes with."""
        name = type(self._model).__name__
        with self.recording() as recorded:
            expected = self._logits()
        with self.replaying(recorded[0]):
            same = self._logits()
        others = torch.tensor(self.experts, device=same.device)
        with self.replaying((recorded[0].long() + 1) % others[:, None]):
            changed = self._logits()
        noise, effect = ((each - expected).abs().max() for each in (same, changed))
        if not noise <= 0.05 * expected.abs().max() or not changed.isfinite().all():
            raise _cannot(name, "its logits are others when its own experts are replayed")
        choice = any(router.chosen < router.experts for router in self._routers)
        if choice and not effect > 10 * noise:
            raise _cannot(name, "its logits do not depend on the experts that topk gives")

    @torch.no_grad()
    def _logits(self) -> torch.Tensor:
        vocabulary = self._model.config.get_text_config().vocab_size
        ids = torch.arange(1, 1 + TRIED, device=self._model.device) % vocabulary
        try:
            logits: torch.Tensor = self._model(input_ids=ids[None], use_cache=False).logits
        except FAILURES as error:
            why = f"its forward pass failed ({type(error).__name__}: {error})"
            raise _cannot(type(self._model).__name__, why) from error
        return logits


def replaying(
    routers: Routers | None, experts: torch.Tensor | None
) -> AbstractContextManager[None]:
    """Within the block, routers choose these experts, where there are both."""
    if routers is None or experts is None:
        return nullcontext()
    return routers.replaying(experts)


def _chosen(
    forced: torch.Tensor,
    router: _Router,
    number: int,
    scores: torch.Tensor,
    topk: Callable[[torch.Tensor], Any],
) -> Any:
    """What `topk` gives where experts are replayed.

    Args:
        forced: [N, chosen].
        router: Whose call it is.
        number: Of the call.
        scores: Of experts, or of groups of them.
        topk: Computes what the router would choose.
    """
    known = forced >= 0
    if number == router.call:
        indices = torch.where(known, forced, topk(scores)[1])
        return torch.return_types.topk((scores.gather(-1, indices), indices))
    if number < router.call and scores.dim() == 2 and router.experts % scores.shape[1] == 0:
        groups = forced.clamp(min=0) // (router.experts // scores.shape[1])
        bonus = torch.zeros_like(scores).scatter_reduce(
            -1, groups, known.to(scores.dtype) * torch.finfo(scores.dtype).max, "amax"
        )
        return topk(scores + bonus)  # the groups of these experts come first
    return topk(scores)


def _cannot(name: str, why: str) -> ModelError:
    return ModelError(
        f"{name}: the experts that it chose while sampling cannot be replayed ({why}); set "
        "replay_routing to false"
    )


def _computes(module: nn.Module) -> bool:
    """Whether it has a forward of its own (a list of modules has not)."""
    return type(module).forward is not nn.Module.forward


@contextmanager
def _computing(module: nn.Module, choose: _Choose) -> Iterator[None]:
    """Within the block, a module computes with a function in place of `topk`."""
    forward = module.forward

    def computed(*args: Any, **kwargs: Any) -> Any:
        with _AtTopk(choose):
            return forward(*args, **kwargs)

    before = vars(module).get("forward")
    vars(module)["forward"] = computed
    try:
        yield
    finally:
        if before is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = before
