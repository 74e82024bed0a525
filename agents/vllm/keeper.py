"""A process that ends a server when the run that started it ends, however that ends.

    python keeper.py COMMAND...

It starts the command in a process group of its own and reads its own standard input, of which the
run holds the other end. When that closes, also because the run was killed, the group is ended. It
imports nothing of Gymnast.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 10.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> int:
    """Run the command until it ends, or until standard input closes; returns its status."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)

    def dies_with_keeper() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's to answer
    server = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=dies_with_keeper,  # nothing else runs here yet
    )
    signal.signal(signal.SIGTERM, lambda *_: end(server))
    threading.Thread(target=end_at_eof, args=(server,), daemon=True).start()
    status = server.wait()
    end(server)  # what it left behind
    return status


def end_at_eof(server: "subprocess.Popen[bytes]") -> None:
    """Wait until the run has closed its end, and end the server."""
    while os.read(0, 1024):
        pass
    end(server)


def end(server: "subprocess.Popen[bytes]") -> None:
    """End the server's process group: first asked, then killed."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 0.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, number)
        ended = time.monotonic() + wait_s
        while time.monotonic() < ended and group_lives(server.pid):
            time.sleep(0.05)


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


if __name__ == "__main__":
    sys.exit(main())
