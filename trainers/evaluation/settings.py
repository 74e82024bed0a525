"""The settings of evaluations: when there is one, and what it measures."""

from typing import Annotated, Any, ClassVar

from pydantic import PlainValidator

from gymnast.trainers.base.settings import Count, Number, Positive, Settings
from gymnast.trainers.evaluation.tags import By


def _columns_or_expressions(by: Any) -> Any:
    texts = [*by, *by.values()] if isinstance(by, dict) else by
    if not isinstance(texts, list | tuple) or not all(t and isinstance(t, str) for t in texts):
        raise ValueError("must be a list of columns, or jmespath expressions by name")
    return by if isinstance(by, dict) else tuple(by)


class EvaluationSettings(Settings):
    """When a run evaluates, and what it measures."""

    prefix: ClassVar[str] = "eval_"

    every_steps: Count = 0
    """Evaluate every n steps, besides before the first and after the last; 0 evaluates at these
    two only."""
    keep_best: bool = True
    """Keep the weights of the evaluation with the highest mean reward in best/ of the run's folder:
    the model, and its adapters where it has any. Without room on the disk, a warning says so."""
    group_size: Positive = 1
    """Episodes per row."""
    pass_reward: Number = 1.0
    """An episode passes when its reward reaches this."""
    by: Annotated[By, PlainValidator(_columns_or_expressions)] = ()
    """What the metrics are divided by: columns of the rows, or jmespath expressions by name; see
    `trainers/evaluation/tags.py`."""
