"""An advantage estimator for examples/best_of_group.yaml."""

import torch

from gymnast.trainers.algorithms.advantages import per_group


@per_group
def best_of_group(rewards: torch.Tensor) -> torch.Tensor:
    """What the best episodes of a group have over its mean; 0 for the others.  [G] -> [G]."""
    best = rewards == rewards.max()
    return best.float() * (rewards - rewards.mean())
