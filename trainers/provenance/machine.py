"""What a run is computed on: processor, memory and accelerators."""

import platform
import re
from pathlib import Path
from typing import Any

import psutil
import torch


def machine() -> dict[str, Any]:
    """The hardware of this machine; memory in bytes."""
    found: dict[str, Any] = {
        "cpu": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
    }
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    return found


def _processor() -> str:
    """The processor's model, as Linux or the platform names it."""
    try:
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        listed = ""
    named = re.search(r"^model name\s*:\s*(.+)$", listed, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def _gpus() -> list[dict[str, Any]]:
    """The accelerators that torch sees."""
    if torch.cuda.is_available():
        return [_gpu(torch.cuda.get_device_properties(n)) for n in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        return [{"name": "Apple (MPS)"}]
    return []


def _gpu(properties: Any) -> dict[str, Any]:
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
    }
