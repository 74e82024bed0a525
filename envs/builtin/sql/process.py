"""The process in which statements run: starting it, sending it requests, killing it.

SQLite looks at `interrupt()` and at a progress handler only between the operations of its virtual
machine, and one operation, a call of `trim()` for example, may take minutes. A process can be ended
at any moment. Its program is `worker.py`, which documents the frames.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnast.envs.builtin.sql import worker
from gymnast.errors import InfrastructureError
from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE

_START_S = 60.0  # Python takes a tenth of a second, and longer on a busy machine
_GRACE_S = 0.05  # after a timeout, for a reply that is under way: the machine may have stood still
_LONGEST_WAIT_S = 1e6  # a socket accepts no infinite timeout
_MAX_FRAME_BYTES = 2**26  # a reply of `worker.py` has less
_INHERITED = ("LD_LIBRARY_PATH",)  # some Pythons do not start without it


class Killed(Exception):
    """The process ended before it replied; the message gives the reason."""


class StatementProcess:
    """A process that runs statements on the database in a folder.

    It starts with the first request, and again with the next one after it was killed. Requests run
    one at a time; `stop` and `close` may be called from other threads meanwhile.

    Args:
        folder: Holds the file `database`, and is deleted by `close`.
        settings: The arguments of `worker.Session`.
    """

    def __init__(self, folder: Path, settings: Mapping[str, int]) -> None:
        self._folder, self._settings = folder, settings
        self._lock = threading.Lock()  # held during a request
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stops = 0

    def request(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and return its reply.

        Args:
            request: See `worker.py`.
            timeout_s: Seconds until the process is killed, counted from when it has started.

        Raises:
            Killed: The process was killed or ended by itself.
            InfrastructureError: The process cannot be started.
        """
        stops = self._stops
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._end()
                try:
                    self._start()
                except InfrastructureError:
                    if stops == self._stops:
                        raise
            if stops != self._stops:
                raise Killed("stopped: the episode is over")
            deadline = time.monotonic() + min(timeout_s, _LONGEST_WAIT_S)
            try:
                self._send(json.dumps(request).encode(), deadline)
                reply: dict[str, Any] = json.loads(self._receive_frame(deadline))
            except TimeoutError:
                self._end()
                raise Killed(f"stopped after {timeout_s:g} s") from None
            except (OSError, EOFError, ValueError, RecursionError):
                code = self._end()
                raise Killed(f"the statement ended its process (exit code {code})") from None
            return reply

    def stop(self) -> None:
        """End the process if it runs a request, whose caller gets `Killed`."""
        self._stops += 1
        process = self._process
        if self._lock.locked() and process is not None:
            process.kill()  # the request lets go of the lock
            with self._lock:
                self._end()

    def close(self) -> None:
        """End the process and delete its folder."""
        self.stop()
        with self._lock:
            self._end()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        command = [sys.executable, "-I", "-S", worker.__file__, json.dumps(dict(self._settings))]
        try:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    cwd=self._folder,
                    env={MARK_VARIABLE: self._folder.name, **inherited},
                    start_new_session=True,  # Ctrl-C is for the trainer
                )
            self._receive_frame(time.monotonic() + _START_S)
        except (OSError, EOFError, ValueError) as error:
            code = self._end()
            raise InfrastructureError(
                f"the process that runs SQL statements did not start (exit code {code}): "
                f"{type(error).__name__}: {error}"
            ) from error

    def _end(self) -> int | None:
        """Kill the process, and return its exit code; None if there is none."""
        process, self._process = self._process, None
        code = None
        if process is not None:
            process.kill()
            code = process.wait()
        if self._socket is not None:  # not before: at its end the process deletes the database
            self._socket.close()
            self._socket = None
        return code

    def _send(self, data: bytes, deadline: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(_wait_s(deadline))
        self._socket.sendall(len(data).to_bytes(8, "big") + data)

    def _receive_frame(self, deadline: float) -> bytes:
        size = int.from_bytes(self._receive(8, deadline), "big")
        if size > _MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes is larger than {_MAX_FRAME_BYTES}")
        return self._receive(size, deadline)

    def _receive(self, size: int, deadline: float) -> bytes:
        """Receive exactly `size` bytes.

        Raises:
            EOFError: The process has ended.
            TimeoutError: The deadline has passed.
        """
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(_wait_s(deadline))
            piece = self._socket.recv(min(size - len(data), 2**20))
            if not piece:
                raise EOFError("the process has ended")
            data += piece
        return bytes(data)


def _wait_s(deadline: float) -> float:
    """Return the seconds to wait for the process; a few if this one was held up."""
    return max(0.0, deadline - time.monotonic()) + _GRACE_S
