"""The connection to a Docker engine: one client a process, and the stream of a container.

Besides, a watch on whether the engine has gone in the meantime.

Left out: what a container may do (`sandbox.py`).
"""

import contextlib
import math
import os
import socket
import ssl
import threading
import time
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

_clients: dict[tuple[int, str], Any] = {}
_clients_lock = threading.Lock()


def engine_address() -> str:
    """What `DOCKER_HOST` says, or the default."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def engine_client() -> Any:
    """The low-level client of this process for the engine that `DOCKER_HOST` names.

    Raises:
        SandboxTemporarilyUnavailable: No engine answers there now.
        SandboxUnavailable: Nor can any, as the address is wrong, say.
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
    """Whether an engine's containers have every user id, or the few that are mapped for them.

    It has 65,536 ids, if nothing else is configured, with `userns-remap`, without root, and in a
    container of another kind, where this process most likely is, too.
    """
    options = client.info().get("SecurityOptions") or []
    return all_ids_are_here() and not any(
        option.startswith(("name=userns", "name=rootless")) for option in options
    )


def may_pass(error: Exception) -> bool:
    """Whether what an engine could not do may succeed later.

    Its own failures (5xx), a conflict, a container that vanished, and a connection that broke may.
    What it refuses will not: an image it does not have, a limit it does not take, a user who may
    not use its socket.
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
    """The SDK's client, which knocks before every request: the engine may have gone."""

    def __init__(self, address: str) -> None:
        self._address = address
        settings = docker.utils.kwargs_from_env()
        super().__init__(timeout=ENGINE_TIMEOUT_S, max_pool_size=64, **settings)
        self._boxes, self._counting = 0, threading.Lock()
        self._watching = threading.Lock()
        self._watch: EngineWatch | None = None

    def count_boxes(self, more: int) -> None:
        """Count a box that is about to be made, or one that has gone.

        When none is left, idle connections are closed; not the watch: boxes may ask it later on.
        """
        with self._counting:
            self._boxes += more
            if self._boxes == 0:
                super().close()

    def watch(self) -> "EngineWatch":
        """The watch on the engine as it runs now; all boxes that it makes meanwhile share one.

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
    """A request to an engine that has no end: its connection lasts as long as that engine does.

    So it tells an engine that was stopped, or stopped and started again, from one that has run all
    the while. Nothing that happens in a container can end it. No thread waits for it.

    Args:
        client: The engine's client.
    """

    def __init__(self, client: Any) -> None:
        # Of events that hardly ever come: a reload of the engine's settings.
        url, wanted = client._url("/events"), {"filters": '{"type": ["daemon"]}'}
        self._response = client._get(url, params=wanted, stream=True)
        self._attached = client._get_raw_response_socket(self._response)
        self._socket: Any = getattr(self._attached, "_sock", self._attached)
        self._lock = threading.Lock()
        self._gone = False

    def engine_has_gone(self) -> bool:
        """Whether the engine has ended since, or the way to it was lost."""
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
        """Free the descriptor. Boxes that were made meanwhile are not to be asked any more."""
        with self._lock:
            self._gone = True
            self._close()

    def _close(self) -> None:
        for closing in (self._attached, self._socket, self._response):
            with contextlib.suppress(OSError, ValueError):
                closing.close()


class AttachedStream:
    """The stdin and stdout of a container as one stream, its stderr aside.

    Without a terminal the engine puts 8 bytes before each piece of output: which stream it is of,
    three zeros, and its length.

    Args:
        attached: What `attach_socket` gave; it also keeps the response alive that owns the socket.
    """

    def __init__(self, attached: Any) -> None:
        self.stderr = bytearray()
        self._attached = attached
        self._socket: socket.socket = getattr(attached, "_sock", attached)
        self._header = bytearray()
        self._left = 0  # of the piece that is being read
        self._kind = 0
        self._until = math.inf

    def settimeout(self, value: float | None, /) -> None:
        """See `link.Stream`."""
        self._until = math.inf if value is None else time.monotonic() + value
        self._socket.settimeout(value)

    def sendall(self, data: bytes, /) -> None:
        """See `link.Stream`."""
        self._socket.sendall(data)

    def recv(self, size: int, /) -> bytes:
        """See `link.Stream`."""
        while True:
            if self._left == 0:
                piece = self._receive(8 - len(self._header))
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
            piece = self._receive(min(self._left, size))
            self._left -= len(piece)
            if self._kind == 1 or not piece:
                return piece
            self.stderr = (self.stderr + piece)[-4000:]

    def _receive(self, size: int) -> bytes:
        """Receive from the engine: one `recv` here may take endlessly many, of stderr."""
        if self._until < math.inf:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
        return self._socket.recv(size)

    def shutdown(self) -> None:
        """End the connection; whoever waits in `recv` gets b""."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the descriptor."""
        response = getattr(self._attached, "_response", None)
        for closing in (self._attached, self._socket, response):
            if closing is not None:
                with contextlib.suppress(OSError, ValueError):
                    closing.close()
