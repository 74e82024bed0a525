"""The settings of learning: the optimizer's, and how a batch goes through the model."""

from typing import Annotated, Literal

from pydantic import Field

from gymnast.trainers.base.settings import Count, Limit, Number, Positive, PositiveNumber, Settings


class LearnerSettings(Settings):
    """How the policy learns from a batch."""

    learning_rate: PositiveNumber = 1e-6
    """The learning rate of AdamW."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    """The weight decay of AdamW."""
    max_grad_norm: Limit = 1.0
    """Longer gradients are scaled down to this norm."""
    warmup_steps: Count = 0
    """Optimisation steps over which the learning rate grows to its full value."""
    tokens_per_microbatch: Positive = 2048
    """Tokens in one forward and backward pass: packed, or padded where a model cannot be packed."""
    activations: Literal["auto", "keep", "recompute", "offload"] = "auto"
    """What becomes of what the layers compute, until the backward pass: `keep` it, `recompute` it
    from each layer's input (more time, much less memory), or `offload` these inputs to the host's
    memory too, on an accelerator. `auto` keeps where a step then fits into the memory there is."""
