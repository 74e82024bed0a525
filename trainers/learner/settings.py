"""The settings of learning: the optimizer's, and how a batch goes through the model."""

from typing import Annotated

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
    gradient_checkpointing: bool = False
    """Compute the layers a second time in the backward pass, which takes longer and less
    memory."""
