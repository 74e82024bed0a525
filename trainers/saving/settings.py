"""The settings of saving: when a checkpoint is saved, and how many are kept."""

from typing import Annotated

from pydantic import Field

from gymnast.trainers.base.settings import Count, Positive, Settings


class SavingSettings(Settings):
    """When checkpoints are saved; one is saved at the end of a run in any case."""

    checkpoint_every_s: Annotated[float, Field(ge=0)] = 600.0
    """Save a checkpoint after the first step that ends this many seconds after the last one; 0
    ignores the clock. One is saved at the end in any case."""
    checkpoint_every_steps: Count = 0
    """Save a checkpoint after every n-th step too; 0 does not."""
    keep_checkpoints: Positive = 2
    """How many of the newest checkpoints are kept."""
