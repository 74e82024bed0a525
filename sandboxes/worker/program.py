"""The worker as a program that starts in a box that has nothing but Python.

Its command line holds only a loader; the sources of `sandboxes/guest/` come in the first frame.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gymnast.sandboxes.contract.module_program import DEFINE_MODULES, module_sources
from gymnast.sandboxes.guest.protocol import pack

# Each module comes after those that it imports.
_MODULES = (
    "protocol",
    "loop",
    "processes",
    "capture",
    "files",
    "confine",
    "interpreter",
    "session",
    "spawn",
    "started",
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


def command(*python: str) -> list[str]:
    """What to run in the box. It is isolated (-I), so it never imports a file of the guest's.

    Args:
        python: The command that starts Python there, with arguments if it takes any.
    """
    return [*python, "-I", "-X", "utf8", "-c", LOADER]


def boot_frame(
    nonce: str,
    *,
    alone: bool,
    rlimits: Mapping[str, int],
    seccomp: bytes = b"",
    scoped: bool = False,
    proc: int | None = None,
    seal_proc: bool = False,
    port: int | None = None,
) -> bytes:
    """The first frame that the program reads.

    Args:
        nonce: The worker sends it back when it is ready.
        alone: Whether the worker has a PID namespace to itself.
        rlimits: Limits for the worker and all that it starts, by their names in `resource`.
        seccomp: A filter of system calls for the same processes; see `seccomp/bpf_filter.py`.
        scoped: Whether Landlock keeps what it starts from signalling the worker.
        proc: See `guest/processes.py`.
        seal_proc: Whether all of them are kept from writing to /proc, if the kernel can do that.
        port: Where the worker listens, on the box's own loopback, for the one address of the host.
    """
    boot: dict[str, Any] = {"nonce": nonce, "alone": alone, "rlimits": dict(rlimits)}
    boot.update({"seccomp": seccomp.hex(), "scoped": scoped, "proc": proc})
    boot.update({"seal_proc": seal_proc, "port": port})
    return pack({**boot, "modules": guest_sources()})


@cache
def guest_sources() -> list[tuple[str, str]]:
    """The name and the source of each module of `guest/`."""
    return module_sources(Path(__file__).parents[1] / "guest", _MODULES)
