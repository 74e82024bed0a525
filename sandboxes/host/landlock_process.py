"""The host's side of the launcher of a Landlock box: starting it, reading its errors, ending it.

What the launcher does is in `landlock_launcher.py`.
"""

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path

from gymnast.sandboxes.host.cgroups import Groups
from gymnast.sandboxes.host.landlock_launcher import Plan
from gymnast.sandboxes.host.plan import is_boxes_own
from gymnast.sandboxes.host.removal import delete_place, end_process
from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE
from gymnast.sandboxes.lifetime.processes import kill_all_of_user, kill_mark

# Runs the launcher as a module of the package, but without the imports of the package itself, which
# would cost more than everything else, and without other packages, which the box must not have.
# Nothing is sent as source, as `contract/module_program.py` does: the files are on this machine.
_START = """
import sys, types
for name, folder in (("gymnast", ""), ("gymnast.sandboxes", sys.argv[1])):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [folder]
from gymnast.sandboxes.host.landlock_launcher import main
main()
"""


def launch(python: str, plan: Plan, mark: str) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """Start the launcher and send it the plan.

    Args:
        python: The program that runs the launcher, and then the worker.
        plan: What to do.
        mark: The mark of the box's processes.

    Raises:
        OSError: The machine cannot start one more process.
    """
    ours, theirs = socket.socketpair()
    folder = str(Path(__file__).parents[1])
    try:
        with theirs:
            process = subprocess.Popen(
                [python, "-I", "-S", "-X", "utf8", "-c", _START, folder],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                cwd="/",
                env={MARK_VARIABLE: mark},
                start_new_session=True,
            )
    except OSError:
        ours.close()
        raise
    text = json.dumps(plan).encode()
    with contextlib.suppress(OSError):  # the launcher has ended: no worker will answer
        ours.sendall(len(text).to_bytes(4, "big") + text)
    return ours, process


class Errors:
    """What the launcher writes to stderr before the worker answers; later it writes nothing."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stderr is not None
        self._stream = process.stderr
        os.set_blocking(self._stream.fileno(), False)

    def text(self) -> str:
        """The last line so far."""
        written = b"" if self._stream.closed else self._stream.read() or b""
        return (written.decode("utf-8", "replace").strip().splitlines() or [""])[-1]

    def close(self) -> None:
        """Read no more."""
        self._stream.close()


def discard(
    process: "subprocess.Popen[bytes]",
    connection: socket.socket,
    errors: Errors,
    folder: Path,
    groups: Groups,
    user_id: int | None,
) -> None:
    """End the worker, its launcher and what outlives them; delete the folder."""
    end_process(process, connection)
    errors.close()
    if process.returncode != 0:  # else the launcher has made sure that nothing is left
        if user_id is not None and is_boxes_own(user_id):
            kill_all_of_user(user_id)
        else:
            kill_mark(folder.name)
    delete_place(folder, groups)
