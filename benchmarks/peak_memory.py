"""The peak of memory of a computation in a process of its own (Linux).

A peak is what the process holds at most, less what it held when it had imported everything and
trained a tiny model for a step, so that libraries and their first calls do not count.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """What the process holds now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """What it has held at most since `forget_peak`."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let the peak begin anew at what is held now."""
    CLEAR.write_text("5")


def in_own_process(script: str, case: dict[str, Any], *options: str) -> dict[str, Any]:
    """Run `python script [OPTIONS] CASE`, which prints a JSON object in its last line."""
    command = [sys.executable, script, *options, json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _status(name: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
