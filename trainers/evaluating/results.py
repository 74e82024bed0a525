"""What evaluations have left, to be compared: of a run, of an evaluation on its own, of one file.

runs/arithmetic                             its last evaluation, or else the newest in
                                            runs/arithmetic/evaluations
runs/arithmetic/evaluations/001             an evaluation on its own
runs/arithmetic/rollouts/eval_00004.parquet the evaluation after a step
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from gymnast.agents.backends import CHAT
from gymnast.errors import ConfigError, DataError
from gymnast.trainers.config.files import load_config
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.data.rows import canonical
from gymnast.trainers.evaluating.differences import Difference, differences
from gymnast.trainers.evaluating.keeping import OWN
from gymnast.trainers.evaluating.places import has_ended
from gymnast.trainers.evaluating.targets import evaluated_name, is_evaluation, short_name
from gymnast.trainers.evaluation.metrics import AFTER_WARMUP
from gymnast.trainers.evaluation.pairs import Comparison, ScoredRow, compare
from gymnast.trainers.saving.rollout_files import SavedTrajectory
from gymnast.trainers.saving.run_folder import CONFIG_FILE, EVALUATIONS, MODEL
from gymnast.trainers.saving.saved_runs import RolloutFile, read_file, rollout_files, runs_nearby

_NAME = re.compile(r"eval_\d+(?:_(?P<environment>.+))?")


class Moment(NamedTuple):
    """When a run evaluated: after which step, and of step 0 whether its warm-up was over."""

    step: int
    after_warmup: bool = False


@dataclass(frozen=True)
class Side:
    """One of the evaluations that are compared.

    Attributes:
        name: What names it: the path that was given, and after which step where it is a run's.
        model: What names its model; empty where that is none that was saved.
        config: That of its run or evaluation; None where there is none.
        place: The folder of the config.
        rows: Those that finished, by environment.
    """

    name: str
    model: str
    config: RunConfig | None
    place: Path
    rows: Mapping[str, Sequence[ScoredRow]]

    @property
    def pass_reward(self) -> float:
        """What an episode's reward must reach to pass."""
        return 1.0 if self.config is None else self.config.evaluation.pass_reward


@dataclass(frozen=True)
class Compared:
    """Two sides, compared.

    Attributes:
        by_environment: The comparison in each environment that both were evaluated in.
        differences: Settings in which the sides differ.
    """

    by_environment: Mapping[str, Comparison]
    differences: Sequence[Difference]


def find_sides(paths: Sequence[str | Path]) -> list[Side]:
    """The evaluations that paths stand for; of one run, its first and its last one.

    Raises:
        ConfigError: There are too few, or one has not ended.
        DataError: One has no episodes, or they cannot be read.
    """
    if not paths:
        raise ConfigError("--compare: name the folders of two evaluations or runs, or of one run")
    if len(paths) > 1:
        return [_side(Path(path).expanduser(), str(path)) for path in paths]
    run = Path(paths[0]).expanduser()
    found = {} if run.is_file() or is_evaluation(run) else _by_moment(run)
    if len(found) < 2:
        raise ConfigError(
            f"--compare: {paths[0]} is one evaluation; name another one to compare it with"
        )
    return [_at(run, str(run), moment) for moment in (min(found), max(found))]


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
    return Compared(found, _differences(first, second))


def _side(path: Path, given: str) -> Side:
    if path.is_file():
        run = path.parent.parent
        named = [key for key, files in _by_moment(run).items() if path.name in _names(files)]
        return _of_files(run, given, [RolloutFile(path, 0, True)], *named)
    if not path.is_dir():
        raise DataError(
            f"{given}: there is no such folder; name that of an evaluation or a run"
            f"{runs_nearby(Path(given))}"
        )
    if is_evaluation(path):
        if not has_ended(path):
            raise ConfigError(
                f"{given}: the evaluation has not ended; go on with `gymnast eval {given} --resume`"
            )
        return _of_files(path, given, _evaluation_files(path))
    found = _by_moment(path)
    if found:
        return _at(path, given, max(found))
    own = path / EVALUATIONS
    numbered = [each for each in own.iterdir() if each.name.isdecimal()] if own.is_dir() else []
    ended = sorted((each for each in numbered if has_ended(each)), key=lambda each: int(each.name))
    if not ended:
        raise DataError(
            f"{given}: has no evaluation; evaluate it with `gymnast eval {given}`, and compare then"
        )
    return _side(ended[-1], f"{Path(given) / EVALUATIONS / ended[-1].name}")


