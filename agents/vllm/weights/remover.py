"""A process that removes a folder when the run that made it ends, however that ends.

    python remover.py FOLDER

It reads its own standard input, of which the run holds the other end; when that closes, also
because the run was killed, or says anything, the folder is removed. It imports nothing of Gymnast.
"""

import os
import shutil
import signal
import sys


def main() -> int:
    """Wait for the end of the run; returns 0."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # those who end the run may end its children, too
    os.read(0, 1)
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
