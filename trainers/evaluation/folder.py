"""Where an evaluation on its own is kept: RUN/evaluations/001, 002, ...

    config.yaml               what was evaluated, and how
    metrics.jsonl             one line
    rollouts/eval_00000.jsonl the episodes; rollouts/eval_00000_NAME.jsonl those of a further one

It is a run's folder in which nothing is trained (`trainers/saving/run_folder.py`).
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gymnast.errors import ConfigError
from gymnast.trainers.saving.run_folder import METRICS

EVALUATIONS = "evaluations"


@contextmanager
def evaluation_folder(run: str | Path) -> Iterator[str | None]:
    """A new folder for an evaluation; it is removed again if the evaluation fails.

    Args:
        run: The folder of the run.

    Yields:
        The folder; None in all processes but the first, which alone writes.

    Raises:
        ConfigError: It cannot be made.
    """
    if os.environ.get("RANK", "0") != "0":  # the processes are not joined yet
        yield None
        return
    existed = Path(run).exists()
    folder = _claimed(Path(run) / EVALUATIONS)
    try:
        yield str(folder)
    finally:
        if not (folder / METRICS).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _remove_if_empty(folder.parent)
            if not existed:
                _remove_if_empty(Path(run))


def _claimed(parent: Path) -> Path:
    """The next folder by number, made by this process and no other."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(p.name) for p in parent.iterdir() if p.name.isdecimal()), default=0)
        while True:
            folder = parent / f"{number:03d}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
    except OSError as error:
        raise ConfigError(
            f"output_dir: {parent} cannot be written: {error.strerror}; name another folder "
            "(output_dir=...)"
        ) from error


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
