"""Floating-point operations (FLOPs) of training, and the rate of the device: what MFU is made of.

Model FLOPs utilization (MFU; Chowdhery et al. 2022, "PaLM", appendix B, arXiv:2204.02311) is the
FLOPs that a model needs for its forward and backward passes, divided by what the device could have
computed in the same time. A multiplication with its addition is 2 FLOPs. Two counts are made of the
same passes:

    nominal   as most trainers count. Every token of every trained context, prompts included and not
              shared: 6 x parameters that multiply (2 in the forward pass, 4 in the backward pass),
              the head's for every token, plus attention, 6 x heads x (width of a key + width of a
              value) x tokens attended to. Where both widths are one, that is the usual
              12 x layers x heads x width x the average context of a token.
    actual    what the learner computes. A prompt that several contexts share counts once, and its
              tokens attend once; a layer with a sliding window attends within it. The head counts
              for action tokens alone. Weights that are frozen have no gradient, which spares 2 of
              6; below the first trained weight there is no backward pass, which spares 4.

Both count an epoch as often as it is taken, and of a mixture of experts those that are chosen.
Neither counts what MFU excludes by definition, work that is done and not needed: activations that
are computed again, logits that are computed again for their gradient, padding. Nor do they count
passes without a gradient (log-probabilities of the old policy, a reference, a teacher), the
optimizer, or what is no matrix product (norms, activations, rotary embeddings). What does not go
through Transformers' attention interface (ALiBi) or is recurrent (Mamba, linear attention) counts
with its matrices alone.

The counts come from the modules of the model, whatever its family. Parameters of two and more
dimensions multiply, but for embeddings, which are looked up.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from gymnast.agents.models.attention import planned
from gymnast.agents.models.decoder import decoder_of
from gymnast.agents.models.experts import stacked_experts
from gymnast.agents.models.routing import Routers
from gymnast.trainers.learner.policy.micro_batches import MicroBatch
from gymnast.trainers.learner.policy.shares import sum_over_processes

# Dense bfloat16 TFLOP/s of tensor cores that add up in float32, at the boost clock, without
# sparsity. Sources: NVIDIA's data sheets of A100, A30, A40, A10, L4, L40, L40S, H100 (SXM, PCIe,
# NVL), H200 (SXM, NVL), GH200, HGX B200 and GB200 NVL72, of which those since Hopper print the
# double, with sparsity; for GeForce and RTX cards the appendices of the architecture white papers
# ("NVIDIA Ampere GA102", "NVIDIA Ada", "NVIDIA RTX Blackwell").
CARDS = {
    "A100": 312.0,
    "A30": 165.0,
    "A40": 149.7,
    "A10": 125.0,
    "L4": 121.0,
    "L40": 181.0,
    "L40S": 362.0,
    "H100 80GB HBM3": 989.0,  # SXM
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H200": 989.0,
    "H200 NVL": 835.0,
    "GH200": 989.0,
    "B200": 2250.0,
    "GB200": 2500.0,
    "RTX A6000": 154.8,
    "RTX 6000 Ada Generation": 364.2,
    "RTX 3090": 71.0,
    "RTX 3090 Ti": 80.0,
    "RTX 4090": 165.2,
    "RTX 5090": 209.5,
}
# What follows a card's name where it is another one, with other rates.
OTHER_CARD = r"(?! (?:Ti|SUPER|D|Laptop)\b)"
HALF = torch.bfloat16  # the dtype of `CARDS`; float16 is not trained in

_PROBE = "gymnast_shapes"


def peak_flops(
    device: torch.device, dtype: torch.dtype, peak_tflops: float | None = None
) -> float | None:
    """Return the FLOP/s of a device.

    Args:
        device: That computes.
        dtype: Of the weights. `CARDS` has the rates of bfloat16 alone: float32 is computed at rates
            that depend on settings of torch.
        peak_tflops: The rate, if it is given, in 10^12 FLOP/s.

    Returns:
        The rate; None where it is neither given nor known.
    """
    if peak_tflops is not None:
        return peak_tflops * 1e12
    if device.type != "cuda" or dtype != HALF:
        return None
    known = card_tflops(torch.cuda.get_device_name(device))
    return None if known is None else known * 1e12


def card_tflops(name: str) -> float | None:
    """Find a card in `CARDS` by the name that its driver reports; None if it is not there."""
    if "MIG" in name.split():  # a part of the card
        return None
    for card in sorted(CARDS, key=len, reverse=True):
        if re.search(rf"(?<![\w-]){re.escape(card)}(?!\w){OTHER_CARD}", name):
            return CARDS[card]
    return None


@dataclass(frozen=True)
class Computed:
    """The tokens and FLOPs that went through the model with a gradient.

    Attributes:
        tokens: Tokens of all contexts, prompts included and not shared.
        nominal_flops: See the top of this file; 0 where they are not counted.
        actual_flops: Likewise.
    """

    tokens: float = 0.0
    nominal_flops: float = 0.0
    actual_flops: float = 0.0

    def __add__(self, other: "Computed") -> "Computed":
        return Computed(
            self.tokens + other.tokens,
            self.nominal_flops + other.nominal_flops,
            self.actual_flops + other.actual_flops,
        )


@dataclass(frozen=True)
class Attention:
    """The attention of one layer.

    Attributes:
        heads: H.
        widths: D + Dv, of a key and a value.
        window: How many tokens back a token sees, itself included; None sees all.
        passes: 3 with a backward pass, which is two forward passes; else 1.
    """

    heads: int
    widths: int
    window: int | None
    passes: int

    def flops(self, positions: np.ndarray) -> float:
        """Return the FLOPs of tokens [N] at these positions of their contexts."""
        seen = positions + 1
        if self.window is not None:
            seen = np.minimum(seen, self.window)
        return float(2 * self.passes * self.heads * self.widths * seen.sum(dtype=np.float64))


@dataclass(frozen=True)
class ModelFlops:
    """The FLOPs of a model's passes.

    Attributes:
        parameters: Those that multiply for a token, the head's included.
        body: FLOPs of a token in the decoder, both passes, without attention.
        head: Likewise in the head.
        layers: Of attention.
        packed: True if what contexts share at their beginning is computed once.
    """

    parameters: float
    body: float
    head: float
    layers: list[Attention]
    packed: bool

    @classmethod
    def of(cls, model: Any, *, packed: bool) -> "ModelFlops":
        """Count those of a model; computes a pass over a few tokens.

        Args:
            model: Of Transformers, or of peft around one, whole and in evaluation mode.
            packed: See `ModelFlops`.

        Raises:
            ModelError: The model is a mixture of experts of which it cannot be known how many are
                chosen.
        """
        causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        decoder, share = decoder_of(causal), _shares_of_experts(causal)
        calls = _calls_in(causal, decoder)
        parameters = body = head = 0.0
        for name, module in decoder.named_modules():
            times = max(1, calls.number[module])  # 0: another module reads its weights
            reached = module in calls.reached or not calls.number[module]
            for weight, numel in _own_weights(name, module):
                numel *= share.get(module, 1.0) * times
                parameters += numel
                body += _matrix_flops(numel, weight, reached=reached)
        for name, module in causal.get_output_embeddings().named_modules():
            for weight, numel in _own_weights(name, module):
                parameters += numel
                head += _matrix_flops(numel, weight, reached=calls.reaches_head)
        return cls(parameters, body, head, calls.attention, packed)

    def of_batch(self, batch: MicroBatch) -> Computed:
        """Count what a forward and backward pass of a micro-batch needs."""
        positions = batch.packed.positions
        unshared = np.concatenate([positions[index] for index in batch.packed.index])
        computed = positions if self.packed else unshared
        nominal = 6.0 * self.parameters * len(unshared)
        nominal += sum(6 * each.heads * each.widths for each in self.layers) * float(
            (unshared + 1).sum(dtype=np.float64)
        )
        actual = self.body * len(computed) + self.head * len(batch.targets)
        actual += sum(layer.flops(computed) for layer in self.layers)
        return Computed(len(unshared), nominal, actual)


def count(batches: Iterable[MicroBatch], model: ModelFlops | None) -> Computed:
    """Count what went through a model in some micro-batches.

    Args:
        batches: Of this process.
        model: Whose FLOPs are counted; None counts tokens alone.
    """
    if model is not None:
        return sum((model.of_batch(batch) for batch in batches), start=Computed())
    return Computed(sum(len(index) for batch in batches for index in batch.packed.index))


def over_processes(computed: Computed, accelerator: Accelerator) -> Computed:
    """Add up what all processes computed; a collective call."""
    if accelerator.num_processes == 1:
        return computed
    return Computed(*sum_over_processes(accelerator, astuple(computed)))


def _matrix_flops(numel: float, weight: torch.Tensor, *, reached: bool) -> float:
    """The FLOPs of a token and a matrix: forward, its input's gradient, and its own."""
    return 2 * numel * (1 + reached + weight.requires_grad)


