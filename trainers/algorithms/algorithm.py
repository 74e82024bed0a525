"""An algorithm: an advantage estimator, a loss, an aggregation, and what is added to them.

    algorithm: {name: dapo, group_size: 8}
    algorithm: {name: turn_level, gamma: 0.9, loss: cispo, clip_high: 3.0, epochs: 2}
    algorithm: {name: "my_module:my_estimator", my_option: 1}

A name is one of `PRESETS`, or that of an estimator, which then comes with the clipped loss and the
token mean. Options of the estimator, the loss and the aggregation stand beside the name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal, get_args

from gymnast.errors import ConfigError
from gymnast.lookup import is_source, no_such
from gymnast.trainers.algorithms.advantages import ESTIMATORS, Estimator
from gymnast.trainers.algorithms.aggregations import AGGREGATIONS, Aggregation
from gymnast.trainers.algorithms.distillation import Teacher
from gymnast.trainers.algorithms.importance import Importance, Level, make_importance
from gymnast.trainers.algorithms.kl import Kl
from gymnast.trainers.algorithms.losses import LOSSES, Loss
from gymnast.trainers.algorithms.registry import Part
from gymnast.trainers.base.key_hints import unknown_key
from gymnast.trainers.base.options import checked_options
from gymnast.trainers.base.settings import check_at_least, check_one_of
from gymnast.types import StopReason

OldLogprobs = Literal["trainer", "engine"]


class UnknownOptions(ConfigError):
    """Options that no part of an algorithm takes.

    Args:
        names: Theirs.
        options: What its parts take.
    """

    def __init__(self, names: Sequence[str], options: Sequence[str]) -> None:
        keys = list(signature(make_algorithm).parameters)[:-1]  # the last is **options
        self.names, self.known = names, [*options, "group_size", *keys]
        super().__init__("\n".join(unknown_key("algorithm", name, self.known) for name in names))


@dataclass(frozen=True)
class Algorithm:
    """What one batch of trajectories is learned by.

    Attributes:
        estimator: From the rewards of the batch to an advantage of each turn.
        loss: From log-probabilities and advantages to a loss of each action token.
        aggregation: How the tokens' losses are summed.
        kl: A penalty for moving away from the model before training, or None.
        teacher: Whom the policy learns from beside its rewards, or None.
        entropy_bonus: How much of each token's entropy, in nats, is taken from its loss.
        old_logprobs: What the loss compares the policy with: "trainer", its own log-probabilities
            before the first optimisation step of the batch, or "engine", those that the agent
            reported.
        importance: How each token's loss is weighted by how much likelier the token was to the
            trainer than to the engine, or None.
        compares_members: Whether the estimator needs groups of two and more.
        compares_states: Whether the estimator needs what turns act in.
        masked_stop_reasons: Episodes that ended so are in the advantages of their group, and
            neither in the loss nor in its normaliser.
        epochs: How often a batch is gone through.
        minibatches: Into how many optimisation steps an epoch is divided, by groups.
        demonstration_weight: What the mean negative log-likelihood of a demonstration's token
            counts in the loss of each optimisation step.
    """

    estimator: Estimator
    loss: Loss
    aggregation: Aggregation
    kl: Kl | None = None
    teacher: Teacher | None = None
    entropy_bonus: float = 0.0
    old_logprobs: OldLogprobs = "trainer"
    importance: Importance | None = None
    compares_members: bool = False
    compares_states: bool = False
    masked_stop_reasons: frozenset[StopReason] = frozenset()
    epochs: int = 1
    minibatches: int = 1
    demonstration_weight: float = 0.0

    @property
    def all_tokens_train(self) -> bool:
        """Whether tokens without an advantage have a gradient too."""
        in_loss = self.kl_in("loss") is not None or self.taught_exactly
        return self.entropy_bonus != 0 or in_loss

    @property
    def taught_exactly(self) -> bool:
        """Whether the divergence from a teacher is in the loss."""
        return self.teacher is not None and self.teacher.is_exact

    @property
    def uses_hints(self) -> bool:
        """Whether a teacher reads hints that the policy does not see."""
        return self.teacher is not None and self.teacher.uses_hints

    def kl_in(self, place: str) -> Kl | None:
        """The penalty, where it is in this place."""
        return self.kl if self.kl is not None and self.kl.place == place else None

    def check_group_size(self, group_size: int, name: str = "group_size") -> None:
        """Check that the estimator has something to compare.

        Args:
            group_size: Episodes a row.
            name: Of the setting, for the error.

        Raises:
            ConfigError: It is below 1, or 1 where members are compared with one another.
        """
        check_at_least(1, **{name: group_size})
        if self.compares_members and group_size < 2:
            raise ConfigError(
                f"{name}: must be >= 2, got {group_size}: the estimator compares the episodes of "
                "a row with one another. Set it to 2 or more, or choose an estimator that compares "
                "the whole batch, as reinforce_pp does."
            )

    def check_compares_members(self, name: str) -> None:
        """Check that a group whose members are alike teaches nothing.

        Args:
            name: Of the setting that relies on it, for the error.

        Raises:
            ConfigError: The estimator does not compare the members of a group, or there is a
                teacher.
        """
        if self.teacher is not None:
            raise ConfigError(
                f"{name}: does not go with a teacher, from whom every group learns, whatever its "
                f"rewards are. Leave {name} out, or algorithm.teacher."
            )
        if not self.compares_members:
            raise ConfigError(
                f"{name}: needs an estimator that compares the episodes of a row with one another, "
                "as grpo and rloo do: another one may learn from a group whose rewards are all "
                f"alike. Leave {name} out, choose such an estimator, or mark your own with "
                "@compares_members."
            )


@dataclass(frozen=True)
class Preset:
    """A published algorithm as parts and their options.

    Attributes:
        estimator: By name.
        loss: By name.
        aggregation: By name.
        options: Of these.
        masked_stop_reasons: See `Algorithm`.
    """

    estimator: str
    loss: str = "clipped"
    aggregation: str = "token_mean"
    options: Mapping[str, Any] = field(default_factory=dict)
    masked_stop_reasons: Sequence[StopReason] = ()


_TOO_LONG = (StopReason.max_tokens, StopReason.context)
PRESETS: dict[str, Preset] = {
    "grpo": Preset("grpo"),
    "dr_grpo": Preset("dr_grpo", aggregation="constant"),
    "dapo": Preset("grpo", options={"clip_high": 0.28}, masked_stop_reasons=_TOO_LONG),
    "rloo": Preset("rloo"),
    "gspo": Preset("grpo", loss="gspo", aggregation="sequence_mean"),
    "cispo": Preset("grpo", loss="cispo"),
    "reinforce_pp": Preset("reinforce_pp"),
    "gdpo": Preset("gdpo"),
    "rejection": Preset("rejection", loss="likelihood"),
}


def make_algorithm(
    name: str = "grpo",
    *,
    estimator: str | Estimator | None = None,
    loss: str | Loss | None = None,
    aggregation: str | Aggregation | None = None,
    kl: Kl | None = None,
    teacher: Teacher | None = None,
    entropy_bonus: float = 0.0,
    old_logprobs: OldLogprobs | None = None,
    importance_cap: float | None = None,
    importance_bounds: Sequence[float] | None = None,
    importance_level: Level = "token",
    masked_stop_reasons: Sequence[StopReason] | None = None,
    epochs: int = 1,
    minibatches: int = 1,
    demonstration_weight: float = 0.0,
    **options: Any,
) -> Algorithm:
    """Put an algorithm together.

    Args:
        name: One of `PRESETS`, an estimator's name, or "module:function" of an estimator.
        estimator: In place of that of the name.
        loss: In place of that of the name; also "module:function".
        aggregation: In place of that of the name; also "module:function".
        kl: See `Algorithm` for this and what follows.
        teacher: Required by what learns from nothing else ("distillation").
        entropy_bonus: In nats.
        old_logprobs: By default what the loss is made for.
        importance_cap: See `Importance` for this and the next two; not with the engine's
            log-probabilities.
        importance_bounds: Two numbers.
        importance_level: Of the cap and the bounds.
        masked_stop_reasons: By default those of the name.
        epochs: At least 1.
        minibatches: At least 1.
        demonstration_weight: At least 0; needs the demonstrations of a `warmup`.
        **options: Of the estimator, the loss and the aggregation.

    Raises:
        ConfigError: There is no such part, none of them takes such an option, a number is out of
            its range, or importance is asked for beside the engine's log-probabilities.
        UserCodeError: A module of the user's raised while it was imported.
    """
    check_at_least(1, epochs=epochs, minibatches=minibatches)
    check_at_least(0, demonstration_weight=demonstration_weight)
    importance = make_importance(importance_level, importance_cap, importance_bounds)
    preset = _preset(name)
    credit = ESTIMATORS.find(preset.estimator if estimator is None else estimator)
    of_tokens = LOSSES.find(preset.loss if loss is None else loss)
    summed = AGGREGATIONS.find(preset.aggregation if aggregation is None else aggregation)
    checked = _checked_options([credit, of_tokens, summed], preset, options)
    _check_teacher(teacher, credit, epochs * minibatches)
    masked = preset.masked_stop_reasons if masked_stop_reasons is None else masked_stop_reasons
    return Algorithm(
        credit.bind(checked),
        of_tokens.bind(checked),
        summed.bind(checked),
        kl=kl,
        teacher=teacher,
        entropy_bonus=entropy_bonus,
        old_logprobs=_old_logprobs(old_logprobs, importance, of_tokens),
        importance=importance,
        compares_members=credit.says("compares_members"),
        compares_states=credit.says("compares_states"),
        masked_stop_reasons=frozenset(masked),
        epochs=epochs,
        minibatches=minibatches,
        demonstration_weight=demonstration_weight,
    )


def as_algorithm(given: "str | Estimator | Algorithm") -> Algorithm:
    """An algorithm by its name, around an estimator, or as it is.

    Raises:
        ConfigError: There is none of this name.
    """
    if isinstance(given, Algorithm):
        return given
    if not isinstance(given, str):
        return make_algorithm(estimator=given)
    _preset(given, "algorithm")
    return make_algorithm(given)


def names() -> list[str]:
    """What `make_algorithm` takes as a name, besides "module:function"."""
    return sorted({*PRESETS, *ESTIMATORS.known()})


def _check_teacher(teacher: Teacher | None, estimator: Part[Any], steps: int) -> None:
    """Check that there is a teacher where one is needed, and what it can teach.

    Raises:
        ConfigError: There is none; or the policy is its own exact teacher, and changes between the
            `steps` of a batch.
    """
    if teacher is None:
        if estimator.says("needs_teacher"):
            raise ConfigError(
                "algorithm.teacher: is required by distillation, which learns from nothing else; "
                "add teacher: {model: ...}, another model's name, base or policy"
            )
    elif teacher.is_policy and teacher.is_exact and steps > 1:
        raise ConfigError(
            f"algorithm.epochs and algorithm.minibatches: make {steps} optimisation steps of a "
            "batch, between which the policy that is its own exact teacher changes; set both to 1, "
            "or algorithm.teacher.estimator to sampled, or algorithm.teacher.model to base"
        )


def _old_logprobs(
    given: OldLogprobs | None, importance: Importance | None, loss: Part[Any]
) -> OldLogprobs:
    """What ratios compare with; by default what the loss is made for.

    Raises:
        ConfigError: It is neither of the two, or contradicts importance weights.
    """
    if given is None:
        weighted = loss.says("against_engine") and importance is None
        return "engine" if weighted else "trainer"
    check_one_of(get_args(OldLogprobs), old_logprobs=given)
    if given == "engine" and importance is not None:
        key = "importance_bounds" if importance.cap is None else "importance_cap"
        raise ConfigError(
            f"old_logprobs: must be trainer with {key}, got engine: it weights tokens by the ratio "
            "of the trainer to the engine, which ratios against the engine already contain. Leave "
            "one of the two out."
        )
    return given


def _preset(name: str, field: str = "algorithm.name") -> Preset:
    if name in PRESETS:
        return PRESETS[name]
    if is_source(name) or ESTIMATORS.knows(name):
        return Preset(name)
    raise ConfigError(f"{field}: {no_such('algorithm', name, names())}")


def _checked_options(
    parts: Sequence[Part[Any]], preset: Preset, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Every option of the parts: as given, else the preset's, else its default.

    What is given is checked by the annotations of the part that takes it.

    Raises:
        ConfigError: No part takes it, or it is not what the part takes.
    """
    fields: dict[str, Any] = {name: kind for part in parts for name, kind in part.options.items()}
    if unknown := [name for name in options if name not in fields]:
        raise UnknownOptions(unknown, list(fields))
    given = {name: value for name, value in preset.options.items() if name in fields}
    return checked_options(fields, given | dict(options), "algorithm")
