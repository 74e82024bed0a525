"""The connection to a Docker engine: one client a process, and the stream of a container.

A watch tells whether the engine has stopped since a box was made.
"""

import contextlib
import os
import socket
import ssl
import threading
from functools import cache
from typing import Any

import docker.errors
import docker.utils
import requests.exceptions

import docker
from gymnast.errors import SandboxTemporarilyUnavailable, SandboxUnavailable
from gymnast.sandboxes.lifetime.users import all_ids_are_here

ENGINE_ERRORS = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)
ENGINE_TIMEOUT_S = 60
_PING_S = 10.0
_PIECES_AT_ONCE = 64

_clients: dict[tuple[int, str], Any] = {}
_clients_lock = threading.Lock()


def engine_address() -> str:
    """`DOCKER_HOST`, or the default."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def engine_client() -> Any:
    """The low-level client of this process for the engine that `DOCKER_HOST` names.

    Raises:
        SandboxTemporarilyUnavailable: No engine answers there now.
        SandboxUnavailable: No engine can answer there: the address is wrong, for example.
    """
    key = (os.getpid(), engine_address())
    with _clients_lock:
        if key not in _clients:
            try:
                _knock(key[1])
                client = _Client(key[1])
                client.ping()
            except ENGINE_ERRORS as error:
                kind = SandboxTemporarilyUnavailable if may_pass(error) else SandboxUnavailable
                raise kind(
                    f"no Docker engine answers at {engine_address()}: {error}. Start one "
                    "(dockerd), or set DOCKER_HOST to one that runs"
                ) from None
            _clients[key] = client
        return _clients[key]


@cache
def has_all_user_ids(client: Any) -> bool:
    """Whether an engine's containers have every user id, or only the few that are mapped for them.

    By default 65,536 ids are mapped with `userns-remap`, for a rootless engine, and inside another
    container, where this process most likely runs too.
    """
    options = client.info().get("SecurityOptions") or []
    return all_ids_are_here() and not any(
        option.startswith(("name=userns", "name=rootless")) for option in options
    )


def may_pass(error: Exception) -> bool:
    """Whether an engine may succeed later at what failed now.

    It may after a failure of its own (5xx), a conflict, a vanished container or a broken
    connection. It will not after a refusal: an image that it does not have, a limit that it does
    not accept, a user who may not use its socket.
    """
    if isinstance(error, docker.errors.APIError):
        if isinstance(error, docker.errors.ImageNotFound):
            return False
        status = error.status_code
        return status is None or status >= 500 or status in (404, 409, 429)
    if isinstance(error, docker.errors.DockerException):
        return str(error).startswith("Error while fetching server API version")
    return not isinstance(error, PermissionError)


class _Client(docker.APIClient):  # type: ignore[misc]
    """The SDK's client, which checks before every request that the engine listens."""

    def __init__(self, address: str) -> None:
        self._address = address
        settings = docker.utils.kwargs_from_env()
        super().__init__(timeout=ENGINE_TIMEOUT_S, max_pool_size=64, **settings)
        self._boxes, self._counting = 0, threading.Lock()
        self._watching = threading.Lock()
        self._watch: EngineWatch | None = None

    def count_boxes(self, more: int) -> None:
        """Count a box that is about to be made, or one that is gone.

        When none is left, idle connections are closed, but not the watch, which closed boxes may
        still ask.
        """
        with self._counting:
            self._boxes += more
            if self._boxes == 0:
                super().close()

    def watch(self) -> "EngineWatch":
        """The watch on the engine that runs now; all boxes that it makes share one.

        Raises:
            Exception: One of `ENGINE_ERRORS`.
        """
        with self._watching:
            if self._watch is None or self._watch.engine_has_gone():
                self._watch = EngineWatch(self)
            return self._watch

    def answers(self) -> bool:
        """Whether the engine answers now."""
        try:
            self._result(self._get(self._url("/_ping"), timeout=_PING_S))
        except ENGINE_ERRORS:
            return False
        return True

    def close(self) -> None:
        """Close idle connections, and the watch."""
        with self._watching:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        super().close()

    def send(self, request: Any, **settings: Any) -> Any:
        """Send a request.

        Raises:
            OSError: Nobody listens.
        """
        _knock(self._address)
        return super().send(request, **settings)


