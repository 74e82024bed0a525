"""What the trainer's settings must be, said before any training time is spent."""

from collections.abc import Sequence

from gymnast.errors import ConfigError
from gymnast.types import Sampling


def check_at_least(least: int, **settings: float) -> None:
    """Each setting must reach this."""
    for name, value in settings.items():
        if value < least:
            raise ConfigError(f"{name}: must be >= {least}, got {value}")


def check_positive(**settings: float) -> None:
    """Each setting must be above zero."""
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
