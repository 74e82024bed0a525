"""environment.json of a run's folder: with what, on what and from what the run was made.

{"starts": [{"started": ..., "command": [...], "code": {"commit": ..., "dirty": false},
             "gymnast": {...}, "python": ..., "packages": {...}, "platform": ..., "hardware": {...},
             "processes": 1, "model": {...}, "inputs": {...}, "formats": {...}}]}

A process adds its entry when it starts; a run that is resumed has one for each time. Environment
variables are not written, and values that look like keys of a service are left out of `command`.
"""

import json
import platform
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gymnast.trainers.base.formats import ENVIRONMENT_FILE, FORMATS
from gymnast.trainers.provenance.machine import machine
from gymnast.trainers.provenance.sources import input_revisions, model_revision
from gymnast.trainers.provenance.versions import checkout, gymnast_version, package_versions
from gymnast.trainers.saving.durable import write_text
from gymnast.trainers.saving.run_folder import CONFIG_FILE

HIDDEN = "..."
_SECRET = r"(?:key|token|secret|password|passphrase|credentials?)"
# agent.api_key=VALUE, {api_key: VALUE}, "token": "VALUE"
_ASSIGNED = re.compile(
    rf"(?i)\b((?:\w+[_-])?{_SECRET}[\"']?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s,}}]+)"
)
_OPTION = re.compile(rf"(?i)--?(?:\w+[_-])*{_SECRET}")
_IN_URL = re.compile(r"(://)[^/@\s]+@")


def note_start(folder: Path, model: Any = None, *, processes: int = 1) -> None:
    """Add an entry to environment.json.

    Args:
        folder: Of a run, or of an evaluation on its own, with its config.yaml.
        model: The policy; None where none is loaded.
        processes: How many take part.

    Raises:
        DiskFull: There is no room for it.
    """
    entry = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": without_secrets(sys.orig_argv),
        "working_folder": str(Path.cwd()),
        "code": checkout(Path.cwd()),
        "gymnast": gymnast_version(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "platform": platform.platform(),
        "hardware": machine(),
        "processes": processes,
        "model": None if model is None else model_revision(model, folder / CONFIG_FILE),
        "inputs": input_revisions(folder / CONFIG_FILE),
        "formats": FORMATS,
    }
    starts = [*read_starts(folder), entry]
    write_text(folder / ENVIRONMENT_FILE, json.dumps({"starts": starts}, indent=2) + "\n")


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """The entries of a folder's environment.json, oldest first; none where it has no such file."""
    try:
        read = json.loads((folder / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
        starts = read["starts"]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return [each for each in starts if isinstance(each, dict)] if isinstance(starts, list) else []


def without_secrets(command: Sequence[str]) -> list[str]:
    """A command line without values that look like keys, tokens or passwords."""
    shown, hide = [], False
    for word in command:
        if hide and not word.startswith("-"):
            shown.append(HIDDEN)
        else:
            shown.append(_IN_URL.sub(rf"\1{HIDDEN}@", _ASSIGNED.sub(rf"\1{HIDDEN}", word)))
        hide = _OPTION.fullmatch(word) is not None
    return shown
