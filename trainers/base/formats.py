"""The formats of what a run writes, by number; a later Gymnast may write a later one.

A file without a number is of format 1. What has changed since, stands beside each number, and the
readers of older ones are named there. A newer one than these is refused.
"""

import json
from pathlib import Path
from typing import Any

CONFIG = 1
CHECKPOINT = 1
METRICS = 1
ROLLOUTS = 2  # 1 had no branches; before it were lines of JSON (`trainers/saving/old_rollouts.py`)

FORMATS = {"config": CONFIG, "checkpoint": CHECKPOINT, "metrics": METRICS, "rollouts": ROLLOUTS}
KEY = "format_version"
ENVIRONMENT_FILE = "environment.json"


def unreadable_format(what: str, given: Any, known: int) -> str:
    """Why a format cannot be read, as a sentence; "" where it can.

    Args:
        what: The file, or a part of it.
        given: Its `format_version`; None where it has none.
        known: The newest that is read here.
    """
    if given is None:
        return ""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        return f"{what}: {KEY} must be a whole number >= 1, got {given!r:.100}"
    if given > known:
        return (
            f"{what}: has {KEY} {given}, and this version of Gymnast reads up to {known}; update "
            "Gymnast"
        )
    return ""


def newer_metrics(folder: Path) -> str:
    """Why metrics.jsonl of a run's folder cannot be read here, as a sentence; "" where it can.

    Its lines are metrics alone, so their format stands in environment.json.
    """
    path = folder / ENVIRONMENT_FILE
    try:
        latest = json.loads(path.read_text(encoding="utf-8"))["starts"][-1]
        given = latest["formats"]["metrics"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""  # there is none, or it is not ours
    return unreadable_format(str(folder / "metrics.jsonl"), given, METRICS)
