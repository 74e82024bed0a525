"""Evaluations, compared: which of them can be, and in which settings they differ.

`sides.py` finds them, and what they have left.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from gymnast.agents.backends import CHAT
from gymnast.errors import ConfigError, DataError
from gymnast.trainers.config.files import load_config
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.evaluating.differences import OF_TRAINING, Difference, differences
from gymnast.trainers.evaluating.sides import Side
from gymnast.trainers.evaluating.targets import short_name
from gymnast.trainers.evaluation.pairs import Comparison, compare
from gymnast.trainers.saving.run_folder import CONFIG_FILE, EVALUATIONS

# What a run's saved model has in it.
OF_SAVED_MODEL = ("name", "lora", "quantization", "chat_template")


@dataclass(frozen=True)
class Compared:
    """Two sides, compared.

    Attributes:
        by_environment: The comparison in each environment that both were evaluated in.
        differences: Settings in which the sides differ.
        of_runs: Whether they are of two runs, which chance in training sets apart too.
    """

    by_environment: Mapping[str, Comparison]
    differences: Sequence[Difference]
    of_runs: bool


def compare_sides(first: Side, second: Side) -> Compared:
    """Compare two evaluations in each environment that both have.

    Raises:
        ConfigError: They were on different environments, or rewarded otherwise.
        DataError: No row pairs.
    """
    _check_same_task(first, second)
    found: dict[str, Comparison] = {}
    for name, rows in first.rows.items():
        others = second.rows.get(name, ())
        with suppress(ValueError):  # no row pairs
            found[name] = compare(rows, others, first.pass_reward)
    if not found:
        raise _nothing_pairs(first, second)
    return Compared(found, _differences(first, second), _of_two_runs(first, second))


def _check_same_task(first: Side, second: Side) -> None:
    """Refuse what rewards other things."""
    if first.config is None or second.config is None:
        return
    ours, theirs = _named(first.config), _named(second.config)
    if ours != theirs:
        raise ConfigError(
            f"--compare: {first.name} was on {ours}, and {second.name} on {theirs}; their rewards "
            f"say different things. {_command(first, second)}"
        )
    configs = (first.config, second.config)
    ours, theirs = (json.dumps(config.model_dump()["rewards"]) for config in configs)
    if ours != theirs:
        raise ConfigError(
            f"--compare: {first.name} has the rewards {ours:.200}, and {second.name} {theirs:.200};"
            f" they say different things. {_command(first, second)}"
        )


def _named(config: RunConfig) -> str:
    section = config.environment
    return ", ".join(entry.named for entry in section.mixture) or section.named


def _nothing_pairs(first: Side, second: Side) -> DataError:
    """Why no row of one evaluation is one of the other, and what to do."""
    texts = [
        {row.key[0] for rows in side.rows.values() for row in rows} for side in (first, second)
    ]
    why = "have no row in common"
    if texts[0] & texts[1]:
        why = "have in common only rows that their seeds tell apart, and played them with others"
    return DataError(
        f"--compare: {first.name} and {second.name} {why}, so none pair. {_command(first, second)}"
    )


def _command(first: Side, second: Side) -> str:
    """What evaluates the second model on the rows of the first side."""
    if first.config is None or second.config is None or not second.model:
        return "Evaluate both on the same rows, with the same seeds."
    target = str(first.place / CONFIG_FILE)
    agent = second.config.agent.model_extra or {}
    if second.config.agent.backend == CHAT:
        options = ["--endpoint", str(agent.get("base_url")), "--model", str(agent["model"])]
        key = agent.get("api_key_env", "OPENAI_API_KEY")
        options += ["--no-api-key"] if key is None else ["--api-key-env", str(key)]
    else:
        options = [f"model.name={second.model}"]
        if first.config.agent.backend == CHAT:
            options.append("agent={backend: transformers}")
    options += ["--output", _free_folder(first, second)]
    command = shlex.join(["gymnast", "eval", target, *options])
    return f"This evaluates the second model on the rows of the first: {command}"


def _free_folder(first: Side, second: Side) -> str:
    """A folder of neither side, which is not there yet."""
    name = f"{EVALUATIONS}/{short_name(second.model)}_on_the_rows_of_{short_name(str(first.place))}"
    numbered = (f"{name}-{number}" for number in count(2))
    return next(each for each in chain([name], numbered) if not Path(each).exists())


def _differences(first: Side, second: Side) -> list[Difference]:
    """The settings that differ, without the models that the sides are named with anyway."""
    if first.config is None or second.config is None:
        return []
    trained = first.run is not None and second.run is not None
    ours, theirs = (
        (_as_trained(first), _as_trained(second)) if trained else (first.config, second.config)
    )
    found = differences(ours, theirs, trained=trained)
    return [each for each in found if (each.first, each.second) != (first.model, second.model)]


def _as_trained(side: Side) -> RunConfig:
    """The config of a side, which says how its model was trained as that of its run does."""
    assert side.config is not None and side.run is not None
    if side.run == side.place:
        return side.config
    run = load_config(side.run / CONFIG_FILE)
    model = {name: getattr(run.model, name) for name in OF_SAVED_MODEL}
    update = {name: getattr(run, name) for name in OF_TRAINING}
    return side.config.model_copy(
        update={**update, "model": side.config.model.model_copy(update=model)}
    )


def _of_two_runs(first: Side, second: Side) -> bool:
    if first.run is None or second.run is None:
        return False
    return first.run.resolve() != second.run.resolve()
