"""Commands as programs: on this machine, or in the box of their episode.

Functions are in `running.py`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from gymnast.envs.programs.running import BROKEN, STOPPED, Access, ProgramResult, Running
from gymnast.errors import ConfigError, SandboxBroken, SandboxDead, SandboxFileError
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.host.removal import delete_folder
from gymnast.sandboxes.lifetime.living import when_gone
from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE, folder_prefix
from gymnast.sandboxes.lifetime.processes import kill_mark
from gymnast.shared_threads import start_thread

KEPT_BYTES = 64 * 1024
"""How much of the end of stdout, and of stderr, is kept."""

_PIECE_BYTES = 1 << 16
_LAST_OUTPUT_S = 2.0  # for what is written at the end to be read
TASK_FILE = ".gymnast_task.json"
_IN_BOX = f'GYMNAST_TASK="$PWD/{TASK_FILE}" exec "$@"'


class Tail:
    """The end of what a program writes, read on a thread of its own.

    Args:
        read: Returns the next piece; b"" at the end.
        close: Called then.
    """

    def __init__(self, read: Callable[[int], bytes], close: Callable[[], object]) -> None:
        self._read, self._close = read, close
        self._kept, self._dropped = bytearray(), 0
        self._thread = start_thread("gymnast-program-output", self._run)

    def text(self) -> str:
        """What was kept, once there is no more, or soon after the program's end."""
        self._thread.join(_LAST_OUTPUT_S)
        text = bytes(self._kept[-KEPT_BYTES:]).decode(errors="replace")
        dropped = self._dropped + max(0, len(self._kept) - KEPT_BYTES)
        return f"[{dropped} bytes before]\n{text}" if dropped else text

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError, SandboxDead, SandboxBroken):
            while piece := self._read(_PIECE_BYTES):
                self._kept += piece
                if (over := len(self._kept) - 2 * KEPT_BYTES) > 0:
                    del self._kept[: over + KEPT_BYTES]
                    self._dropped += over + KEPT_BYTES
        with contextlib.suppress(OSError, SandboxDead, SandboxBroken):
            self._close()


class HostCommand(Running):
    """A command on this machine, in a session and a temporary folder of its own.

    It finds few environment variables: PATH, HOME, TMPDIR, LANG, those of `Access` and of its
    environment, and GYMNAST_TASK. What it starts ends with it, what has left its session included.

    Args:
        command: An argument vector.
        access: How it reaches the endpoint.
        task: What it is told of the row, which is written to the file GYMNAST_TASK.
        variables: Further environment variables.

    Raises:
        ConfigError: It cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        access: Access,
        task: Mapping[str, Any],
        variables: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._root = root = Path(tempfile.mkdtemp(prefix=folder_prefix()))
        self._folder = root / "work"
        for name in ("work", "home", "tmp"):
            (root / name).mkdir()
        task_file = root / "task.json"
        task_file.write_text(json.dumps(task, ensure_ascii=False), encoding="utf-8")
        path = os.environ.get("PATH", os.defpath)
        environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), path]),
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"),
            "LANG": "C.UTF-8",
            **access.environment,
            **variables,
            "GYMNAST_TASK": str(task_file),
            MARK_VARIABLE: root.name,
        }
        try:
            self._process = subprocess.Popen(
                list(command),
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            delete_folder(root)
            raise ConfigError(
                f"command {list(command)!r} cannot be started: {error}. Its first word must be a "
                "program on the PATH of this process, or the absolute path of one: correct it, or "
                "install the program."
            ) from error
        self._discard = when_gone(self, _discarding(self.ended, root))
        self._stopping = False
        start_thread("gymnast-program", self._watch)

    def stop(self) -> ProgramResult:
        """See `Running.stop`."""
        if not self.ended.done():
            self._stopping = True
            _kill_session(self._process.pid)
        return self.ended.result()

    def remove(self) -> None:
        """See `Running.remove`."""
        self._discard()

    def _watch(self) -> None:
        process = self._process
        assert process.stdout is not None and process.stderr is not None
        streams = process.stdout, process.stderr
        tails = [Tail(partial(os.read, each.fileno()), each.close) for each in streams]
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill_session(process.pid)  # before its id can be another's
        code = process.wait()
        kill_mark(self._root.name)
        stdout, stderr = (tail.text() for tail in tails)
        code = code if code >= 0 else 128 - code
        self.ended.set_result(
            ProgramResult(code, stdout, stderr, stopped=self._stopping, folder=self._folder)
        )


class BoxCommand(Running):
    """A command in the box of its episode, where it finds the files and variables of the box.

    Args:
        command: An argument vector.
        access: How it reaches the endpoint.
        task: What it is told of the row, which is written to the file GYMNAST_TASK.
        variables: Further environment variables.
        box: The box.

    Raises:
        ConfigError: It cannot be started.
        SandboxDead: The box is closed or broken.
    """

    def __init__(
        self,
        command: Sequence[str],
        access: Access,
        task: Mapping[str, Any],
        variables: Mapping[str, str],
        box: Sandbox,
    ) -> None:
        super().__init__()
        box.write_file(TASK_FILE, json.dumps(task, ensure_ascii=False))
        try:
            self._process = box.start(
                ["sh", "-c", _IN_BOX, "sh", *command], env={**access.environment, **variables}
            )
        except SandboxFileError as error:
            raise ConfigError(
                f"command {list(command)!r} cannot be started in the sandbox: {error}. It is "
                "started by `sh`, which the image must have: choose another one."
            ) from error
        self._stopping = False
        start_thread("gymnast-program", self._watch)

    def stop(self) -> ProgramResult:
        """See `Running.stop`."""
        if not self.ended.done():
            self._stopping = True
            with contextlib.suppress(SandboxDead, SandboxBroken):
                self._process.kill()
        return self.ended.result()

    def remove(self) -> None:
        """See `Running.remove`."""
        with contextlib.suppress(SandboxDead, SandboxBroken):
            self._process.close()

    def _watch(self) -> None:
        process = self._process
        tails = [Tail(each.read, each.close) for each in (process.stdout, process.stderr)]
        code = BROKEN
        with contextlib.suppress(SandboxDead, SandboxBroken):
            code = process.wait()
            process.kill()
        if self._stopping and code == BROKEN:
            code = STOPPED
        stdout, stderr = (tail.text() for tail in tails)
        self.ended.set_result(ProgramResult(code, stdout, stderr, stopped=self._stopping))


def _kill_session(pid: int) -> None:
    """Kill a process that leads a session, and those in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _discarding(ended: "Future[ProgramResult]", root: Path) -> Callable[[], None]:
    """What ends a command and removes its folder, without a reference to it."""

    def discard() -> None:
        if not ended.done():
            kill_mark(root.name)
        delete_folder(root)

    return discard
