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
from gymnast.envs.records.messages import without_filled_nulls
from gymnast.envs.tools.schema import without_null_keywords
from gymnast.errors import DataError, GymnastError, UsageError, first_line
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.data.rows import Row
from gymnast.trainers.demonstrations.held_out import without_held_out
from gymnast.trainers.demonstrations.layout import trajectory_of, with_tokens
from gymnast.trainers.demonstrations.sources import passing
from gymnast.trainers.records.token_text import fingerprint
from gymnast.trainers.saving.rollout_files import SavedTrajectory, read_rollouts
from gymnast.types import Trajectory
from gymnast.visible import visible_line, visible_logger

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
        DataError: It is no file of demonstrations, or there is none in it to learn from.
    """
    check_file(path)
    place, file = shown_path(path), Path(path).expanduser()
    if file.suffix.lower() == JSONL:
        lines = enumerate(file.read_text(encoding="utf-8").split("\n"), start=1)
        found = [
            _of_line(line, renderer, f"{place}, line {number}")
            for number, line in lines
            if line.strip()
        ]
        return without_held_out(found, excluded, place)
    saved = {id(each.trajectory): each for each in read_rollouts(file)}
    kept = without_held_out([each.trajectory for each in saved.values()], excluded, place)
    good = passing(kept, place, min_reward)
    return _all_in_tokens([saved[id(trajectory)] for trajectory in good], renderer, place)


def _all_in_tokens(
    saved: Sequence[SavedTrajectory], renderer: Renderer, place: str
) -> list[Trajectory]:
    """Saved episodes in the policy's tokens; those that have none are told, and left out."""
    own, problems, found = fingerprint(renderer.tokenizer), list[UsageError](), list[Trajectory]()
    for each in saved:
        try:
            found.append(_in_tokens(each, renderer, own))
        except UsageError as error:
            problems.append(error)
    if problems and not found:
        raise DataError(
            f"{place}: has no demonstration to learn from: none of {len(problems)} episodes can be "
            f"said with the policy's chat template; the first one: {problems[0]}"
        ) from problems[0]
    if problems:
        logger.warning(
            "%s: %d of %d demonstrations cannot be said with the policy's chat template, and are "
            "left out; the first one: %s",
            *(place, len(problems), len(saved), visible_line(str(problems[0]))),
        )
    return found


def _in_tokens(saved: SavedTrajectory, renderer: Renderer, own: str) -> Trajectory:
    trajectory = saved.trajectory
    if trajectory.ids and saved.tokenizer == own:
        return trajectory
    if not trajectory.messages:
        raise DataError("an episode has no messages, and its tokens are of another tokenizer")
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
    messages, tools = without_filled_nulls(messages), [*map(without_null_keywords, tools)]
    try:
        return trajectory_of(messages, tools, renderer, turns=turns)
    except GymnastError as error:
        raise DataError(f"{place}: {error}") from error


def _check_kind(tools: Any, turns: Any, place: str) -> None:
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise DataError(f'{place}: "tools" must be a list of schemas, got {tools!r:.200}')
    if turns is not None and (isinstance(turns, bool) or not isinstance(turns, int)):
        raise DataError(f'{place}: "turns" must be a whole number, got {turns!r:.100}')
