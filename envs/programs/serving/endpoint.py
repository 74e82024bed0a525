"""The endpoint: what programs take for a model server, one a process, on this machine alone."""

import asyncio
import os
import socket
import threading
from typing import Any

from gymnast.envs.programs.serving.application import Application
from gymnast.envs.programs.serving.lines import Line
from gymnast.errors import ConfigError, first_line
from gymnast.shared_threads import start_thread

KEEP_ALIVE_S = 24 * 3600
"""How long a connection may be idle: a program's tools take their time."""


class Endpoint:
    """An HTTP server on a thread and an event loop of its own; it listens on 127.0.0.1 alone.

    Attributes:
        port: Chosen by the system.

    Raises:
        ConfigError: A package that it needs is missing.
    """

    def __init__(self) -> None:
        server_class, config_class, connection_class = _packages()
        self._lines: dict[str, Line] = {}
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port: int = self._socket.getsockname()[1]
        config = config_class(
            Application(self._lines, self.port),
            http=connection_class,
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        self._server = server_class(config)
        self._thread = start_thread("gymnast-programs", self._serve)

    @staticmethod
    def shared() -> "Endpoint":
        """The endpoint of this process, started when it is first asked for, and again once stopped.

        Raises:
            ConfigError: A package that it needs is missing.
        """
        global _shared
        with _lock:
            if _shared is None or not _shared._thread.is_alive():
                _shared = Endpoint()
            return _shared

    @property
    def url(self) -> str:
        """Its address, "http://127.0.0.1:PORT". OpenAI's clients take it with "/v1" behind it."""
        return f"http://127.0.0.1:{self.port}"

    def open(self, *, parallel: bool = True) -> Line:
        """Open the line of an episode, with a key of its own.

        Args:
            parallel: Whether its program may ask while another request of it is unanswered.
        """
        line = Line(parallel=parallel, closed=self._forget)
        self._lines[line.key] = line
        return line

    def stop(self) -> None:
        """Close all lines and connections, and wait for the end of the thread."""
        for line in list(self._lines.values()):
            line.close()
        self._server.should_exit = True
        self._thread.join()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def _forget(self, key: str) -> None:
        self._lines.pop(key, None)

    def _leave_to_parent(self) -> None:
        """In a forked child: hold open neither the port nor a connection, and touch no loop."""
        self._socket.close()
        nowhere = os.open(os.devnull, os.O_RDONLY)
        for connection in self._server.server_state.connections:
            held = connection.transport.get_extra_info("socket").fileno()
            if held >= 0:  # asyncio's own object goes on to hold the number
                os.dup2(nowhere, held, inheritable=False)
        os.close(nowhere)

    def __reduce__(self) -> Any:
        return Endpoint.shared, ()  # another process has its own


def _packages() -> tuple[Any, Any, Any]:
    try:
        import httptools  # noqa: F401
        import uvicorn

        from gymnast.envs.programs.serving.protocol import Connection
    except ImportError as error:
        raise ConfigError(
            "programs need the packages uvicorn and httptools, which cannot be imported "
            f"({first_line(error)}). Run: pip install 'gymnast-rl[programs]'"
        ) from error
    return uvicorn.Server, uvicorn.Config, Connection


_lock = threading.Lock()
_shared: Endpoint | None = None
_inherited: list[Endpoint] = []  # kept whole: what ends a loop would reach into the parent's


def _leave_to_parent() -> None:
    """A forked child has no thread of the endpoint, and must hold nothing of it open."""
    global _lock, _shared
    _lock = threading.Lock()
    if _shared is not None:
        _inherited.append(_shared)
        _shared._leave_to_parent()
        _shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
