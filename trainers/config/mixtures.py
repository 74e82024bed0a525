"""The mixture of a run: its environments, each with its rows, and the rows of the whole.

Each environment's rows are its own (`data` of its entry, or those that it makes); or the run's
`data` has the rows of all, and their column `environment` says which one plays each.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from gymnast.envs import Environment, Mixture
from gymnast.envs.environment.rows import COLUMN
from gymnast.envs.mixture import check_weights, named_row
from gymnast.errors import ConfigError, DataError
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.config.environments import MakeEnvironment, find_environment, parts_of
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task_rows import (
    rows_of,
    rows_to_try,
    split_own,
    split_rows,
    try_an_episode,
)
from gymnast.trainers.config.task_sections import MixtureEntry, OneEnvironment
from gymnast.trainers.config.worked_rows import has_rows, with_worked_rows
from gymnast.trainers.data.mixture_rows import MixtureRows
from gymnast.trainers.data.rows import ChosenRows, DatasetRows, Row, Split

Maker = Callable[[OneEnvironment, str], MakeEnvironment]


class _Part(NamedTuple):
    """One environment of the mixture.

    Attributes:
        place: Its dotted key.
        section: With the settings of all.
        make_env: Makes it.
    """

    place: str
    section: MixtureEntry
    make_env: MakeEnvironment


class _Source(NamedTuple):
    """Where the rows of one environment come from.

    Attributes:
        env: The environment.
        rows: All of its rows; None: it makes them.
    """

    env: Environment
    rows: Sequence[Row] | None


class MixtureTask(NamedTuple):
    """What a run plays that has a mixture.

    Attributes:
        make_env: Makes the mixture.
        rows: To train on, and to evaluate with.
    """

    make_env: MakeEnvironment
    rows: Split


def weights_of(config: RunConfig) -> dict[str, float]:
    """The weights of a run's mixture, by the names of its environments.

    Raises:
        ConfigError: Two have one name, or a name cannot be one.
        UnknownEnvironment: There is no such environment.
    """
    named = []
    for place, section in parts_of(config.environment).items():
        assert isinstance(section, MixtureEntry)
        name = section.name or find_environment(section, place).__name__
        named.append((name, section.weight))
    try:
        return check_weights(named)
    except ConfigError as error:
        says = str(error).replace("(names=...)", "(name: ...)").removeprefix("Mixture: ")
        raise ConfigError(f"environment.mixture: {says}") from error


def prepare_mixture(config: RunConfig, maker: Maker, excluded: Sequence[Row]) -> MixtureTask:
    """Make the environments and the rows of a mixture, and try one row of each.

    Args:
        config: The run.
        maker: Gives what makes the environment of a section at a dotted key.
        excluded: Rows of further environments, which are not trained on.

    Raises:
        ConfigError: A setting does not hold.
        DataError: The rows cannot be read, or lack what the environment needs.
        UserCodeError: An environment's own code raised.
    """
    weights = weights_of(config)
    parts: dict[str, _Part] = {}
    for name, (place, section) in zip(weights, parts_of(config.environment).items(), strict=True):
        assert isinstance(section, MixtureEntry)
        if section.data is None and section.columns is not None:
            raise ConfigError(
                f"{place}.columns: are made of the rows of {place}.data, which is not set; name a "
                "file or a hub dataset there, or leave them out"
            )
        if section.data is not None and config.data is not None:
            raise ConfigError(
                f"{place}.data: cannot be set beside data.train ({config.data.train}), which has "
                "the rows of all environments; leave one of them out"
            )
        if section.settings.get("worked_turns") and config.data is not None:
            raise ConfigError(
                f"{place}.worked_turns: cannot be set where `data` has the rows of all "
                "environments; name the rows of each in environment.mixture (data: ...)"
            )
        parts[name] = _Part(place, section, maker(section, place))
    if config.data is not None:
        return _of_one_dataset(config, weights, parts, excluded)
    counts = _shares(config, weights)
    sources = {name: _source(part, counts[name]) for name, part in parts.items()}
    held_out = _split_all(config, sources, counts, excluded)
    evaluation = [row for split in held_out.values() for row in split.evaluation]
    splits = _split_all(config, sources, counts, [*evaluation, *excluded])
    makers = {}
    for name, part in parts.items():
        split = splits[name]
        makers[name] = with_worked_rows(
            part.make_env, split.training, [*evaluation, *excluded], place=part.place
        )
        source = part.section.data or part.section.named
        try_an_episode(makers[name], rows_to_try(split.training), source)
    trained = {name: split.training for name, split in splits.items()}
    rows = MixtureRows(weights, trained, seed=config.seed)
    named: list[Row] = [
        named_row(name, row) for name, split in splits.items() for row in split.evaluation
    ]
    return MixtureTask(partial(Mixture.of, weights, makers), Split(rows, named))


def _of_one_dataset(
    config: RunConfig,
    weights: Mapping[str, float],
    parts: Mapping[str, _Part],
    excluded: Sequence[Row],
) -> MixtureTask:
    """The task where `data` has the rows of all environments.

    Epochs have all rows, unless an entry has a weight: then the rows of each environment come by
    the weights.
    """
    makers = {name: part.make_env for name, part in parts.items()}
    make_env = partial(Mixture.of, weights, makers)
    rows = split_rows(config, make_env, excluded)
    assert config.data is not None and isinstance(rows.training, DatasetRows)
    by_name: dict[str, list[int]] = {name: [] for name in parts}
    whole = rows.training.in_order
    for row_index, row in enumerate(whole):
        by_name[row[COLUMN]].append(row_index)
    for name, row_indices in by_name.items():
        if not row_indices:
            raise DataError(
                f"{config.data.train}: no training row names {name!r} in its column {COLUMN!r}; "
                "leave it out of environment.mixture, or name other rows"
            )
        own = ChosenRows(whole, row_indices)
        try_an_episode(make_env, iter(own), config.data.train)
    if not any("weight" in part.section.model_fields_set for part in parts.values()):
        return MixtureTask(make_env, rows)
    sources = {
        name: DatasetRows(ChosenRows(whole, row_indices), seed=derive(config.seed, "mixture", name))
        for name, row_indices in by_name.items()
    }
    training = MixtureRows(weights, sources, seed=config.seed)
    return MixtureTask(make_env, Split(training, rows.evaluation))


def _source(part: _Part, count: int) -> _Source:
    """Where an environment's rows come from.

    Args:
        part: The environment.
        count: How many of its rows are evaluation rows.

    Raises:
        ConfigError: It has none.
        DataError: They cannot be read, or all of them would be evaluation rows.
    """
    env = part.make_env()
    if part.section.data is None and has_rows(type(env)):
        return _Source(env, None)
    rows, named = rows_of(part.section, part.place, env)
    if count >= len(rows):
        raise DataError(
            f"{named}: has {len(rows)} rows, and by the weights {count} of evaluation.rows are of "
            f"{part.place}, which leaves none to train on; lower evaluation.rows, or add rows"
        )
    return _Source(env, rows)


def _split_all(
    config: RunConfig,
    sources: Mapping[str, _Source],
    counts: Mapping[str, int],
    excluded: Sequence[Row],
) -> dict[str, Split]:
    """The rows of each environment; each has an order of its own."""
    return {
        name: split_own(
            source.env,
            source.rows,
            counts[name],
            seed=derive(config.seed, "mixture", name),
            evaluation_seed=config.evaluation.seed,
            excluded=excluded,
        )
        for name, source in sources.items()
    }


def _shares(config: RunConfig, weights: Mapping[str, float]) -> dict[str, int]:
    """How many of the evaluation rows each environment has: by the weights, and at least one.

    Raises:
        ConfigError: There are fewer rows than environments.
    """
    wanted = config.evaluation.rows or 0
    if not wanted:
        return dict.fromkeys(weights, 0)
    if wanted < len(weights):
        raise ConfigError(
            f"evaluation.rows: must be >= {len(weights)}, one for each environment of the mixture, "
            f"got {wanted}"
        )
    left = wanted - len(weights)
    exact = {name: left * weight / sum(weights.values()) for name, weight in weights.items()}
    shares = {name: 1 + int(number) for name, number in exact.items()}
    rest = sorted(exact, key=lambda name: int(exact[name]) - exact[name])
    for name in rest[: wanted - sum(shares.values())]:
        shares[name] += 1
    return shares
