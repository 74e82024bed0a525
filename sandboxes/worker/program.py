"""The worker as a program that can be started in a box which has nothing but Python.

Its command line holds only a loader; the sources of `sandboxes/guest/` come as the first frame.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gymnast.sandboxes.contract.module_program import DEFINE_MODULES, module_sources
from gymnast.sandboxes.guest.protocol import pack

# Each file after those that it imports.
_MODULES = (
    "protocol",
    "processes",
    "capture",
    "files",
    "confine",
    "interpreter",
    "session",
    "worker",
)

# The boot frame: see `guest/protocol.py`. Read without a buffer: requests follow it.
LOADER = f"""
import json, sys
{DEFINE_MODULES}
stream = open(0, "rb", 0, closefd=False)
def take(size):
    data = b""
    while len(data) < size:
        piece = stream.read(size - len(data))
        if not piece: sys.exit("the host has gone")
        data += piece
    return data
boot = json.loads(take(int.from_bytes(take(4), "big")).decode())
_define_modules("gymnast.sandboxes.guest", boot.pop("modules")).main(boot)
"""


def command(python: str) -> list[str]:
    """What to run in the box. Isolated (-I): no file of the guest's is ever imported by it.

    Args:
        python: The command that starts Python there.
    """
    return [python, "-I", "-X", "utf8", "-c", LOADER]


def boot_frame(
    nonce: str,
    *,
    alone: bool,
    rlimits: Mapping[str, int],
    seccomp: bytes = b"",
    scoped: bool = False,
    proc: int | None = None,
    seal_proc: bool = False,
) -> bytes:
    """The first frame that the program reads.

    Args:
        nonce: Comes back when the worker is ready.
        alone: Whether the worker has a PID namespace to itself.
        rlimits: Limits, by their names in `resource`, of the worker and all that it starts.
        seccomp: A filter of system calls for all of them; see `seccomp_filter`.
        scoped: Whether to keep what it starts from signalling the worker, by Landlock.
        proc: See `guest/processes.py`.
        seal_proc: Whether to keep all of them from writing in /proc, where the kernel does that.
    """
    boot: dict[str, Any] = {"nonce": nonce, "alone": alone, "rlimits": dict(rlimits)}
    boot.update({"seccomp": seccomp.hex(), "scoped": scoped, "proc": proc})
    boot["seal_proc"] = seal_proc
    return pack({**boot, "modules": guest_sources()})


@cache
def guest_sources() -> list[tuple[str, str]]:
    """The name and the source of each module of `guest/`."""
    return module_sources(Path(__file__).parents[1] / "guest", _MODULES)
