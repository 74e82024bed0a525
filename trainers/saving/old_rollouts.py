"""Files of rollouts as earlier versions wrote them: JSON lines, one a trajectory.

They have neither advantages nor text, and null in place of log-probabilities that are no numbers.
"""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from gymnast.errors import DataError
from gymnast.trainers.records.json_text import hashable
from gymnast.trainers.saving.rollout_files import SavedTrajectory
from gymnast.types import Span, StopReason, Trajectory, VersionSpan
from gymnast.visible import visible_logger

_SEQUENCES = (
    *("tools", "versions", "token_rewards", "states", "teacher_prompt_ids"),
    *("branches", "order"),
)

logger = visible_logger(__name__)


def read_json_lines(path: Path) -> list[SavedTrajectory]:
    """Read such a file; a last line that a kill has torn is left out, with a warning.

    Raises:
        DataError: A line is no trajectory, or the first one is none: then it is another file.
    """
    lines = path.read_bytes().splitlines()
    saved, members = list[SavedTrajectory](), Counter[int]()
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            trajectory, group = _trajectory(record), record["group"]
        except (ValueError, LookupError, TypeError, AssertionError) as error:
            if number == len(lines) and isinstance(error, ValueError):
                logger.warning("%s: the last line is torn and left out", path)
                break
            if not saved:
                raise DataError(
                    f"{path}: holds no rollouts, as its first line is no trajectory; name the "
                    "folder of a run, or one of the files in its rollouts/"
                ) from error
            raise DataError(f"{path}:{number}: is no trajectory; remove the line") from error
        saved.append(SavedTrajectory(trajectory, None, group, members[group], path.stem))
        members[group] += 1
    return saved


def _trajectory(record: dict[str, Any]) -> Trajectory:
    known = Trajectory.__dataclass_fields__
    fields = {name: value for name, value in dict(record).items() if name in known}
    for name in _SEQUENCES:
        if not fields.get(name):  # a default, or not there yet
            fields.pop(name, None)
    fields["logprobs"] = [math.nan if value is None else value for value in fields["logprobs"]]
    fields["turns"] = [Span(*span) for span in fields["turns"]]
    if "versions" in fields:
        fields["versions"] = [VersionSpan(*span) for span in fields["versions"]]
    if "states" in fields:
        fields["states"] = [hashable(state) for state in fields["states"]]
    fields["stop_reason"] = StopReason(fields["stop_reason"])
    return Trajectory(**fields)
