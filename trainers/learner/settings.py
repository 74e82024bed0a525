"""The settings of learning: the optimizer's, and how a batch goes through the model."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from gymnast.errors import ConfigError
from gymnast.trainers.base.config_errors import NAMED
from gymnast.trainers.base.settings import (
    AutoPositive,
    AutoPositiveNumber,
    Count,
    Limit,
    Number,
    PositiveNumber,
    Settings,
)
from gymnast.trainers.data.input_paths import PART
from gymnast.trainers.learner.optimizers.by_name import Spec, named_optimizer
from gymnast.trainers.learner.optimizers.schedules import named_schedule


def _means(find: Callable[[Spec], Any]) -> BeforeValidator:
    """Check that a name means something."""

    def check(given: Spec) -> Spec:
        if not isinstance(given, str | dict):
            shown = "nothing" if given is None else f"{given!r:.80}"
            why = f"must be a name, or a mapping with a name and options, got {shown}"
            raise PydanticCustomError(NAMED, "{why}", {"why": why})
        try:
            find(given)
        except ConfigError as error:
            raise PydanticCustomError(NAMED, "{why}", {"why": str(error)}) from error
        return given

    return BeforeValidator(check)


class LearnerSettings(Settings):
    """How the policy learns from a batch."""

    learning_rate: PositiveNumber = 1e-6
    """The learning rate at full strength."""
    adapter_learning_rate: PositiveNumber | None = None
    """The learning rate of adapters, where it is another one: those of LoRA learn with about ten
    times what all weights learn with."""
    schedule: Annotated[str | dict[str, Any], PART, _means(named_schedule)] = "constant"
    """How the learning rates change over the run: "constant", "linear", "cosine" (both fall, to 0
    or to `{name: cosine, final: 0.1}`), or "module:function" or "path/to/file.py:function"."""
    optimizer: Annotated[str | dict[str, Any], PART, _means(named_optimizer)] = "adamw"
    """What updates the float32 master weights: "adamw", or "module:Class" or
    "path/to/file.py:Class" of a `torch.optim.Optimizer`; with options
    `{name: adamw, betas: [0.9, 0.95], eps: 1.0e-6}`."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    """The weight decay of the optimizer; AdamW's is decoupled from the gradient."""
    max_grad_norm: Limit = 1.0
    """Longer gradients are scaled down to this norm."""
    warmup_steps: Count = 0
    """Optimisation steps over which the learning rates grow to their full value."""
    scale_by_teaching: bool | None = None
    """Multiply a step's learning rate by the share of its episodes that have an advantage, so that
    the few failures of a policy that mostly succeeds make a small step. None: in RL after a warm-up
    alone."""
    tokens_per_microbatch: AutoPositive = None
    """Tokens in one forward and backward pass: packed, or padded where a model cannot be packed.
    "auto", or None: 2,048 on a CPU; on a GPU as many as fit into `memory`, up to 65,536, or up to
    8,192 with `activations: recompute` or `offload`."""
    memory: Annotated[Number, Field(gt=0, le=1)] = 0.9
    """The share of the memory that a training step may take: of what is free and what the run's
    weights and optimizer hold."""
    replay_routing: bool = False
    """Choose in training the experts that the engine chose for each token while sampling."""
    activations: Literal["auto", "keep", "recompute", "offload"] = "auto"
    """What becomes of what the layers compute, until the backward pass: `keep` it, `recompute` it
    from each layer's input (more time, much less memory), or `offload` these inputs to the host's
    memory too, on an accelerator. `auto` keeps it where a step then fits into `memory` (on a GPU
    with micro-batches of 8,192 tokens, or of the whole batch), else recomputes or offloads it."""
    peak_tflops: AutoPositiveNumber = None
    """The rate of one device in 10^12 floating-point operations a second, which `perf/mfu` is a
    share of; auto: the data sheet's for bfloat16, where the card is known, else no `perf/mfu`."""

    @property
    def rate_of_adapters(self) -> float:
        """The learning rate of adapters."""
        own = self.adapter_learning_rate
        return self.learning_rate if own is None else own
