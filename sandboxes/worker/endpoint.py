"""The one address of the host that a box may reach: its connections, carried by the worker.

The box has no network. Its worker listens on the box's own loopback, and the host asks it for
connections, over the connection that all requests take. So nothing but this address can be
reached, whatever code in the box does, and no port of the host is opened.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial

from gymnast.sandboxes.guest.protocol import Header
from gymnast.sandboxes.worker.link import Link, LinkClosed, LinkTimeout
from gymnast.sandboxes.worker.results import BrokenAnswer, failure_in, field, taken_of
from gymnast.visible import visible_logger

_WAIT_S = 60.0  # then the worker is asked again
_GRACE_S = 30.0
_CONNECT_S = 10.0
_PIECE_BYTES = 1 << 16

_BOX_IS_GONE = (LinkClosed, LinkTimeout, BrokenAnswer)

log = visible_logger("gymnast.sandboxes")


def forward_connections(link: Link, address: tuple[str, int]) -> None:
    """Carry connections of a box to an address until the box is gone, on threads of their own.

    Args:
        link: The connection to the worker, which was told to listen.
        address: The host and the port to connect to.
    """
    _start(_Forwarding(link, address).accept)


class _Forwarding:
    def __init__(self, link: Link, address: tuple[str, int]) -> None:
        self._link, self._address = link, address
        self._servers: set[socket.socket] = set()
        self._warned = False

    def accept(self) -> None:
        """A thread: takes connections until the box is gone."""
        with contextlib.suppress(*_BOX_IS_GONE):
            while True:
                answer, _ = self._ask({"op": "accept"}, b"", 0)
                if answer.get("process") is not None:
                    _start(partial(self._carry, field(answer, "process", int)))
        for server in list(self._servers):
            _end(server)  # wakes whoever waits for it

    def _carry(self, number: int) -> None:
        """A thread: connects, and carries what code in the box sends; another one the answers."""
        with contextlib.suppress(*_BOX_IS_GONE):
            try:
                with socket.create_connection(self._address, _CONNECT_S) as server:
                    server.settimeout(None)
                    self._servers.add(server)
                    answering = _start(partial(self._carry_answers, server, number))
                    try:
                        self._carry_requests(server, number)
                        answering.join()
                    finally:
                        self._servers.discard(server)
                        _end(server)
            except OSError as error:
                self._warn(error)
            self._ask({"op": "forget", "process": number}, b"", 0)

    def _warn(self, error: OSError) -> None:
        """Say once that the address does not answer: code in the box may try without end."""
        if not self._warned:
            log.warning("a box cannot reach its endpoint %s:%d: %s", *self._address, error)
        self._warned = True

    def _carry_requests(self, server: socket.socket, number: int) -> None:
        header = {"op": "receive", "process": number, "stream": 1, "most": _PIECE_BYTES}
        while True:
            answer, data = self._ask(header, b"", _PIECE_BYTES)
            try:
                if field(answer, "end", bool):
                    server.shutdown(socket.SHUT_WR)
                    return
                server.sendall(data)
            except OSError:  # the server does not listen any more; its answer may be under way
                self._ask({"op": "close", "process": number, "stream": 1}, b"", 0)
                return

    def _carry_answers(self, server: socket.socket, number: int) -> None:
        """A thread: carries what the server sends."""
        with contextlib.suppress(*_BOX_IS_GONE):
            with contextlib.suppress(OSError):
                while data := server.recv(_PIECE_BYTES):
                    while data:
                        answer, _ = self._ask({"op": "send", "process": number}, data, 0)
                        taken, is_open = taken_of(answer, len(data))
                        if not is_open:
                            _end(server)
                            return
                        data = data[taken:]
            self._ask({"op": "close", "process": number, "stream": 0}, b"", 0)

    def _ask(self, header: Header, payload: bytes, most: int) -> tuple[Header, bytes]:
        answer, data = self._link.request(
            {**header, "wait_s": _WAIT_S},
            payload,
            timeout_s=_WAIT_S + _GRACE_S,
            max_answer_bytes=most,
        )
        if failed := failure_in(answer):
            raise BrokenAnswer(failed.text)
        return answer, data


def _start(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target, name="gymnast-endpoint", daemon=True)
    thread.start()
    return thread


def _end(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)
