"""A process that outlives the one whose Ray cluster it ends: processes, sockets and files.

    python caretaker.py FOLDER MARK

It waits for the end of its standard input. Then whatever still has the mark in its environment is
killed, and the folder is removed. It uses nothing but Python.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

# For processes to end by themselves, in seconds.
GRACE_S = 5.0
GIVEN_UP_S = 30.0


def marked(mark: bytes) -> Iterator[int]:
    """The ids of processes that have a mark in their environment."""
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        yield int(name)
            except OSError:  # it has ended, or is another user's
                pass


def main() -> None:
    """Wait, and clear away."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder, mark = sys.argv[1], os.fsencode(sys.argv[2])
    sys.stdin.buffer.read()
    began = time.monotonic()
    while left := [*marked(mark)]:
        waited = time.monotonic() - began
        if waited > GRACE_S:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if waited > GIVEN_UP_S:
            break
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
