"""Optimizers by name: classes like those of `torch.optim`, with the options of their constructors.

    adamw                                             torch.optim.AdamW
    {name: adamw, betas: [0.9, 0.95], eps: 1.0e-6}    the same with options
    torch.optim:Adafactor                             a class of a module, or of a file
    {name: torch.optim:Muon, others: adamw}           one for the matrices within the layers, and
                                                      one for all other weights

What runs have in common is not an option: the learning rate and the weight decay are settings of
the run, and are handed to each of them.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gymnast.errors import ConfigError, first_line
from gymnast.lookup import Names, did_you_mean

Spec = str | Mapping[str, Any]

OPTIMIZERS: Names[type[torch.optim.Optimizer]] = Names(
    "optimizer",
    "gymnast.optimizers",
    {"adamw": torch.optim.AdamW},
    base=torch.optim.Optimizer,
    wanted="subclass of torch.optim.Optimizer",
)

# Given by the run's settings.
_SETTINGS = {"lr": "learning_rate", "weight_decay": "weight_decay"}


@dataclass(frozen=True)
class NamedOptimizer:
    """A class of optimizers and its options.

    Attributes:
        name: As it was given.
        kind: The class.
        options: For its constructor.
        others: What updates the weights that are no matrices within the layers; None: `kind`
            does.
    """

    name: str
    kind: type[torch.optim.Optimizer]
    options: Mapping[str, Any]
    others: "NamedOptimizer | None" = None

    @property
    def classes(self) -> str:
        """The names of the classes, which tell whose state a checkpoint holds."""
        rest = f" and {self.others.classes}" if self.others else ""
        return self.kind.__name__ + rest

    def make(
        self, groups: Sequence[Mapping[str, Any]], weight_decay: float
    ) -> torch.optim.Optimizer:
        """Make one.

        Args:
            groups: Weights and their learning rate, as torch takes them: `params` and `lr`.
            weight_decay: Of all of them.

        Raises:
            ConfigError: It does not take these weights, or an option's value.
        """
        decays = "weight_decay" in arguments_of(self.kind)
        if weight_decay and not decays:
            raise ConfigError(
                f"{self.name} has no weight_decay; leave trainer.weight_decay out, got "
                f"{weight_decay}"
            )
        decay = {"weight_decay": weight_decay} if decays else {}
        make: Any = self.kind
        try:
            made: torch.optim.Optimizer = make(
                [dict(group) for group in groups], lr=groups[0]["lr"], **decay, **self.options
            )
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            AssertionError,
            RuntimeError,
        ) as error:
            options = f" with {dict(self.options)!r:.80}" if self.options else ""
            raise ConfigError(f"{self.name}{options}: {first_line(error)}") from error
        return made


def named_optimizer(given: Spec) -> NamedOptimizer:
    """What a name, or a name with options, means.

    Raises:
        ConfigError: Nothing has the name, the class is not one that a run can drive, or it does
            not take an option or its value.
        UserCodeError: Importing its module raised.
    """
    name, options = name_and_options(given)
    others = options.pop("others", None)
    if not OPTIMIZERS.knows(name) and isinstance(getattr(torch.optim, name, None), type):
        raise ConfigError(f"there is no optimizer {name!r}. Did you mean 'torch.optim:{name}'?")
    kind = OPTIMIZERS.find(name)
    _check_drivable(name, kind)
    check_options(name, options, arguments_of(kind), _SETTINGS)
    found = NamedOptimizer(name, kind, options)
    found.make([{"params": [torch.nn.Parameter(torch.zeros(2, 2))], "lr": 1e-3}], 0.0)
    if others is None:
        return found
    nested = isinstance(others, Mapping) and "others" in others
    if nested or not isinstance(others, str | Mapping):
        raise ConfigError(
            f"{name}: others must be one optimizer, a name or a mapping with a name and options, "
            f"got {others!r:.80}"
        )
    return NamedOptimizer(name, kind, options, named_optimizer(others))


def name_and_options(given: Spec) -> tuple[str, dict[str, Any]]:
    """A name and the options beside it; lists, which YAML has in place of tuples, become tuples.

    Raises:
        ConfigError: There is no name.
    """
    if isinstance(given, str):
        return given, {}
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"a mapping must have a name beside its options, got {dict(given)!r:.80}")
    return name, options


def check_options(
    name: str, options: Mapping[str, Any], known: Sequence[str], settings: Mapping[str, str]
) -> None:
    """Check the names of options.

    Args:
        name: Of what takes them.
        options: By name.
        known: Those that it takes; "**" among them: any.
        settings: Those that a setting of the section `trainer` gives, by name.

    Raises:
        ConfigError: One is not taken.
    """
    for option in options:
        if option in settings:
            raise ConfigError(f"{name}: leave {option} out, and set trainer.{settings[option]}")
        if option not in known and "**" not in known:
            free = [each for each in known if each not in settings]
            raise ConfigError(
                f"{name} has no option {option!r}.{did_you_mean(option, free)} There are: "
                f"{', '.join(free) or 'none'}."
            )


def arguments_of(kind: type[torch.optim.Optimizer]) -> list[str]:
    """What a class's constructor takes beside the weights; "**" where it takes anything."""
    _, _, *parameters = inspect.signature(kind.__init__).parameters.values()
    any_others = inspect.Parameter.VAR_KEYWORD
    return ["**" if p.kind is any_others else p.name for p in parameters]


def _check_drivable(name: str, kind: type[torch.optim.Optimizer]) -> None:
    """Check that a class can be driven by gradients and a learning rate.

    Raises:
        ConfigError: It cannot.
    """
    arguments = arguments_of(kind)
    if "lr" not in arguments and "**" not in arguments:
        raise ConfigError(
            f"{name} takes no learning rate (lr), which trainer.learning_rate is; name a class "
            "that does"
        )
    if kind is torch.optim.SparseAdam:
        raise ConfigError(f"{name} takes sparse gradients, and a policy's are dense; name adamw")
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{name} computes the loss again in each step (closure), and a batch's loss is "
            "computed once; name a class that steps by gradients alone"
        )


ADAMW = NamedOptimizer("adamw", torch.optim.AdamW, {})
