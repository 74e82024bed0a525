"""PyTorch's helper threads on a CPU belong to the thread that computes; this lets them go.

Every thread that runs an operation over several cores gets a team of OpenMP threads of its own,
and keeps it. As soon as a process has more of them than cores (the trainer's thread and the
engine's, say), GNU OpenMP lets each of them sleep after every operation instead of waiting for
the next one, and waking up takes longer than most operations of a small model. So whoever is done
computing for a while lets its team go; the next operation makes it anew, in about 0.1 ms.

Nothing happens where PyTorch computes with another library (macOS, Windows).
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

SOFT = 1  # omp_pause_soft of the OpenMP 5.0 API: what the team knows is kept


def release_team() -> None:
    """Let the calling thread's OpenMP threads go."""
    library = _library()
    if library is not None:
        library.omp_pause_resource_all(SOFT)


@cache
def _library() -> Any:
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    try:
        library = ctypes.CDLL(str(found[0])) if found else None
    except OSError:
        return None
    return library if hasattr(library, "omp_pause_resource_all") else None