def _own_weights(name: str, module: nn.Module) -> Iterator[tuple[torch.Tensor, float]]:
    """The weights of a module that multiply, and how many numbers each has."""
    if isinstance(module, nn.Embedding) or _is_looked_up(name):
        return
    experts = "Experts" in type(module).__name__  # which have biases of two dimensions
    for own, weight in module.named_parameters(recurse=False):
        if isinstance(module, nn.Linear) and own == "weight":  # which may be packed: quantized
            yield weight, float(module.in_features * module.out_features)
        elif weight.dim() > (2 if experts else 1):
            yield weight, float(weight.numel())


def _is_looked_up(name: str) -> bool:
    """Tell if peft uses a module's weights as an embedding, or keeps it and computes another."""
    parts = name.split(".")
    return "lora_embedding_A" in parts or "original_module" in parts


def _shares_of_experts(causal: Any) -> dict[nn.Module, float]:
    """The share of a module's experts that a token uses, for modules that hold experts."""
    holders = {name.rpartition(".")[0] for name in stacked_experts(causal)}
    if not holders:
        return {}
    routers = Routers(causal)
    chosen = {
        block: routers.shape[1] / experts
        for block, experts in zip(routers.blocks, routers.experts, strict=True)
    }
    shares: dict[nn.Module, float] = {}
    for holder in holders:
        outermost = holder.partition(".base_layer")[0]  # with peft's wrappers around it
        share = chosen.get(outermost.rpartition(".")[0], 1.0)
        shares |= dict.fromkeys(causal.get_submodule(outermost).modules(), share)
    return shares


