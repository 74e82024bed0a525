"""The episodes of an evaluation under way, each on the disk as soon as it is over.

    episodes/eval_00000/001_00.arrows    those of the first start, played by process 0
    episodes/eval_00000/002_00.arrows    those that it played when it went on

Each file is a stream of Arrow's, with a batch for each episode in the columns of a file of rollouts
(`rollout_files.py`), which is written of them at the end. A process that is killed leaves at most
the last batch torn; that one is passed over, and its episode played again.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from gymnast.trainers.records.columns import SCHEMA, as_record, as_trajectory
from gymnast.trainers.saving.disk_space import naming_full_disk
from gymnast.trainers.saving.saved_runs import UNDER_WAY
from gymnast.types import Trajectory

FOLDER = UNDER_WAY


class EpisodeJournal:
    """The journal of one environment's episodes; see `gymnast.trainers.rollouts.journal.Journal`.

    Args:
        folder: Its own; what earlier starts have left there is read.
        process: The number of this process.
    """

    def __init__(self, folder: str | Path, process: int = 0) -> None:
        self._folder = Path(folder)
        files = sorted(self._folder.glob("*_*.arrows"))
        starts = [int(path.name.partition("_")[0]) for path in files]
        self._name = f"{1 + max(starts, default=0):03d}_{process:02d}.arrows"
        self._before = {
            place: trajectory for path in files for place, trajectory in _episodes(path)
        }
        self._writer: Any = None
        self._file: Any = None

    def __len__(self) -> int:
        """How many episodes earlier starts have left."""
        return len(self._before)

    def find(self, row_index: int, member: int) -> Trajectory | None:
        """See `Journal`."""
        return self._before.get((row_index, member))

    def add(self, row_index: int, member: int, trajectory: Trajectory | None) -> None:
        """Write an episode; one that was left out is not written, and is played again.

        Raises:
            DiskFull: There is no room for it.
        """
        if trajectory is None:
            return
        record = as_record(trajectory) | {"group": row_index, "member": member}
        with naming_full_disk(self._folder, 16 * trajectory.tokens):
            if self._writer is None:
                self._begin()
            self._writer.write_batch(pa.RecordBatch.from_pylist([record], SCHEMA))

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            self._writer.close()
            self._file.close()
            self._writer = self._file = None

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        # Unbuffered: what is written is the kernel's, and survives the end of this process.
        self._file = (self._folder / self._name).open("xb", buffering=0)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = pa.ipc.new_stream(self._file, SCHEMA, options=options)


def _episodes(path: Path) -> Iterator[tuple[tuple[int, int], Trajectory]]:
    """The row index and member of each whole episode in a file, and its trajectory."""
    for batch in _whole_batches(path):
        for record in batch.to_pylist():
            yield (record["group"], record["member"]), as_trajectory(record)


def _whole_batches(path: Path) -> Iterator[Any]:
    """The batches of a stream up to one that is torn, if one is."""
    with path.open("rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
            while True:
                yield reader.read_next_batch()
        except (StopIteration, pa.ArrowException, OSError):  # OSError: torn within a batch
            return
