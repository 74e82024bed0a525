"""How far apart two computations of the same logits are, beyond rounding.

Half precision rounds coarsely, and now and then chooses another expert for a token, whose logits
are then others altogether: what most tokens say counts there.
"""

import torch


def differ(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> float | None:
    """Compare logits [..., n, V] token by token.

    Args:
        ours: One computation.
        theirs: The other.
        dtype: Of the model's weights (logits may be given in another).

    Returns:
        None if they agree up to rounding, else their relative difference.
    """
    ours, theirs = ours.float(), theirs.float()
    size = torch.linalg.vector_norm(theirs, dim=-1).clamp(min=1e-6)
    relative = torch.linalg.vector_norm(ours - theirs, dim=-1) / size  # [..., n]
    exact = dtype in (torch.float32, torch.float64)
    difference = (relative.max() if exact else relative.median()).item()
    return None if difference < (1e-3 if exact else 0.05) else difference
