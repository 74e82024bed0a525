"""The weights that the engine samples with, and how they follow those that are trained.

Where the trainer does not shard, both are one module. Where it does, a forward pass holds
collectives, which rollouts must not: the engine owns a whole copy in every process, and one
collective call between steps brings it up to date.
"""

from typing import Any

import torch

from gymnast.trainers.distributed.sharding import whole


class EngineWeights:
    """Keeps an engine's model equal to the trained one.

    Args:
        engine: The model that samples.
        trained: The model that is trained; the same one, or a sharded copy of it.
    """

    def __init__(self, engine: Any, trained: Any) -> None:
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        if engine is not trained:
            copies = dict(engine.named_parameters())
            for name, weight in trained.named_parameters():
                if weight.requires_grad:  # the others stay what they were
                    self._pairs.append((copies[name], weight))
            engine.requires_grad_(False)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the trained weights; a collective call, one weight at a time."""
        for copy, weight in self._pairs:
            copy.copy_(whole(weight))
