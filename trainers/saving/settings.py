"""The settings of saving: when a checkpoint is saved, how many are kept, and which rollouts are."""

from typing import Annotated, ClassVar, Literal

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


class RolloutKeeping(Settings):
    """Which rollouts are kept in rollouts/, one file a step and one an evaluation."""

    prefix: ClassVar[str] = "rollouts_"

    keep: Literal["all", "none"] = "all"
    """all, or none: then neither those of steps nor those of evaluations are written."""
    every_n: Positive = 1
    """Keep those of every n-th step only: n, 2n, ... Those of evaluations are kept in any case."""
    sample: Positive | None = None
    """How many episodes a file has at most: whole groups, drawn with the run's seed, while they
    fit; of a single group that is larger, its first episodes. None keeps all."""
