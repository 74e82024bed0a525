"""Files of demonstrations: conversations as other tools write them, or saved episodes.

    demos.jsonl      {"messages": [...], "tools": [...]} in each line; with "turns": 2 the last two
                     of the assistant's messages are to be learned, else all
    demos.parquet    of `gymnast demos`, or the rollouts of a run

Saved episodes of the same tokenizer keep their ids: what was sampled is never decoded and encoded
again. Those of another, and those that were played in messages, are laid out anew.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnast.envs import Renderer
from gymnast.errors import DataError, GymnastError, first_line
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.data.rows import Row
from gymnast.trainers.demonstrations.held_out import HeldOut
from gymnast.trainers.demonstrations.layout import trajectory_of, with_tokens
from gymnast.trainers.demonstrations.sources import passing
from gymnast.trainers.records.token_text import fingerprint
from gymnast.trainers.saving.rollout_files import SavedTrajectory, read_rollouts
from gymnast.types import Trajectory
from gymnast.visible import visible_logger

JSONL, PARQUET = ".jsonl", ".parquet"

logger = visible_logger(__name__)


def check_file(path: str | Path) -> None:
    """Check, without reading it, that there is a file of demonstrations.

    Raises:
        DataError: There is none, or it is of another kind.
    """
    place, file = f"warmup.demonstrations: {shown_path(path)}", Path(path).expanduser()
    if not file.is_file():
        what = "is a folder; name a file in it" if file.is_dir() else "there is no such file"
        raise DataError(
            f"{place}: {what}. `gymnast demos` writes one, and `solve` plays the environment's own "
            "solutions"
        )
    if file.suffix.lower() not in (JSONL, PARQUET):
        raise DataError(f"{place}: must end in {JSONL} or {PARQUET}")


def read_demonstrations(
    path: str | Path, renderer: Renderer, *, min_reward: float, excluded: Sequence[Row] = ()
) -> list[Trajectory]:
    """The demonstrations of a file, in tokens.

    Args:
        path: The file.
        renderer: Of the policy that is to learn.
        min_reward: Saved episodes with a lower reward are left out; a conversation has none.
        excluded: Evaluation rows: what is of these is left out (`held_out.py`).

    Raises:
        DataError: It is no file of demonstrations, or none of them passes.
        TemplateError: The chat template cannot say one of the messages.
    """
    check_file(path)
    place, file, held_out = shown_path(path), Path(path).expanduser(), HeldOut(excluded)
    if file.suffix.lower() == JSONL:
        lines = enumerate(file.read_text(encoding="utf-8").split("\n"), start=1)
        found = [
            _of_line(line, renderer, f"{place}, line {number}")
            for number, line in lines
            if line.strip()
        ]
        own = [trajectory for trajectory in found if not held_out.asks(trajectory.messages)]
        _tell_left_out(place, len(found), len(own))
        return own
    known, saved = fingerprint(renderer.tokenizer), read_rollouts(file)
    kept = [each for each in saved if not held_out.has(each.trajectory.row)]
    _tell_left_out(place, len(saved), len(kept))
    passed = {id(t) for t in passing([each.trajectory for each in kept], place, min_reward)}
    good = [each for each in kept if id(each.trajectory) in passed]
    return [_in_tokens(each, renderer, known, place) for each in good]


def _tell_left_out(place: str, found: int, kept: int) -> None:
    if kept < found:
        logger.warning(
            "%s: %d of %d demonstrations are of evaluation rows, and left out",
            *(place, found - kept, found),
        )


def _in_tokens(saved: SavedTrajectory, renderer: Renderer, own: str, place: str) -> Trajectory:
    trajectory = saved.trajectory
    if trajectory.ids and saved.tokenizer == own:
        return trajectory
    if not trajectory.messages:
        raise DataError(
            f"{place}: an episode has no messages, and its tokens are of another tokenizer"
        )
    return with_tokens(trajectory, renderer)


def _of_line(line: str, renderer: Renderer, place: str) -> Trajectory:
    """The conversation of a line."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: is not JSON ({first_line(error)})") from error
    messages = record.get("messages") if isinstance(record, Mapping) else None
    if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
        raise DataError(
            f'{place}: must have "messages", a list in OpenAI\'s shape, got {line:.200}'
        )
    tools, turns = record.get("tools") or [], record.get("turns")
    _check_kind(tools, turns, place)
    try:
        return trajectory_of(messages, tools, renderer, turns=turns)
    except GymnastError as error:
        raise DataError(f"{place}: {error}") from error


def _check_kind(tools: Any, turns: Any, place: str) -> None:
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise DataError(f'{place}: "tools" must be a list of schemas, got {tools!r:.200}')
    if turns is not None and (isinstance(turns, bool) or not isinstance(turns, int)):
        raise DataError(f'{place}: "turns" must be a whole number, got {turns!r:.100}')
