"""The sides of a comparison: of which evaluation the episodes are, and what is to be said of it.

runs/arithmetic                             its last evaluation, or else the newest in
                                            runs/arithmetic/evaluations
runs/arithmetic/evaluations/001             an evaluation on its own
runs/arithmetic/rollouts/eval_00004.parquet the evaluation after a step
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from gymnast.agents.backends import CHAT
from gymnast.errors import ConfigError, DataError
from gymnast.trainers.config.files import load_config
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.data.rows import canonical
from gymnast.trainers.evaluating.keeping import OWN
from gymnast.trainers.evaluating.places import has_ended, numbered
from gymnast.trainers.evaluating.targets import evaluated_name, is_evaluation
from gymnast.trainers.evaluation.metrics import AFTER_WARMUP
from gymnast.trainers.evaluation.pairs import ScoredRow
from gymnast.trainers.saving.rollout_files import SavedTrajectory
from gymnast.trainers.saving.run_folder import CONFIG_FILE, EVALUATIONS, MODEL, RunFolder
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
        run: The folder of the run whose model was evaluated; None where it is of none.
        note: Which other evaluation may be meant, in words; empty where this is the one.
    """

    name: str
    model: str
    config: RunConfig | None
    place: Path
    rows: Mapping[str, Sequence[ScoredRow]]
    run: Path | None = None
    note: str = ""

    @property
    def shown_model(self) -> str:
        """What names its model, as people write it."""
        return shown_path(self.model) if Path(self.model).is_absolute() else self.model

    @property
    def pass_reward(self) -> float:
        """What an episode's reward must reach to pass."""
        return 1.0 if self.config is None else self.config.evaluation.pass_reward


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
    before, after = (_at(run, str(run), moment) for moment in (min(found), max(found)))
    return [before, replace(after, note=_outdated(run, max(found)))]


def _side(path: Path, given: str) -> Side:
    if path.is_file():
        if path.suffix not in (".parquet", ".jsonl"):
            raise ConfigError(
                f"--compare: {given} is no file of rollouts; name the folder of an evaluation or a "
                "run, or one of the files in its rollouts/ (eval_00004.parquet)"
            )
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
        side = _at(path, given, max(found))
        return replace(side, note=_outdated(path, max(found)) or _newer(path, side))
    ended = [each for each in numbered(path / EVALUATIONS) if has_ended(each)]
    if not ended:
        raise DataError(
            f"{given}: has no evaluation; evaluate it with `gymnast eval {given}`, and compare then"
        )
    return _side(ended[-1], f"{Path(given) / EVALUATIONS / ended[-1].name}")


def _outdated(run: Path, moment: Moment) -> str:
    """That a run was trained further after the last of its evaluations; "" where it was not."""
    steps = [int(line["step"]) for line in RunFolder(run).metrics() if "step" in line]
    last = max(steps, default=0)
    if last <= moment.step:
        return ""
    when = f"after step {moment.step}" if moment.step else "before training"
    when = "after its warm-up" if moment.after_warmup else when
    said = f"{run} was trained to step {last}, and this is its evaluation {when}"
    ended = [each for each in numbered(run / EVALUATIONS) if has_ended(each)]
    if ended:
        return f"{said}; a later one to name in its place: {ended[-1]}"
    if (run / MODEL).exists():
        return f"{said}; evaluate what it has learned: gymnast eval {quote(str(run))}"
    config = quote(str(run / CONFIG_FILE))
    return f"{said}; it has not ended: gymnast train {config} --resume"


def _newer(run: Path, side: Side) -> str:
    """Which evaluation on its own is newer than that of a run; "" where none is."""
    for folder in reversed(numbered(run / EVALUATIONS)):
        config = _config_of(folder) if has_ended(folder) else None
        known = None if config is None or side.config is None else side.config.environment.named
        if config is not None and config.environment.named == known:
            return f"a newer evaluation of {config.evaluation.rows} rows is in {folder}"
    return ""


def _config_of(folder: Path) -> RunConfig | None:
    """The config in a folder; None where there is none that can be read."""
    with suppress(ConfigError):
        return load_config(folder / CONFIG_FILE)
    return None


def _run_of(place: Path, config: RunConfig | None) -> Path | None:
    """The run whose model was evaluated, by an evaluation on its own or in the run itself."""
    if config is None:
        return None
    if not is_evaluation(place):
        return place
    model = Path(config.model.name)
    known = model.name == MODEL and config.agent.backend != CHAT
    return model.parent if known and (model.parent / CONFIG_FILE).exists() else None


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
    return Side(name, model, config, place, rows, _run_of(place, config))


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
