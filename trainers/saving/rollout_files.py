"""A file of rollouts: one Parquet file a step, one a row an episode, whole or not there at all.

    write_rollouts(path, groups, tokenizer=tokenizer)      from groups of trajectories
    read_rollouts(path) -> [SavedTrajectory, ...]          and back, whole

`trainers/records/columns.py` has the columns, docs/saved_episodes.md says what they mean. The
file's metadata has `format_version` and, where a tokenizer was given, its `tokenizer` fingerprint.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gymnast.errors import DataError, first_line
from gymnast.trainers.base.formats import ROLLOUTS as FORMAT_VERSION
from gymnast.trainers.base.formats import unreadable_format
from gymnast.trainers.records.columns import SCHEMA, as_record, as_trajectory
from gymnast.trainers.records.token_text import fingerprint, token_text
from gymnast.trainers.saving.disk_space import naming_full_disk
from gymnast.trainers.saving.durable import file_written_aside
from gymnast.types import Trajectory

EPISODES_AT_ONCE = 256  # a row group of the file, and what is in memory twice while it is written
_TO_NAME = "name the folder of a run, or one of the files in its rollouts/"

# Log-probabilities and the like hardly repeat: dictionaries are of no use to them.
_FLOATS = ["logprobs.list.element", "advantages.list.element"]
_PLAIN_FLOATS = [*_FLOATS, *(f"branches.list.element.{name}" for name in _FLOATS)]

Advantages = Sequence[Sequence[Sequence[float] | None] | None]


@dataclass(frozen=True)
class SavedBranch:
    """What is known of the tokens of a further context; see `SavedTrajectory`."""

    advantages: list[float] | None = None
    text: str | None = None
    token_ends: list[int] | None = None


@dataclass(frozen=True)
class SavedTrajectory:
    """A trajectory that was read from a file.

    Attributes:
        trajectory: As it was written, but without `experts`.
        advantages: Of each token, 0.0 where the mask is 0; None where nothing was learned from it.
            Like `text` and `token_ends`, that of the first context.
        group: Which group of its step or evaluation it is of, from 0 on.
        member: Its place in the group, from 0 on.
        name: Of its file: "step_00001", "eval_00000", ...
        tokenizer: The fingerprint of the tokenizer that its ids are of; None where it is not known.
        text: What all its ids are decoded to; None where no tokenizer was given.
        token_ends: Where the text of each token ends, in bytes of `text` in UTF-8; see
            `trainers/records/token_text.py`. None where there is no text.
        branches: Likewise of the tokens of each of `trajectory.branches`.
    """

    trajectory: Trajectory
    advantages: list[float] | None
    group: int
    member: int
    name: str
    tokenizer: str | None = None
    text: str | None = None
    token_ends: list[int] | None = None
    branches: Sequence[SavedBranch] = ()


def write_rollouts(
    path: str | Path,
    groups: Sequence[Sequence[Trajectory]],
    *,
    tokenizer: Any = None,
    advantages: Advantages | None = None,
) -> None:
    """Write groups of trajectories to a Parquet file; one that is there is replaced.

    Args:
        path: The file, ending in .parquet; its folder is made.
        groups: Trajectories by group; those that were played by messages alone have no ids.
        tokenizer: Of their ids, for the columns `text` and `token_ends`.
        advantages: In the shape of `groups`, each with a number for every token of its trajectory,
            those of its contexts one after another; None for a trajectory or a group without.

    Raises:
        DiskFull: There is no room for it; what was there before is untouched.
    """
    tokens = sum(trajectory.tokens for group in groups for trajectory in group)
    marked = None if tokenizer is None else fingerprint(tokenizer)
    _write(Path(path), _records(groups, tokenizer, advantages), tokens, marked)


def write_saved(path: str | Path, saved: Sequence[SavedTrajectory]) -> None:
    """Write trajectories that were read from files, with all that is known of their tokens.

    Args:
        path: The file, ending in .parquet; one that is there is replaced, its folder is made.
        saved: Each becomes a group of its own.

    Raises:
        DataError: Their ids are of different tokenizers.
        DiskFull: There is no room for it; what was there before is untouched.
    """
    tokenizers = {each.tokenizer: each.name for each in saved}
    if len(tokenizers) > 1:
        raise DataError(
            f"{path}: is not written: a file holds the ids of one tokenizer, and its trajectories "
            f"have those of {len(tokenizers)} (in {', '.join(tokenizers.values())}, for example); "
            "take the files of rollouts one by one, each into a file of its own"
        )
    alone = (replace(each, group=number, member=0) for number, each in enumerate(saved))
    tokens = sum(each.trajectory.tokens for each in saved)
    write_as_saved(path, alone, next(iter(tokenizers), None), tokens=tokens)


def write_as_saved(
    path: str | Path, saved: Iterable[SavedTrajectory], tokenizer: str | None, *, tokens: int
) -> None:
    """Write trajectories that were read from files, each in the group that it says.

    Args:
        path: The file, ending in .parquet; one that is there is replaced, its folder is made.
        saved: Taken one after another, so that few are in memory at once.
        tokenizer: The fingerprint of the tokenizer that their ids are of.
        tokens: About how many they have, to say what a full disk lacks.

    Raises:
        DiskFull: There is no room for it; what was there before is untouched.
    """
    records = (
        _record(each.trajectory, _known(each)) | {"group": each.group, "member": each.member}
        for each in saved
    )
    _write(Path(path), records, tokens, tokenizer)


def _write(path: Path, records: Iterator[dict[str, Any]], tokens: int, marked: str | None) -> None:
    """Write records of so many tokens; `marked` is the fingerprint of their tokenizer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"format_version": str(FORMAT_VERSION)}
    if marked is not None:
        metadata["tokenizer"] = marked
    schema = SCHEMA.with_metadata(metadata)
    floats = _PLAIN_FLOATS
    dictionaries = [name for name in SCHEMA.names if f"{name}.list.element" not in floats]
    with (
        naming_full_disk(path, 16 * tokens),
        file_written_aside(path) as file,
        pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=dictionaries,
            use_byte_stream_split=floats,
        ) as writer,
    ):
        while some := list(islice(records, EPISODES_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(some, schema))


def read_rollouts(path: str | Path) -> list[SavedTrajectory]:
    """Read a file that `write_rollouts` wrote.

    Raises:
        DataError: It is not there, is torn, was not written by `write_rollouts`, or by a newer
            version of it.
    """
    path = Path(path)
    with opened(path) as file:
        records = file.read(use_threads=False).to_pylist()
        tokenizer = tokenizer_of(file)
    return [saved_trajectory(record, path.stem, tokenizer) for record in records]


def saved_trajectory(
    record: Mapping[str, Any], name: str, tokenizer: str | None
) -> SavedTrajectory:
    """What a record of a file says.

    Args:
        record: All columns of one row.
        name: Of its file.
        tokenizer: The fingerprint of the tokenizer that its ids are of.
    """
    return SavedTrajectory(
        as_trajectory(record),
        record["advantages"],
        record["group"],
        record["member"],
        name,
        tokenizer,
        record["text"],
        record["token_ends"],
        [
            SavedBranch(each["advantages"], each["text"], each["token_ends"])
            for each in record.get("branches") or ()
        ],
    )


@contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file that `write_rollouts` wrote, for the block; what the block reads may be torn.

    Raises:
        DataError: As `read_rollouts`.
    """
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.schema_arrow.metadata or {}
            _check_version(path, metadata.get(b"format_version"))
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, pa.ArrowException) as error:
        if path.suffix != ".parquet":
            raise DataError(
                f"{path}: cannot be read as a file of rollouts ({first_line(error)}); {_TO_NAME}"
            ) from error
        raise DataError(
            f"{path}: cannot be read ({first_line(error)}); it is torn, or not a Parquet file. "
            "Remove it, or copy it again"
        ) from error


def tokenizer_of(file: pq.ParquetFile) -> str | None:
    """The fingerprint of the tokenizer that a file's ids are of; None where it is not known."""
    marked = (file.schema_arrow.metadata or {}).get(b"tokenizer")
    return marked.decode() if marked is not None else None


def _records(
    groups: Sequence[Sequence[Trajectory]], tokenizer: Any, advantages: Advantages | None
) -> Iterator[dict[str, Any]]:
    for number, group in enumerate(groups):
        of_group = None if advantages is None else advantages[number]
        for member, trajectory in enumerate(group):
            given = None if of_group is None else of_group[member]
            known = _learned(trajectory, given, tokenizer)
            yield _record(trajectory, known) | {"group": number, "member": member}


def _learned(
    trajectory: Trajectory, advantages: Sequence[float] | None, tokenizer: Any
) -> Iterator[SavedBranch]:
    """What is known of each context of a trajectory that a run played."""
    start = 0
    for context in trajectory.contexts:
        end = start + len(context.ids)
        found = None if tokenizer is None else token_text(tokenizer, context.ids)
        yield SavedBranch(
            None if advantages is None else list(advantages[start:end]),
            None if found is None else found.text,
            None if found is None else found.ends,
        )
        start = end


def _known(saved: SavedTrajectory) -> list[SavedBranch]:
    """What is known of each context of a trajectory that was read."""
    unknown = [SavedBranch()] * len(saved.trajectory.branches)
    first = SavedBranch(saved.advantages, saved.text, saved.token_ends)
    return [first, *(saved.branches or unknown)]


def _record(trajectory: Trajectory, known: Iterable[SavedBranch]) -> dict[str, Any]:
    """The record of a trajectory, with what is known of the tokens of its contexts."""
    record = as_record(trajectory)
    for context, each in zip([record, *(record["branches"] or ())], known, strict=True):
        context.update(vars(each))
    return record


def _check_version(path: Path, version: bytes | None) -> None:
    if version is None or not version.isdigit():
        raise DataError(
            f"{path}: is a Parquet file, but not one of Gymnast's rollouts; {_TO_NAME}, "
            "and move this one away if it lies there"
        )
    if problem := unreadable_format(str(path), int(version), FORMAT_VERSION):
        raise DataError(problem)
