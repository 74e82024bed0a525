"""How much memory is free for this process: of the machine, of its control group, of the device."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

_MEMINFO, _GROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
# Of a control group: where its limit, its use and its statistics stand (version 2, version 1).
_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class Available:
    """Memory that may still be taken.

    Attributes:
        nbytes: How much.
        of: Whose it is, in words.
    """

    nbytes: int
    of: str


def available(device: torch.device) -> Available | None:
    """What this process may still take; None where nobody says.

    Processes of one machine have equal shares of its memory.
    """
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Available(free + cached, "the device")
    if device.type != "cpu":
        return None
    found = [each for each in (_of_machine(), _of_group()) if each is not None]
    if not found:
        return None
    least = min(found, key=lambda each: each.nbytes)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    share = f" (a share of {processes})" if processes > 1 else ""
    return Available(least.nbytes // processes, least.of + share)


def _of_machine() -> Available | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return Available(1024 * kilobytes[0], "the machine") if kilobytes else None


def _of_group() -> Available | None:
    """What the limit of this process's control group leaves; files in its cache can go."""
    for folder, limit, use, cache in _FILES:
        for place in (_GROUPS / folder / _own_group(folder), _GROUPS / folder):
            try:
                most = int((place / limit).read_text())
                used = int((place / use).read_text())
                statistics = (place / "memory.stat").read_text().splitlines()
            except (OSError, ValueError):  # no such file, or "max"
                continue
            files = [int(line.split()[1]) for line in statistics if line.split()[0] == cache]
            return Available(max(0, most - used + sum(files)), "the control group")
    return None


def _own_group(controller: str) -> str:
    """The path of this process's group below the controller's folder."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    paths = [line.split(":", 2)[2] for line in lines if line.split(":", 2)[1] == controller]
    return paths[0].lstrip("/") if paths else ""
