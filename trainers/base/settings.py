"""What the trainer's settings must be, said before any training time is spent."""

from collections.abc import Sequence
from numbers import Real

from gymnast.errors import ConfigError
from gymnast.types import Sampling

# Above this, a few of AdamW's steps are longer than most weights.
HIGHEST_LEARNING_RATE = 0.01


def check_numbers(**settings: float) -> None:
    """Each setting must be a number, NumPy's included."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigError(f"{name}: must be a number, got {value!r:.100}")


def unusual(learning_rate: float, rows_per_step: int, rows: int | None) -> list[str]:
    """Sentences about settings that are valid but hardly intended.

    Args:
        learning_rate: Of AdamW.
        rows_per_step: Over all processes.
        rows: How many there are to train on; None where they are made without end.
    """
    found = []
    if learning_rate > HIGHEST_LEARNING_RATE:
        found.append(
            f"learning_rate: {learning_rate:g} is far above what language models learn with (1e-6 "
            "to 1e-5 for all weights, 1e-5 to 1e-3 for adapters); lower it, or the first steps "
            "destroy the model"
        )
    if rows is not None and rows_per_step > rows:
        found.append(
            f"rows_per_step: {rows_per_step} is more than the {rows} training rows, so a step has "
            f"each row up to {-(-rows_per_step // rows)} times; lower it, or give more rows"
        )
    return found


def check_at_least(least: int, **settings: float) -> None:
    """Each setting must reach this."""
    check_numbers(**settings)
    for name, value in settings.items():
        if value < least:
            raise ConfigError(f"{name}: must be >= {least}, got {value}")


def check_positive(**settings: float) -> None:
    """Each setting must be above zero."""
    check_numbers(**settings)
    for name, value in settings.items():
        if not value > 0:
            raise ConfigError(f"{name}: must be > 0, got {value}")


def check_one_of(known: Sequence[str], **settings: str) -> None:
    """Each setting must be one of these."""
    for name, value in settings.items():
        if value not in known:
            raise ConfigError(f"{name}: must be one of {', '.join(known)}, got {value!r}")


def check_sampling(sampling: Sampling) -> None:
    """The loss needs the probability of each token under the distribution it was drawn from."""
    if sampling.temperature == 0:
        raise ConfigError(
            "sampling.temperature: must be > 0 while training, got 0: greedy episodes of one row "
            "are all alike. For greedy evaluation set evaluation.temperature."
        )
    for name in ("top_p", "top_k", "min_p", "repetition_penalty"):
        given, neutral = getattr(sampling, name), getattr(Sampling(), name)
        if given != neutral:
            raise ConfigError(
                f"sampling.{name}: must be {neutral} while training, got {given}: the loss would "
                "compare probabilities of the filtered distribution with those of the whole one. "
                f"For evaluation alone set evaluation.{name}."
            )