@dataclass
class _Calls:
    """The calls of modules in one pass.

    Attributes:
        attention: Those of attention through Transformers' interface.
        number: How often each module was called.
        reached: The modules whose input needs a gradient.
        reaches_head: True if the last hidden states need one.
    """

    attention: list[Attention] = field(default_factory=list)
    number: Counter[nn.Module] = field(default_factory=Counter)
    reached: set[nn.Module] = field(default_factory=set)
    reaches_head: bool = False

    def note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call; a hook of each module."""
        self.number[module] += 1
        if any(_needs_gradient(each) for each in (*args, *kwargs.values())):
            self.reached.add(module)


# Where the attention function, which Transformers knows by name, notes its calls.
_NOTED: ContextVar[_Calls] = ContextVar("gymnast_calls")


def _note_attention(
    _module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    sliding_window: int | None = None,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """Note the sizes, and attend to nothing: [B, H or Hkv, N, D] to [B, N, H, Dv]."""
    widths = query.shape[-1] + value.shape[-1]
    passes = 3 if any(map(_needs_gradient, (query, key, value))) else 1
    call = Attention(query.shape[1], widths, sliding_window, passes)
    _NOTED.get().attention.append(call)
    attended = query.new_zeros(*query.shape[:3], value.shape[-1])
    if passes > 1:
        attended.requires_grad_()  # as what it is made of
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(_PROBE, _note_attention)
AttentionMaskInterface.register(_PROBE, eager_mask)


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


@torch.enable_grad()
def _calls_in(causal: Any, decoder: Any) -> _Calls:
    """Run the decoder on two tokens, and note which modules it calls."""
    calls = _Calls()
    ids = torch.ones(1, 2, dtype=torch.long, device=causal.device)
    with ExitStack() as stack:
        for module in decoder.modules():
            hook = module.register_forward_pre_hook(calls.note, with_kwargs=True)
            stack.callback(hook.remove)
        stack.enter_context(planned(causal, _PROBE))
        stack.callback(_NOTED.reset, _NOTED.set(calls))
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
    calls.reaches_head = _needs_gradient(hidden)
    return calls
