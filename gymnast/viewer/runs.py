"""A run as the page sees it: its metrics, what it was, and its saved episodes.

Nothing that a run's folder names is imported or opened: config.yaml is read as data.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

from gymnast.errors import DataError
from gymnast.trainers.inspecting.index import Index
from gymnast.trainers.saving.run_folder import CONFIG_FILE, METRICS
from gymnast.trainers.saving.saved_runs import ADVICE, check_ended, rollout_files, runs_nearby

Line = Mapping[str, Any]
Columns = dict[str, list[float | None]]

_OF_THE_FOLDER = ("output_dir", "format_version")  # keys that say nothing of how a run was trained
_LONGEST_VALUE = 60


class Run:
    """A run's folder, or that of an evaluation on its own.

    Args:
        folder: Of the run.
        name: What the page calls it.

    Raises:
        DataError: The folder holds neither metrics nor rollouts.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        if not folder.is_dir():
            raise DataError(
                f"{folder}: there is no such folder; name the folder of a run{runs_nearby(folder)}"
            )
        if not (folder / METRICS).exists() and not rollout_files(folder):
            check_ended(folder)
            raise DataError(
                f"{folder}: not the folder of a run: it has neither {METRICS} nor rollouts; a "
                f"run's folder is its output_dir{runs_nearby(folder)}"
            )
        self._index: Index | None = None

    def stamp(self) -> str:
        """Changes whenever the run has written metrics, advice or rollouts."""
        files = [self.folder / METRICS, self.folder / ADVICE]
        files += [file.path for file in rollout_files(self.folder)]
        stats = [path.stat() for path in files if path.exists()]
        return f"{len(stats)}-{sum(stat.st_size for stat in stats)}-{_newest(stats)}"

    def index(self) -> Index:
        """Its saved episodes, as they are now; what was read of files that stay is kept.

        Raises:
            DataError: There are none.
        """
        if self._index is None:
            self._index = Index(self.folder)
        else:
            self._index.refresh()
        return self._index

    @property
    def has_episodes(self) -> bool:
        """Whether any episodes are saved."""
        return bool(rollout_files(self.folder))

    def head(self) -> dict[str, Any]:
        """What the page says of it before it reads anything else."""
        config = self._config()
        model = config.get("model")
        algorithm = _of(config, "algorithm", "name")
        return {
            "name": self.name,
            "folder": str(self.folder),
            "stamp": self.stamp(),
            "model": _text(model.get("name") if isinstance(model, Mapping) else model),
            "environment": _environment(config.get("environment")),
            "algorithm": _text(algorithm),
            "steps": _whole(_of(config, "trainer", "steps")),
            "settings": dict(_settings(config)),
            "advice": [
                {key: line.get(key) for key in ("step", "cause", "text")}
                for line in _lines(self.folder / ADVICE)
            ],
        }

    def metrics(self) -> dict[str, Any]:
        """Its metrics as columns: of steps, of evaluations, and of the warm-up.

        `minutes` are those of training: a step has the time until its end, an evaluation that of
        the step before it.
        """
        lines = list(_lines(self.folder / METRICS))
        spent = accumulate(_seconds(line) for line in lines)
        timed = [(line, seconds / 60) for line, seconds in zip(lines, spent, strict=True)]
        return {
            "steps": _series([each for each in timed if _kind(each[0]) == "step"]),
            "evaluations": _series([each for each in timed if _kind(each[0]) == "evaluation"]),
            "warmup": _series([each for each in timed if _kind(each[0]) == "warm-up"]),
        }

    def _config(self) -> Mapping[str, Any]:
        try:
            text = (self.folder / CONFIG_FILE).read_text(encoding="utf-8")
            config = yaml.safe_load(text)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return {}
        return config if isinstance(config, Mapping) else {}


def named_runs(folders: Sequence[str | Path]) -> list[Run]:
    """Runs with names that tell them apart: as much of the end of each path as that takes.

    Raises:
        DataError: A folder is not that of a run.
    """
    paths = list(dict.fromkeys(Path(folder).expanduser().resolve() for folder in folders))
    names = {path: path.name for path in paths}
    for depth in range(2, max(len(path.parts) for path in paths) + 1):
        taken = list(names.values())
        for path in paths:
            if taken.count(names[path]) > 1:
                names[path] = "/".join(path.parts[-depth:])
    return [Run(path, names[path]) for path in paths]


def _lines(path: Path) -> Iterator[Line]:
    """The lines of a JSON Lines file; the last one may be torn while a run writes it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, Mapping):
            yield value


def _kind(line: Line) -> str:
    if any(name.startswith("eval/") for name in line):
        return "evaluation"
    return "warm-up" if "warmup/step" in line else "step"


def _seconds(line: Line) -> float:
    """What a line adds to the time of training; evaluations add nothing."""
    value = _number(line.get("time/step_s")) if _kind(line) != "evaluation" else None
    return value or 0.0


def _series(timed: Sequence[tuple[Line, float]]) -> dict[str, Any]:
    names = dict.fromkeys(name for line, _ in timed for name in line if name != "step")
    columns: Columns = {name: [_number(line.get(name)) for line, _ in timed] for name in names}
    return {
        "step": [_whole(line.get("step")) or 0 for line, _ in timed],
        "minutes": [minutes for _, minutes in timed],
        "columns": columns,
    }


def _number(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if fits and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _of(config: Mapping[str, Any], section: str, key: str) -> Any:
    found = config.get(section)
    return found.get(key) if isinstance(found, Mapping) else None


def _settings(section: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """The dotted keys of a config with their values as JSON, but where the run is."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{before}{key}.")
        elif f"{before}{key}" not in _OF_THE_FOLDER:
            yield f"{before}{key}", json.dumps(value, default=str)[:_LONGEST_VALUE]


def _environment(section: Any) -> str | None:
    if not isinstance(section, Mapping):
        return _text(section)
    several = section.get("mixture") or section.get("compose")
    if several and isinstance(several, Sequence) and not isinstance(several, str):
        names = [each.get("id") if isinstance(each, Mapping) else each for each in several]
        return " + ".join(map(_environment_name, names))
    return _environment_name(section.get("id"))


def _environment_name(name: Any) -> str:
    """Of one in a file, without the folders."""
    text = str(name)
    return text.rpartition("/")[2] if ".py:" in text else text


def _newest(stats: Sequence[Any]) -> int:
    return max((stat.st_mtime_ns for stat in stats), default=0)
