"""Schedules: which share of its learning rate a step takes, by how much of the run is done.

A schedule is a function of `done`, the share of the run's steps (`trainer.steps`) that came before
this one: 0 in the first step, below 1 in the last. It returns what the learning rates are
multiplied by. All optimisation steps of a batch have the same `done`, and a step without any
optimisation step counts like the others, so that a run ends where its schedule does. A resumed run
goes on as it would have; with more `steps`, it goes on along the longer schedule.

The warm-up counts optimisation steps (`Optimizer`), and multiplies what the schedule gives.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

from gymnast.errors import ConfigError
from gymnast.lookup import Names
from gymnast.trainers.learner.optimizers.by_name import Spec, check_options, name_and_options

Schedule = Callable[[float], float]


def constant(done: float) -> float:
    """All of it, in every step."""
    return 1.0


def linear(done: float, *, final: float = 0.0) -> float:
    """Falls in a line from all of it towards `final`."""
    _check_share(final)
    return 1.0 - (1.0 - final) * done


def cosine(done: float, *, final: float = 0.0) -> float:
    """Falls along half a cosine from all of it towards `final`.

    Loshchilov and Hutter 2017 (arXiv:1608.03983), without restarts.
    """
    _check_share(final)
    return final + (1.0 - final) * (1.0 + math.cos(math.pi * done)) / 2.0


def _check_share(final: Any) -> None:
    if isinstance(final, bool) or not isinstance(final, Real) or not 0 <= float(final) <= 1:
        raise ConfigError(f"final must be a share of the learning rate, 0 to 1, got {final!r:.80}")


SCHEDULES: Names[Callable[..., float]] = Names(
    "schedule", "gymnast.schedules", {each.__name__: each for each in (constant, linear, cosine)}
)


def named_schedule(given: Spec) -> Schedule:
    """The schedule of a name (`cosine`), or of a name with options (`{name: cosine, final: 0.1}`).

    Raises:
        ConfigError: Nothing has the name, it has no such option, or its option or what it returns
            does not hold.
        UserCodeError: Importing its module raised.
    """
    name, options = name_and_options(given)
    function = SCHEDULES.find(name)
    parameters = inspect.signature(function).parameters.values()
    check_options(name, options, [p.name for p in parameters if p.kind is p.KEYWORD_ONLY], {})
    missing = [p.name for p in parameters if _is_required(p) and p.name not in options]
    if missing:
        raise ConfigError(
            f"{name} needs the option {missing[0]!r}: {{name: {name}, {missing[0]}: ...}}"
        )
    schedule = partial(_share, name, partial(function, **options))
    schedule(0.0)
    return schedule


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty


def _share(name: str, schedule: Schedule, done: float) -> float:
    try:
        share = schedule(done)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"schedule {name} raised {error!r:.200} where {done:g} of the run is done; it is "
            "called with that share, and with its options"
        ) from error
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share < math.inf:
        raise ConfigError(
            f"schedule {name} returns {share!r:.80} where {done:g} of the run is done; it must be "
            "a number >= 0, which multiplies the learning rate"
        )
    return float(share)
