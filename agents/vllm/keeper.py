"""A process that keeps a server running for as long as the run that started it, and no longer.

    python keeper.py FOLDER COMMAND...

It starts the command in a process group of its own, and reads its own standard input, of which the
run holds the other end. A byte says that the server has come up: from then on it is started again
whenever it ends by itself. When the input closes, also because the run was killed, the group is
ended, and the folder and what the group has in shared memory are removed. It imports nothing of
Gymnast.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

GRACE_S = 10.0
RESTART_AFTER_S = 5.0
LOOK_EVERY_S = 1.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SHARED_MEMORY = ("/dev/shm/psm_", "/dev/shm/sem.mp-")  # as Python's multiprocessing names it


class Keeper:
    """Runs a command, again and again once it has come up.

    Args:
        command: Of the server.
    """

    def __init__(self, command: "list[str]") -> None:
        self._command = command
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        if self._libc is not None:
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._came_up = False
        self._over = threading.Event()
        self._server: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run until the run is over; returns the status of a command that never came up."""
        threading.Thread(target=self._follow_run, args=(os.getppid(),), daemon=True).start()
        while True:
            status = self._once()
            if self._over.is_set() or not self._came_up:
                return status
            print(f"keeper: ended with status {status}; starts again", flush=True)
            if self._over.wait(RESTART_AFTER_S):
                return status

    def stop(self) -> None:
        """End the server for good."""
        self._over.set()
        if self._server is not None:
            end(self._server)

    @property
    def is_over(self) -> bool:
        """Whether the run is, not the command alone."""
        return self._over.is_set()

    def _once(self) -> int:
        server = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=self._dies_with_keeper,  # no thread has taken a lock yet that it needs
        )
        self._server = server
        if self._over.is_set():  # between the end and here
            end(server)
        status = server.wait()
        end(server)  # what it left behind
        return status

    def _dies_with_keeper(self) -> None:
        if self._libc is not None:
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def _follow_run(self, run: int) -> None:
        """Stop when the run has closed its end, or is gone and a fork of it holds that open."""
        while os.getppid() == run:
            readable, _, _ = select.select([0], [], [], LOOK_EVERY_S)
            if readable:
                if not os.read(0, 1024):
                    break
                self._came_up = True
        self.stop()


def end(server: "subprocess.Popen[bytes]") -> None:
    """End the server's process group: first asked, then killed."""
    shared = shared_memory(server.pid)
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 1.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, number)
        ended = time.monotonic() + wait_s
        while time.monotonic() < ended and group_lives(server.pid):
            time.sleep(0.05)
    for path in shared:
        path.unlink(missing_ok=True)


def group_lives(group: int) -> bool:
    """Whether a process of a group is left."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def shared_memory(group: int) -> "set[Path]":
    """The files in shared memory that processes of a group have open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ProcessLookupError):
            if os.getpgid(int(process.name)) == group:
                for line in (process / "maps").read_text().splitlines():
                    path = line.partition("/")
                    if (name := "/" + path[2]).startswith(SHARED_MEMORY):
                        found.add(Path(name.removesuffix(" (deleted)")))
    return found


def main() -> int:
    """Keep the server of the command line; returns its status."""
    folder, *command = sys.argv[1:]
    keeper = Keeper(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's to answer
    signal.signal(signal.SIGTERM, lambda *_: keeper.stop())
    status = keeper.run()
    if keeper.is_over:
        shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
