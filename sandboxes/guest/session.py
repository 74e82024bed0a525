"""The Python session as the worker sees it: a child process that it sends code to."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Callable, List, Optional

from gymnast.sandboxes.guest import confine, interpreter
from gymnast.sandboxes.guest.processes import Processes, set_dumpable


class Session:
    """One Python session after another; a new one is forked when the last has ended.

    Args:
        processes: The processes below the worker.
        scoped: Whether a session is kept from signalling the worker.

    Attributes:
        pid: The session's process id; None while there is none.
        stdout: A descriptor to read its output from.
        stderr: A descriptor to read its errors from.
        commands: A descriptor to write code to.
        done: A descriptor that yields one byte, the exit code, when the code has ended; it is at
            its end if the guest closed it.
        lost: Whether a session has ended without the host having been told.
    """

    def __init__(self, processes: Processes, scoped: bool = False) -> None:
        self.pid: Optional[int] = None
        self.lost = False
        self.stdout = self.stderr = self.commands = self.done = -1
        self._processes = processes
        self._scoped = scoped

    def ensure(self, before_fork: Callable[[], object]) -> None:
        """Fork a session unless there is one: before a call, and its nonce, is read.

        Args:
            before_fork: Called before: it must see to it that no nonce is in memory that the host
                still takes.
        """
        self._processes.reap()
        if self.pid is not None and (self.pid in self._processes.ended or self._out_of_step()):
            if not self._processes.kill():
                raise RuntimeError("a Python session cannot be killed")
            self.lost = True
            self.forget()
        if self.pid is None:
            before_fork()
            self._start()

    def _out_of_step(self) -> bool:
        """Whether the session reports an end although no code runs: only the guest can do that."""
        try:
            os.read(self.done, 1)
        except BlockingIOError:
            return False
        return True

    def forget(self) -> int:
        """Release a session that has ended.

        Returns:
            Its exit code, or -1.
        """
        code = self._processes.ended.pop(self.pid, -1) if self.pid is not None else -1
        for fd in (self.stdout, self.stderr, self.commands, self.done):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.stdout = self.stderr = self.commands = self.done = -1
        self.pid = None
        return code

    def _start(self) -> None:
        pipes = [os.pipe() for _ in range(4)]
        (code_out, code_in), (done_out, done_in), (stdout, write_1), (stderr, write_2) = pipes
        try:
            with self._processes.first_victims():
                pid = os.fork()
        except OSError:
            for fd in [fd for pipe in pipes for fd in pipe]:
                os.close(fd)
            raise
        if pid == 0:
            _become_session(code_out, done_in, write_1, write_2, self._scoped)
        for fd in (code_out, done_in, write_1, write_2):
            os.close(fd)
        for fd in (code_in, done_out, stdout, stderr):
            os.set_blocking(fd, False)
        self.pid, self.stdout, self.stderr, self.commands, self.done = (
            pid, stdout, stderr, code_in, done_out,
        )  # fmt: skip
        self._processes.watch(pid)


def _become_session(commands: int, done: int, stdout: int, stderr: int, scoped: bool) -> None:
    """Run the session in this process, which has just been forked. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        _close_all_but([commands, done])
        if scoped:
            confine.signal_own_processes_only()
        else:
            set_dumpable(True)  # from here on nothing of the worker's is within reach
        interpreter.serve(commands, done, os.environ.get("PYTHONPATH", ""))
    finally:
        os._exit(70)


def _close_all_but(kept: List[int]) -> None:
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, max(low, os.sysconf("SC_OPEN_MAX")))
