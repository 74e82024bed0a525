"""A server of the host's that boxes with an endpoint may reach."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest


class Echo:
    """Sends back what it receives, on the host's loopback.

    Attributes:
        address: Where it listens, as a spec names it.
        port: Its port.
        most: How many connections it has had at once.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.most = self._now = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections. May be called again."""
        with contextlib.suppress(OSError):  # it is closed
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            with connection:
                while data := connection.recv(1 << 16):
                    if data.startswith(b"flood"):
                        while True:
                            connection.sendall(b"x" * (1 << 16))
                    connection.sendall(data)
        except OSError:
            pass
        finally:
            with self._lock:
                self._now -= 1


@pytest.fixture
def echo() -> Iterator[Echo]:
    """A server that sends back what it receives."""
    server = Echo()
    yield server
    server.close()