def _knock(address: str) -> None:
    """Raise OSError where nobody listens; the SDK would leave its socket open."""
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ENGINE_TIMEOUT_S)
            probe.connect(address.removeprefix("unix://"))


class EngineWatch:
    """An endless request to an engine: its connection lasts as long as the engine runs.

    So it tells an engine that was stopped, or restarted, from one that has run all the time.
    Nothing that happens in a container can end it. No thread waits for it.

    Args:
        client: The engine's client.
    """

    def __init__(self, client: Any) -> None:
        # For events that hardly ever come: a reload of the engine's settings.
        url, wanted = client._url("/events"), {"filters": '{"type": ["daemon"]}'}
        self._response = client._get(url, params=wanted, stream=True)
        self._attached = client._get_raw_response_socket(self._response)
        self._socket: Any = getattr(self._attached, "_sock", self._attached)
        self._lock = threading.Lock()
        self._gone = False

    def engine_has_gone(self) -> bool:
        """Whether the engine has stopped since, or the connection to it was lost."""
        with self._lock:
            while not self._gone:
                try:
                    self._socket.settimeout(0.0)
                    self._gone = not self._socket.recv(1 << 16)
                except (BlockingIOError, ssl.SSLWantReadError):
                    return False
                except (OSError, ValueError):
                    self._gone = True
            self._close()
            return True

    def close(self) -> None:
        """Free the descriptor. From now on the engine counts as gone."""
        with self._lock:
            self._gone = True
            self._close()

    def _close(self) -> None:
        for closing in (self._attached, self._socket, self._response):
            with contextlib.suppress(OSError, ValueError):
                closing.close()


class AttachedStream:
    """The stdin and stdout of a container as one stream; its stderr is kept separately.

    For a container without a terminal the engine puts 8 bytes before each piece of output: the
    number of its stream, three zeros, and its length.

    Args:
        attached: What `attach_socket` returned. It keeps the response alive that owns the socket.
    """

    def __init__(self, attached: Any) -> None:
        self.stderr = bytearray()
        self._attached = attached
        self._socket: socket.socket = getattr(attached, "_sock", attached)
        self._header = bytearray()
        self._left = 0  # of the piece that is being read
        self._kind = 0

    def fileno(self) -> int:
        """See `link.Stream`."""
        return self._socket.fileno()

    def setblocking(self, flag: bool, /) -> None:
        """See `link.Stream`."""
        self._socket.setblocking(flag)

    def send(self, data: memoryview, /) -> int:
        """See `link.Stream`."""
        return self._socket.send(data)

    def recv(self, size: int, /) -> bytes:
        """See `link.Stream`."""
        for _ in range(_PIECES_AT_ONCE):
            if self._left == 0:
                piece = self._socket.recv(8 - len(self._header))
                if not piece:
                    return b""
                self._header += piece
                if len(self._header) == 8:
                    self._kind, self._left = (
                        self._header[0],
                        int.from_bytes(self._header[4:], "big"),
                    )
                    self._header.clear()
                continue
            piece = self._socket.recv(min(self._left, size))
            self._left -= len(piece)
            if self._kind == 1 or not piece:
                return piece
            self.stderr = (self.stderr + piece)[-4000:]
        raise InterruptedError  # it may send stderr without end

    def shutdown(self) -> None:
        """End the connection; a thread that waits in `recv` gets b""."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the descriptor."""
        response = getattr(self._attached, "_response", None)
        for closing in (self._attached, self._socket, response):
            if closing is not None:
                with contextlib.suppress(OSError, ValueError):
                    closing.close()
