"""Starting a program below the worker, with pipes for its streams."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any, Dict, Iterable, List, Tuple

from gymnast.sandboxes.guest import confine
from gymnast.sandboxes.guest.processes import Processes

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # what a shell says

Streams = Tuple[int, int, int]  # descriptors for stdin, stdout and stderr


def restore_signals() -> None:
    """Undo the ignoring and blocking of signals by the run's parent (`nohup`, a shell's `&`).

    SIGPIPE and SIGXFSZ stay: Python itself ignores them, and restores them in what it starts.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - kept:
        signal.signal(number, signal.SIG_DFL)


def pipes() -> Tuple[Streams, Streams]:
    """The program's ends of three pipes, and the worker's, which never block.

    Raises:
        OSError: There are no descriptors left.
    """
    made: List[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
    except OSError:
        close_all(made)
        raise
    stdin, ours_0, ours_1, stdout, ours_2, stderr = made
    for fd in (ours_0, ours_1, ours_2):
        os.set_blocking(fd, False)
    return (stdin, stdout, stderr), (ours_0, ours_1, ours_2)


def close_all(fds: Iterable[int]) -> None:
    """Close these descriptors."""
    for fd in fds:
        os.close(fd)


def spawn(request: Dict[str, Any], streams: Streams, processes: Processes, scoped: bool) -> int:
    """Start a program in a session of its own.

    Args:
        request: Has its `argv`, `cwd` and `env`.
        streams: What become its stdin, stdout and stderr.
        processes: Watches it from now on.
        scoped: Whether Landlock keeps it from signalling others.

    Returns:
        Its process id.

    Raises:
        OSError: It cannot be started.
    """
    stdin, stdout, stderr = streams
    with processes.first_victims():
        child = subprocess.Popen(
            request["argv"],
            bufsize=0,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=request["cwd"],
            env={**os.environ, **request["env"]},
            start_new_session=True,
            preexec_fn=confine.signal_own_processes_only if scoped else None,
        )
    child.returncode = 0  # or its destructor, or that of the next, would wait for it
    processes.watch(child.pid)
    return child.pid


def why_not(request: Dict[str, Any], error: OSError) -> Tuple[int, str]:
    """The exit code and the words of a shell for a program that cannot be started."""
    name = error.filename if error.filename is not None else request["argv"][0]
    code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
    return code, "%s: %s" % (name, error.strerror)
