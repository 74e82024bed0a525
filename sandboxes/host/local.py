"""Running code on the host itself, in a folder of its own. No isolation."""

import os
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes.contract.packages import python_path
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.sandboxes.host.removal import delete_folder, end_process, undone_unless_whole
from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE, folder_prefix
from gymnast.sandboxes.lifetime.processes import kill_mark
from gymnast.sandboxes.worker.program import command
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from gymnast.visible import visible_logger

log = visible_logger("gymnast.sandboxes")


class LocalSandbox(WorkerSandbox):
    """Runs code as this user, on this machine. For trusted code, and for tests.

    It protects from accidents, not from intent. The code has the user's files, network, devices
    and processes; it can read the files of the run, kill the worker (which leaves the box dead, and
    perhaps processes running), and forge its answers if it may ptrace the same user or is root. It
    starts without the host's environment variables except `PATH`, in a temporary folder of its own,
    which `close` deletes.

    Limits that hold: wall time, output, and for each single process memory (`RLIMIT_DATA`), the
    size of a file (`RLIMIT_FSIZE`), open files and no core dumps. Those that do not: processes,
    CPU, the total of memory and of files, the network. The verdict "oom" does not occur: if memory
    is refused, the code gets an error.

    Args:
        spec: The limits; `image`, `runtime` and `python` mean nothing here, nor do `network`,
            `endpoint` and `root`: code has the user's.
    """

    def __init__(self, spec: SandboxSpec | None = None) -> None:
        super().__init__(spec or SandboxSpec())
        if self.spec.user is not None:
            raise SandboxUnavailable(
                f"user is {self.spec.user!r}; a local box runs as the run's own user: use the "
                'backend "docker", or leave user out'
            )
        _warn_once()
        with undone_unless_whole() as made:
            self.folder = folder = Path(tempfile.mkdtemp(prefix=folder_prefix()))
            made.callback(delete_folder, folder)
            process, ours = self._start()
        self._connect(
            ours,
            lambda: _discard(process, ours, folder),
            alone=False,
            rlimits={
                "RLIMIT_CORE": 0,
                "RLIMIT_DATA": self.spec.memory_bytes,
                "RLIMIT_FSIZE": self.spec.disk_bytes,
                "RLIMIT_NOFILE": 1024,
            },
        )

    def _start(self) -> tuple["subprocess.Popen[bytes]", socket.socket]:
        """Start the process that becomes the worker; return it and our end of its connection."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(
                    command(sys.executable),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    cwd=self.folder,
                    env=self._environment(),
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        return process, ours

    def _environment(self) -> dict[str, str]:
        path = os.environ.get("PATH", os.defpath)
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), path]),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "LANG": "C.UTF-8",
            **self.spec.env,
            **python_path(self.spec.packages, self.spec.env),
            MARK_VARIABLE: self.folder.name,
        }

    def _name(self) -> str:
        return f"the local sandbox in {self.folder}"


@cache
def _warn_once() -> None:
    log.warning("LocalSandbox does not isolate: code runs as this user, with its files and network")


def _discard(process: "subprocess.Popen[bytes]", connection: socket.socket, folder: Path) -> None:
    """End the worker and all that it has started; delete the folder."""
    end_process(process, connection)
    if process.returncode != 0:
        kill_mark(folder.name)
    delete_folder(folder)
