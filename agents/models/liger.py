"""The kernels of liger-kernel, as `agents/models/fused.py` calls them; imported where they run."""

from importlib.metadata import version

import torch
from liger_kernel.ops.geglu import LigerGELUMulFunction
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction

from gymnast.agents.models.fused import Activation, Casting, Kernels


def _normalize(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, casting: Casting
) -> torch.Tensor:
    # Its gradient is a tensor of its own: what it would overwrite may be a residual's too.
    in_place = False
    result: torch.Tensor = LigerRMSNormFunction.apply(x, weight, eps, offset, casting, in_place)
    return result


def _gate(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    function = LigerSiLUMulFunction if activation == "silu" else LigerGELUMulFunction
    with torch.cuda.device_of(gate):  # Triton launches on the current device
        result: torch.Tensor = function.apply(gate, up)
    return result


def _rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if torch.is_grad_enabled():  # it overwrites them, and autograd, which may keep them, not told
        q, k = q.clone(), k.clone()
    with torch.cuda.device_of(q):
        turned: tuple[torch.Tensor, torch.Tensor] = LigerRopeFunction.apply(q, k, cos, sin)
    return turned


LIGER = Kernels(
    f"liger-kernel {version('liger-kernel')}", frozenset({"cuda"}), _normalize, _gate, _rotate
)
