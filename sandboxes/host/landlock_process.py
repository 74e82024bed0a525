"""The process beside a Landlock box, as the host sees it: started, listened to, ended.

What it does is in `landlock_launcher.py`.
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
from gymnast.sandboxes.lifetime.processes import kill_all_of_user, kill_marked

# Runs the launcher as a part of the package, but without the package's own imports, which would
# cost more than all else; and without what else is installed, as the box has it. No source is sent,
# unlike by `contract/module_program.py`: the launcher starts on the host, where its files are.
_START = """
import sys, types
for name, folder in (("gymnast", ""), ("gymnast.sandboxes", sys.argv[1])):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [folder]
from gymnast.sandboxes.host.landlock_launcher import main
main()
"""


def launch(python: str, plan: Plan, mark: str) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """Start the launcher, and tell it what to do.

    Args:
        python: The program that runs it, and then the worker.
        plan: What it has to know.
        mark: What tells the box's processes.

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
    """What the launcher says before the worker answers; nothing is written later on."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stderr is not None
        self._stream = process.stderr
        os.set_blocking(self._stream.fileno(), False)

    def text(self) -> str:
        """The last line of it so far."""
        said = b"" if self._stream.closed else self._stream.read() or b""
        return (said.decode("utf-8", "replace").strip().splitlines() or [""])[-1]

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
    """End the worker and its launcher, and what outlives them; delete the folder."""
    end_process(process, connection)
    errors.close()
    if process.returncode != 0:  # else the launcher has seen that nothing is left
        if user_id is not None and is_boxes_own(user_id):
            kill_all_of_user(user_id)
        else:
            kill_marked(lambda mark: mark == folder.name)
    delete_place(folder, groups)
