"""The folder in which new weights lie, for as long as servers may have to load them.

It is removed with the run: a process of its own (`remover.py`) does it, which outlives a run that
is killed. What even that could not remove, because the machine went down, the next run removes:
nobody holds the lock of such a folder any more.
"""

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from gymnast.agents.vllm.weights import remover
from gymnast.errors import ConfigError, DiskFull

SHARED_MEMORY = Path("/dev/shm")
PREFIX, LOCK = "gymnast-weights-", "lock"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WeightsFolder:
    """A folder of a run's own, removed when the run ends.

    Args:
        parent: In which it is made; None is shared memory, or a temporary folder where there is
            none.

    Attributes:
        path: Of the folder.

    Raises:
        ConfigError: It cannot be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or (
            SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
        )
        try:
            sweep(parent)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            self.path.chmod(0o755)  # servers may be another user's
            self._lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"agent.weights_folder: must be a folder that can be written to, got {parent}: "
                f"{error}"
            ) from error
        self._remover = subprocess.Popen(
            [sys.executable, remover.__file__, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._lock,),
            start_new_session=True,
        )

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A new folder for some weights; what the block wrote is removed if it raises.

        Raises:
            DiskFull: There is no room for them.
        """
        path = self.path / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        try:
            yield path
        except Exception as error:
            shutil.rmtree(path, ignore_errors=True)
            if (number := _full(error)) is None:
                raise
            free = shutil.disk_usage(self.path).free / 1e9
            raise DiskFull(
                f"{path}: the new weights cannot be written for the vLLM servers: "
                f"{os.strerror(number)}; {self.path.parent} has {free:.1f} GB free. The servers "
                "keep the weights they have. Free some space, or set agent.weights_folder to a "
                "folder with more, which the servers see as well"
            ) from error

    def keep(self, names: Collection[str]) -> None:
        """Remove all weights but some."""
        for path in self.path.iterdir():
            if path.name != LOCK and path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder; returns when it is gone."""
        if self._remover.stdin is None or self._remover.stdin.closed:
            return
        try:
            self._remover.stdin.write(b".")
            self._remover.stdin.close()
        except OSError:
            pass  # somebody ended the remover
        self._remover.wait()
        os.close(self._lock)
        shutil.rmtree(self.path, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove the folders of runs that ended without a chance to do so.

    Raises:
        OSError: The folder cannot be read.
    """
    for path in parent.iterdir():
        if not path.name.startswith(PREFIX):
            continue
        try:
            lock = os.open(path / LOCK, os.O_RDWR)
        except OSError:
            continue  # being made, being removed, or another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # of a run that goes on
        finally:
            os.close(lock)


def _full(error: BaseException | None) -> int | None:
    """The system's error number, if a lack of space caused an error; else None."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return error.errno
        found = re.search(r"os error (\d+)", str(error))  # as safetensors says it
        if found and int(found[1]) in FULL:
            return int(found[1])
        error = error.__cause__ or error.__context__
    return None
