"""The rollouts that a run has left: which files there are, and their trajectories.

rollouts/step_00001.parquet        those of a step
rollouts/eval_00004.parquet        those of the evaluation after step 4
rollouts/eval_00004_exam.parquet   in the further environment "exam"
rollouts/eval_00000_warmup.parquet those of the evaluation after the warm-up
rollouts/step_00001.jsonl          as earlier versions wrote them (`old_rollouts.py`)
"""

import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from gymnast.errors import DataError
from gymnast.lookup import nearest_file
from gymnast.trainers.saving.old_rollouts import read_json_lines
from gymnast.trainers.saving.rollout_files import SavedTrajectory, read_rollouts

FOLDER = "rollouts"
ADVICE = "advice.jsonl"
EVALUATION_FILE = "evaluation.json"  # is in the folder of every evaluation on its own
UNDER_WAY = "episodes"  # in the folder of one that has not ended (`episode_journal.py`)


class RolloutFile(NamedTuple):
    """A file of rollouts.

    Attributes:
        path: Of the file.
        step: Whose rollouts they are, or after which step they were played.
        is_evaluation: Whether they are those of an evaluation.
    """

    path: Path
    step: int
    is_evaluation: bool


def rollout_files(run: Path) -> list[RolloutFile]:
    """The files of rollouts in a run's folder, by step and name; others are passed over."""
    found = list[RolloutFile]()
    for path in sorted((run / FOLDER).glob("*_*")):
        match = re.fullmatch(r"(step|eval)_(\d+)(_.+)?\.(jsonl|parquet)", path.name)
        if match is not None:
            found.append(RolloutFile(path, int(match[2]), match[1] == "eval"))
    return sorted(found, key=lambda file: (file.step, file.path.name))


def runs_nearby(folder: Path) -> str:
    """Which runs may be meant by a folder that is none, to follow a sentence; "" for no idea."""
    if not folder.is_dir():
        near = folder.parent if folder.is_file() else nearest_file(folder)
        return f". Did you mean {near}?" if near is not None else ""
    runs = sorted(each.name for each in folder.iterdir() if (each / FOLDER).is_dir())
    return f". The runs in it are {', '.join(runs)}" if runs else ""


def check_ended(folder: str | Path) -> None:
    """Check that a folder without rollouts is not that of an evaluation that has not ended.

    Raises:
        DataError: It is.
    """
    place = Path(folder).expanduser()
    if (place / EVALUATION_FILE).exists() and (place / UNDER_WAY).exists():
        raise DataError(
            f"{folder}: the evaluation has not ended; go on with `gymnast eval "
            f"{quote(str(folder))} --resume`"
        )


def load_rollouts(
    run: str | Path, *, step: int | None = None, evaluations: bool = False
) -> list[SavedTrajectory]:
    """Load the trajectories that a run has written.

        for saved in load_rollouts("runs/arithmetic", step=4):
            print(saved.group, saved.trajectory.reward, saved.trajectory.messages[-1])

    Args:
        run: A run's folder, or that of an evaluation on its own (RUN/evaluations/001); or one file,
            of which all are loaded.
        step: Only those of one step, or of the evaluations after it; by default those of all.
        evaluations: Those of evaluations, in place of those of steps. `SavedTrajectory.name` tells
            further environments from the run's own.

    Returns:
        Step by step, in the order in which they were written.

    Raises:
        DataError: There is no such run, it has no such rollouts, or a file cannot be read.
    """
    folder, kind = Path(run).expanduser(), "evaluations" if evaluations else "steps"
    if folder.is_file():
        return read_file(folder)
    if not folder.is_dir():
        raise DataError(f"{run}: there is no such folder; name the folder of a run")
    named = {file.path.stem: file for file in rollout_files(folder)}  # .parquet before .jsonl
    files = [file for file in named.values() if file.is_evaluation == evaluations]
    if not files:
        check_ended(run)
        raise DataError(
            f"{run}: has no rollouts of {kind} (in {FOLDER}/); a run writes them unless "
            "rollouts.keep is none"
        )
    chosen = [file for file in files if step is None or file.step == step]
    if not chosen:
        there = shown_steps(file.step for file in files)
        raise DataError(f"{run}: has no rollouts of {kind[:-1]} {step}; it has those of {there}")
    return [saved for file in chosen for saved in read_file(file.path)]


def shown_steps(steps: Iterable[int]) -> str:
    """Numbers as people read them: "1-4, 6"."""
    ordered = sorted(set(steps))
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def read_file(path: str | Path) -> list[SavedTrajectory]:
    """Read one file of rollouts, also one of JSON lines that an earlier version has written.

    Raises:
        DataError: It is not there, is torn, or is no file of rollouts.
    """
    path = Path(path).expanduser()
    return read_json_lines(path) if path.suffix == ".jsonl" else read_rollouts(path)
