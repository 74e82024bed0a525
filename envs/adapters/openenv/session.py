"""A session with a server of OpenEnv's: one connection, on which each request has one answer.

The client is a blocking one, as an episode may go on in another event loop than it began in.
"""

import json
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gymnast.envs.adapters.openenv.texts import problem
from gymnast.errors import InfrastructureError

_MAX_BYTES = 16 * 2**20  # of an answer
_CLOSE_S = 1.0  # for the server to take leave
_PAUSE_S = 0.5  # until a server that is full is asked again
_OWN_MACHINE = ("localhost", "127.0.0.1", "::1")


class Refused(Exception):
    """The server says that it cannot do what it was asked; the session goes on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def ask_about(url: str, headers: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    """What a server says at an address, which is JSON.

    Args:
        url: "http://localhost:8000/schema".
        headers: Of the request.
        timeout_s: Seconds until the answer has to be there.

    Raises:
        InfrastructureError: It says nothing, too much, or something else.
    """
    ends = time.monotonic() + timeout_s
    without = [urllib.request.ProxyHandler({})] if _is_near(url) else []
    opener = urllib.request.build_opener(*without)
    said = bytearray()
    try:
        with opener.open(
            urllib.request.Request(url, headers=dict(headers)), timeout=timeout_s
        ) as answer:
            while part := answer.read1(2**16):
                said += part
                if len(said) > _MAX_BYTES:
                    raise ValueError(f"it says more than {_MAX_BYTES} bytes")
                if time.monotonic() > ends:
                    raise TimeoutError
        found = json.loads(said)
        if not isinstance(found, dict):
            raise ValueError(f"it says {said[:200]!r}, not a JSON object")
    except Exception as error:
        if isinstance(error, HTTPError):  # which is the answer as well
            error.close()
        raise _broken(url, error, timeout_s) from error
    return found


class Session:
    """A session, which has an environment of its own in the server.

    Args:
        url: Of the server: "http://localhost:8000".
        headers: Of the request that opens the connection.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url = url
        self._headers = dict(headers)
        self._connection: Any = None
        self._is_asked = self._is_closed = False

    def begin(self, parameters: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Connect, and reset the environment; a server that is full is asked again.

        Args:
            parameters: Of its reset.
            timeout_s: Seconds until it has to have answered.

        Raises:
            InfrastructureError: It cannot be reached, is full, or does not answer as it should.
        """
        ends = time.monotonic() + timeout_s
        while True:
            left_s = max(0.1, ends - time.monotonic())
            self._connect(left_s)
            try:
                return self.ask("reset", parameters, left_s)
            except Refused as error:
                self._disconnect()
                is_full = error.code == "CAPACITY_REACHED"
                if not is_full or time.monotonic() + _PAUSE_S > ends:
                    hint = ". Serve it with a higher max_concurrent_envs" if is_full else ""
                    raise InfrastructureError(
                        f"openenv:{self.url}: reset: {error}{hint}"
                    ) from error
            time.sleep(_PAUSE_S)

    def ask(
        self, kind: str, data: Mapping[str, Any], timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Send a request, and wait for the answer.

        Args:
            kind: "reset" or "step".
            data: Parameters or the action.
            timeout_s: Seconds until it has to have answered; None: as long as it takes.

        Raises:
            Refused: The answer is an error.
            InfrastructureError: There is no answer, or none of the protocol; or an answer is still
                to come.
        """
        if self._is_asked:
            raise InfrastructureError(f"openenv:{self.url} is in a step that was given up")
        self._is_asked = True
        try:
            with suppress(ConnectionClosed):  # why it is, the server may have said before
                self._connection.send(json.dumps({"type": kind, "data": dict(data)}))
            said = json.loads(self._connection.recv(timeout=timeout_s))
            if not isinstance(said, dict) or not isinstance(said.get("data"), dict):
                raise ValueError(f"it says {json.dumps(said):.200}")
        except Exception as error:
            raise _broken(self.url, error, timeout_s) from error
        self._is_asked = False
        answer: dict[str, Any] = said["data"]
        if said.get("type") == "error":
            raise Refused(str(answer.get("code")), problem(answer))
        return answer

    def close(self) -> None:
        """End the session, whatever it does at the moment."""
        self._is_closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.send(json.dumps({"type": "close"}))
            with suppress(Exception):
                connection.close()

    def _connect(self, timeout_s: float) -> None:
        address = "ws" + self.url.removeprefix("http") + "/ws"
        near: dict[str, Any] = {"proxy": None} if _is_near(self.url) else {}
        try:
            self._connection = connect(
                address,
                additional_headers=self._headers,
                open_timeout=timeout_s,
                close_timeout=_CLOSE_S,
                max_size=_MAX_BYTES,
                **near,
            )
        except Exception as error:
            raise _broken(self.url, error, timeout_s) from error
        if self._is_closed:  # meanwhile
            self._disconnect()
            raise InfrastructureError(f"openenv:{self.url}: the episode has ended")


def _is_near(url: str) -> bool:
    """Whether a server is on this machine, so that no proxy is between."""
    return urlsplit(url).hostname in _OWN_MACHINE


def _broken(url: str, error: Exception, timeout_s: float | None) -> InfrastructureError:
    problem = f"{type(error).__name__}: {error}"
    if isinstance(error, TimeoutError):
        problem = f"it does not answer within {timeout_s:.3g} s"
    if isinstance(error, ConnectionClosed):
        problem = f"the connection is closed ({error})"
    return InfrastructureError(f"openenv:{url}: {problem}")
