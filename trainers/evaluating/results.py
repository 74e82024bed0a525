"""What evaluations have left, to be compared: of a run, of an evaluation on its own, of one file.

runs/arithmetic                             the evaluation after its last step, or else the
                                            newest in runs/arithmetic/evaluations
runs/arithmetic/evaluations/001             an evaluation on its own
runs/arithmetic/rollouts/eval_00004.parquet the evaluation after a step
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnast.agents.backends import CHAT
from gymnast.errors import ConfigError, DataError
from gymnast.trainers.config.files import load_config
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.data.rows import canonical
from gymnast.trainers.evaluating.keeping import OWN
from gymnast.trainers.evaluating.places import has_ended
from gymnast.trainers.evaluating.targets import evaluated_name, is_evaluation
from gymnast.trainers.evaluation.metrics import AFTER_WARMUP
from gymnast.trainers.evaluation.pairs import Comparison, ScoredRow, compare
from gymnast.trainers.saving.rollout_files import SavedTrajectory
from gymnast.trainers.saving.run_folder import CONFIG_FILE, EVALUATIONS, MODEL
from gymnast.trainers.saving.saved_runs import RolloutFile, read_file, rollout_files

_NAME = re.compile(r"eval_\d+(?:_(?P<environment>.+))?")


@dataclass(frozen=True)
class Side:
    """One of the evaluations that are compared.

    Attributes:
        name: What names it: the path that was given, and after which step where it is a run's.
        model: What names its model.
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
        notes: Settings in which the sides differ, as sentences.
    """

    by_environment: Mapping[str, Comparison]
    notes: Sequence[str]


def find_sides(paths: Sequence[str | Path]) -> list[Side]:
    """The evaluations that paths stand for; of one run, those before and after its training.

    Raises:
        ConfigError: There are too few, or one has not ended.
        DataError: One has no episodes, or they cannot be read.
    """
    if not paths:
        raise ConfigError("--compare: name the folders of two evaluations or runs, or of one run")
    if len(paths) > 1:
        return [_side(Path(path).expanduser(), str(path)) for path in paths]
    run = Path(paths[0]).expanduser()
    steps = {} if run.is_file() or is_evaluation(run) else _by_step(run)
    if len(steps) < 2:
        raise ConfigError(
            f"--compare: {paths[0]} is one evaluation; name another one to compare it with"
        )
    both = (min(steps), max(steps))
    return [_of_files(run, f"{run} after step {step}", steps[step]) for step in both]


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
        if {row.key for row in rows} & {row.key for row in others}:
            found[name] = compare(rows, others, first.pass_reward)
    if not found:
        raise _nothing_pairs(first, second)
    return Compared(found, _notes(first, second))


def _side(path: Path, given: str) -> Side:
    if path.is_file():
        return _of_files(path.parent.parent, given, [_as_file(path)])
    if not path.is_dir():
        raise DataError(f"{given}: there is no such folder; name that of an evaluation or a run")
    if is_evaluation(path):
        if not has_ended(path):
            raise ConfigError(
                f"{given}: the evaluation has not ended; go on with `gymnast eval {given} --resume`"
            )
        return _of_files(path, given, _evaluation_files(path))
    steps = _by_step(path)
    if steps:
        return _of_files(path, f"{given} after step {max(steps)}", steps[max(steps)])
    own = path / EVALUATIONS
    numbered = [each for each in own.iterdir() if each.name.isdecimal()] if own.is_dir() else []
    ended = sorted((each for each in numbered if has_ended(each)), key=lambda each: int(each.name))
    if not ended:
        raise DataError(
            f"{given}: has no evaluation; evaluate it with `gymnast eval {given}`, and compare then"
        )
    return _side(ended[-1], f"{Path(given) / EVALUATIONS / ended[-1].name}")


def _as_file(path: Path) -> RolloutFile:
    return RolloutFile(path, 0, is_evaluation=True)


def _evaluation_files(folder: Path) -> list[RolloutFile]:
    named = {file.path.stem: file for file in rollout_files(folder)}  # .parquet before .jsonl
    return [file for file in named.values() if file.is_evaluation]


def _by_step(run: Path) -> dict[int, list[RolloutFile]]:
    """The files of a run's evaluations by step; those after a warm-up stand for no step."""
    found: dict[int, list[RolloutFile]] = {}
    for file in _evaluation_files(run):
        if not _environment(file).startswith(AFTER_WARMUP):
            found.setdefault(file.step, []).append(file)
    return found


def _environment(file: RolloutFile) -> str:
    match = _NAME.fullmatch(file.path.stem)
    return OWN if match is None else match["environment"] or OWN


def _of_files(place: Path, name: str, files: Sequence[RolloutFile]) -> Side:
    config = load_config(place / CONFIG_FILE) if (place / CONFIG_FILE).exists() else None
    model = "" if config is None else evaluated_name(config)
    if config is not None and (place / MODEL).exists():
        model = str(place / MODEL)
    alone = len(files) == 1  # a file that was named is compared whatever its environment is
    rows = {OWN if alone else _environment(file): _scored(read_file(file.path)) for file in files}
    if not any(rows.values()):
        raise DataError(
            f"{name}: has no episodes (rollouts/ holds none); evaluate it again without "
            "rollouts.keep=none"
        )
    return Side(name, model, config, place, rows)


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
        seeds = [None if side.config is None else side.config.seed for side in (first, second)]
        said = f" (seed is {seeds[0]} and {seeds[1]})" if seeds[0] != seeds[1] else ""
        why = f"have the same rows, but played them with different seeds{said}"
    return DataError(
        f"--compare: {first.name} and {second.name} {why}, so none pair. {_command(first, second)}"
    )


def _command(first: Side, second: Side) -> str:
    """What evaluates the second model on the rows of the first side."""
    if first.config is None or second.config is None:
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
    command = shlex.join(["gymnast", "eval", target, *options])
    return f"This evaluates the second model on the rows of the first: {command}"


def _notes(first: Side, second: Side) -> list[str]:
    """Settings that say how episodes are played, where they differ."""
    if first.config is None or second.config is None:
        return []
    ours, theirs = _played(first.config), _played(second.config)
    return [
        f"{key} is {_shown(ours.get(key))} in {first.name}, {_shown(theirs.get(key))} in "
        f"{second.name}"
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    ]


def _played(config: RunConfig) -> dict[str, Any]:
    sampled = config.evaluation.sampling(config.sampling.model_dump())
    named = {f"evaluation.{name}": value for name, value in sampled.items()}
    named |= {"evaluation.group_size": config.evaluation.group_size}
    named |= {"evaluation.pass_reward": config.evaluation.pass_reward}
    settings = {f"environment.{name}": v for name, v in config.environment.settings.items()}
    return settings | named


def _shown(value: Any) -> str:
    return "not set" if value is None else f"{value}"
