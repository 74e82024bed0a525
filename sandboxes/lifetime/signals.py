"""Ending cleanly on SIGTERM, which by default ends Python before anything is closed.

Installed by the command line's train and eval, never on import. After SIGKILL, which no process
can handle, the next run sweeps (`backends/sweep.py`).
"""

import os
import signal
import threading
from types import FrameType

from gymnast.sandboxes.lifetime.living import discard_all

CLOSE_S = 10.0  # at most, before the process ends without having closed all


def close_boxes_on_sigterm() -> None:
    """Let SIGTERM close this process's boxes from now on, then do what it did before.

    Does nothing if SIGTERM is ignored, or in any thread but the main one, which alone can install
    handlers.
    """
    before = signal.getsignal(signal.SIGTERM)
    if before in (None, signal.SIG_IGN):
        return
    if threading.current_thread() is not threading.main_thread():
        return
    owner = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)  # a second one does not wait
        if os.getpid() == owner:
            # On a thread: the code that was interrupted may hold a lock that closing needs.
            closing = threading.Thread(
                target=discard_all, kwargs={"timeout_s": CLOSE_S}, daemon=True
            )
            closing.start()
            closing.join(CLOSE_S)
        if callable(before):
            before(number, frame)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, handle)