def _evaluation_files(folder: Path) -> list[RolloutFile]:
    named = {file.path.stem: file for file in rollout_files(folder)}  # .parquet before .jsonl
    return [file for file in named.values() if file.is_evaluation]


def _by_moment(run: Path) -> dict[Moment, list[RolloutFile]]:
    """The files of a run's evaluations by when they were, the first one first."""
    found: dict[Moment, list[RolloutFile]] = {}
    for file in _evaluation_files(run):
        moment = Moment(file.step, _environment(file).startswith(AFTER_WARMUP))
        found.setdefault(moment, []).append(file)
    return found


def _names(files: Sequence[RolloutFile]) -> list[str]:
    return [file.path.name for file in files]


def _environment(file: RolloutFile) -> str:
    match = _NAME.fullmatch(file.path.stem)
    return OWN if match is None else match["environment"] or OWN


def _at(run: Path, given: str, moment: Moment) -> Side:
    """The evaluation of a run at a moment."""
    found = _by_moment(run)
    when = f"after step {moment.step}"
    if moment.step == 0 and Moment(0, after_warmup=True) in found:
        when = f"{'after' if moment.after_warmup else 'before'} the warm-up"
    return _of_files(run, f"{given} {when}", found[moment], moment)


def _of_files(
    place: Path, name: str, files: Sequence[RolloutFile], moment: Moment | None = None
) -> Side:
    config = load_config(place / CONFIG_FILE) if (place / CONFIG_FILE).exists() else None
    model = "" if config is None else _model(place, config, moment)
    alone = len(files) == 1  # a file that was named is compared whatever its environment is
    rows = {OWN if alone else _own_name(file): _scored(read_file(file.path)) for file in files}
    if not any(rows.values()):
        raise DataError(
            f"{name}: has no episodes (rollouts/ holds none); evaluate it again without "
            "rollouts.keep=none"
        )
    return Side(name, model, config, place, rows)


def _own_name(file: RolloutFile) -> str:
    """The name of a file's environment, the same before a warm-up and after it."""
    name = _environment(file)
    return name.removeprefix(AFTER_WARMUP).removeprefix("_") or OWN


def _model(place: Path, config: RunConfig, moment: Moment | None) -> str:
    """What names the model that was evaluated; "" for one that a run has trained further."""
    if moment is None or moment == (0, False):
        return evaluated_name(config)
    last = moment == max(_by_moment(place)) and moment.step > 0
    return str(place / MODEL) if last and (place / MODEL).exists() else ""


def _scored(saved: Iterable[SavedTrajectory]) -> list[ScoredRow]:
    by_row: dict[int, list[SavedTrajectory]] = {}
    for each in saved:
        if not each.trajectory.no_reward:
            by_row.setdefault(each.group, []).append(each)
    scored: dict[Any, ScoredRow] = {}
    for number, episodes in sorted(by_row.items()):
        first = episodes[0].trajectory
        key = (canonical(first.row), first.seed)
        rewards = [each.trajectory.reward for each in episodes]
        scored.setdefault(key, ScoredRow(key, number, first.row, rewards))
    return list(scored.values())


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
    trained = not (is_evaluation(first.place) or is_evaluation(second.place))
    found = differences(first.config, second.config, trained=trained)
    return [each for each in found if (each.first, each.second) != (first.model, second.model)]
