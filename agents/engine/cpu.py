"""PyTorch's helper threads on a CPU belong to the thread that computes; this releases them.

Every thread that runs an operation over several cores gets a team of OpenMP threads of its own, and
keeps it. As soon as a process has more of them than cores (the trainer's thread and the engine's,
say), GNU OpenMP puts each of them to sleep after every operation instead of letting it spin until
the next one, and waking up takes longer than most operations of a small model. So a thread that is
done computing for a while releases its team; its next operation makes a new one, in about 0.1 ms.

Nothing happens where PyTorch computes with another library (macOS, Windows).
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

SOFT = 1  # omp_pause_soft of the OpenMP 5.0 API: the team's state is kept


def release_team() -> None:
    """Release the calling thread's OpenMP threads."""
    library = _library()
    if library is not None:
        library.omp_pause_resource_all(SOFT)


@cache
def _library() -> Any:
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    try:
        library = ctypes.CDLL(str(libraries[0])) if libraries else None
    except OSError:
        return None
    return library if hasattr(library, "omp_pause_resource_all") else None
