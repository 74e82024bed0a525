"""A linear layer of 4-bit weights that computes one product, whoever calls it and in any precision.

Only this module imports bitsandbytes, which is optional: import it where a model is quantised.
"""

import bitsandbytes
import torch
from torch.nn import functional as F


class ExactLinear4bit(bitsandbytes.nn.Linear4bit):
    """A `Linear4bit` of one base for sampling and training, which computes in float64 too.

    bitsandbytes packs a layer's weights for a faster kernel as soon as a CPU with AVX512-BF16
    computes it without gradients. That kernel rounds the scales to bfloat16, so that sampling and
    training would have two different bases, and passes no gradients on. `exact` turns it off.
    """

    def exact(self) -> None:
        """Keep the weights as they were quantised, and compute in the dtype of the input."""
        self.support_avx512bf16_for_cpu = False
        self.compute_dtype, self.compute_type_is_set = None, True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product [..., out] of x [..., in] and the dequantised weights, in the dtype of x."""
        if x.dtype != torch.float64:
            product: torch.Tensor = super().forward(x)
            return product
        with torch._C.DisableTorchFunction():  # `in_float64` would convert scales and codes
            weight = dequantize(self.weight)
        return F.linear(x, weight.double(), None if self.bias is None else self.bias.double())


def dequantize(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight as it is multiplied with: [out, in], in the dtype that it was quantised from.

    Args:
        weight: A `Params4bit`, quantised.
    """
    plain: torch.Tensor = bitsandbytes.functional.dequantize_4bit(
        weight.data,
        weight.quant_state,  # type: ignore[attr-defined]
    )
    return plain
