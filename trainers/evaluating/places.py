"""The folder of an evaluation on its own: a new one, or that of one that was killed and goes on.

config.yaml        what was evaluated; `gymnast eval FOLDER` repeats it
evaluation.json    that this is an evaluation, of which rows
episodes/          of one under way: what has been played so far (`episode_journal.py`)
rollouts/          of one that has ended: all episodes
metrics.jsonl      of one that has ended: its numbers
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from gymnast.errors import ConfigError
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.evaluating.targets import Target
from gymnast.trainers.saving.episode_journal import FOLDER as EPISODES
from gymnast.trainers.saving.run_folder import METRICS
from gymnast.trainers.saving.saved_runs import EVALUATION_FILE

LOCK = "evaluation.lock"


@contextmanager
def evaluation_place(
    target: Target, *, output: str | Path | None = None, resume: bool = False
) -> Iterator[Path | None]:
    """The folder of an evaluation; a new one is removed if it comes to nothing.

    Args:
        target: What is evaluated.
        output: The folder; None: the next number among the target's evaluations.
        resume: Go on with the one in `output`, with the evaluation that the target is, or with the
            newest of its evaluations that have not ended.

    Yields:
        The folder; None in all processes but the first, which alone writes metrics.

    Raises:
        ConfigError: The folder cannot be made, or holds another evaluation; or there is none to go
            on with, or another process is at it.
    """
    if os.environ.get("RANK", "0") != "0":  # the processes are not joined yet
        yield None
        return
    made: list[Path] = []
    shown = _folder(target, output, resume, made)
    folder, made = shown.absolute(), [path.absolute() for path in made]  # user code may leave this
    try:
        with _claimed(folder):
            yield shown
    finally:
        if has_ended(folder):  # all of them are in rollouts/ now
            shutil.rmtree(folder / EPISODES, ignore_errors=True)
        elif made and not has_episodes(folder):
            shutil.rmtree(folder, ignore_errors=True)
            for parent in made[1:]:
                _remove_if_empty(parent)


def has_ended(folder: Path) -> bool:
    """Whether an evaluation's folder has its metrics."""
    metrics = folder / METRICS
    return metrics.exists() and metrics.stat().st_size > 0


def has_episodes(folder: Path) -> bool:
    """Whether an evaluation that has not ended left episodes."""
    return any((folder / EPISODES).rglob("*.arrows"))


def _folder(target: Target, output: str | Path | None, resume: bool, made: list[Path]) -> Path:
    """The folder; `made` receives it and its parents, the innermost first, that were not there."""
    if output is not None:
        folder = Path(output).expanduser()
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"--output: {output} is a file; name a folder")
        used = folder.is_dir() and any(folder.iterdir())
        if used and not resume:
            ended = has_ended(folder) or not (folder / EVALUATION_FILE).exists()
            way = "" if ended else "continue it with --resume, or "
            raise ConfigError(
                f"--output: {output} is a folder with files in it; {way}name another one"
            )
        return _unended(folder) if used else _make(folder, made, exist_ok=True)
    if resume:
        return _unended(target.repeats) if target.repeats is not None else _newest(target)
    return _next(target, made)


def _newest(target: Target) -> Path:
    """The newest evaluation of a target that has not ended."""
    folders = [path for path in numbered(target.evaluations) if not has_ended(path)]
    begun = [path for path in folders if (path / EVALUATION_FILE).exists()]
    if not begun:
        raise ConfigError(
            f"--resume: {shown_path(target.evaluations)} has no evaluation that has begun and not "
            "ended; leave --resume out"
        )
    return begun[-1]


def _unended(folder: Path) -> Path:
    if has_ended(folder):
        raise ConfigError(
            f"--resume: the evaluation in {shown_path(folder)} has ended; leave --resume out to "
            "evaluate once more"
        )
    if not (folder / EVALUATION_FILE).exists():
        raise ConfigError(
            f"--resume: {shown_path(folder)} holds no evaluation; name the folder of one, or leave "
            "--resume out"
        )
    return folder


def numbered(parent: Path) -> list[Path]:
    """The folders in `evaluations/`, the oldest first."""
    found = parent.iterdir() if parent.is_dir() else iter(())
    return sorted(
        (path for path in found if path.name.isdecimal()), key=lambda path: int(path.name)
    )


def _next(target: Target, made: list[Path]) -> Path:
    """The next folder, by number, which this process makes and no other."""
    parent, repeated = target.evaluations, target.repeats
    if repeated is not None and not repeated.name.isdecimal():  # it was named by --output
        start, form = 2, f"{repeated.name}-{{}}"
    else:
        try:
            start = 1 + max((int(path.name) for path in numbered(parent)), default=0)
        except OSError as error:
            raise _cannot_be_written(parent, error) from error
        form = "{:03d}"
    for number in range(start, start + 10_000):
        try:
            return _make(parent / form.format(number), made)
        except FileExistsError:
            continue
    raise ConfigError(f"--output: {parent} is full of evaluations; name another folder")


def _make(folder: Path, made: list[Path], *, exist_ok: bool = False) -> Path:
    """Make a folder; raises FileExistsError where it is there and must not be."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_written(folder.parent, error) from error
    try:
        folder.mkdir(exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise _cannot_be_written(folder.parent, error) from error
    made += [folder, *missing]
    return folder


def _cannot_be_written(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"output_dir: {folder} cannot be written: {error.strerror}; name another folder "
        "(output_dir=...)"
    )


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Keep other processes from going on with the same evaluation."""
    (folder / EPISODES).mkdir(exist_ok=True)
    lock = FileLock(folder / EPISODES / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"--resume: another process is evaluating in {shown_path(folder)}; wait for it"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
