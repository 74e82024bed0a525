"""An endpoint, programs that ask it, and what answers them."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gymnast.envs.programs.dialects.requests import Answer, Finish, Refused
from gymnast.envs.programs.serving.endpoint import Endpoint
from gymnast.envs.programs.serving.lines import Line, Pending
from gymnast.types import Message, ToolCall

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
ASKS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 100},
}
"""A request of each dialect, by its path."""


def said(
    text: str, *calls: ToolCall, reasoning: str = "", raw: str = "", finish: Finish = "stop"
) -> Answer:
    """An answer of seven tokens."""
    message: Message = {"role": "assistant", "content": text, "tool_calls": list(calls)}
    if reasoning:
        message["reasoning_content"] = reasoning
    if raw:
        message = {**message, "raw": raw}  # type: ignore[typeddict-unknown-key]
    finish = "tool_calls" if calls and finish == "stop" else finish
    return Answer(message, finish, prompt_tokens=5, completion_tokens=2)


def running_endpoint() -> Iterator[Endpoint]:
    """The body of a fixture: an endpoint of its own."""
    started = Endpoint()
    yield started
    started.stop()


def opened_line(endpoint: Endpoint) -> Iterator[Line]:
    """The body of a fixture: an episode's line."""
    opened = endpoint.open()
    yield opened
    opened.close()


def arrival(line: Line) -> Pending:
    """The next request of a line; there is one within ten seconds."""
    pending = asyncio.run(line.next(10))
    assert pending is not None
    return pending


@contextmanager
def answered(line: Line, *answers: Answer | Refused) -> Iterator[list[Pending]]:
    """Answer what arrives, one after another, on another thread."""
    pendings: list[Pending] = []

    def serve() -> None:
        for answer in answers:
            pending = arrival(line)
            if isinstance(answer, Refused):
                pending.refuse(answer)
            else:
                pending.answer(answer)
            pendings.append(pending)

    thread = threading.Thread(target=serve)
    thread.start()
    yield pendings
    thread.join()


def asking(
    endpoint: Endpoint, key: str, body: Any = None, path: str = CHAT
) -> http.client.HTTPConnection:
    """A connection on which a request has been sent."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    raw = json.dumps(ASKS[path] if body is None else body).encode()
    connection.request("POST", path, raw, {"authorization": f"Bearer {key}"})
    return connection


def post(
    endpoint: Endpoint, key: str, body: Any, path: str = CHAT, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Ask on a connection of its own; return the status and the JSON of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, raw, {"authorization": f"Bearer {key}", **(headers or {})})
    response = connection.getresponse()
    read = response.read()
    connection.close()
    return response.status, json.loads(read)


def raw_request(
    endpoint: Endpoint, key: str, body: bytes, *headers: str, path: str = CHAT
) -> bytes:
    """The bytes of a request."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{endpoint.port}",
        f"Authorization: Bearer {key}",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def connected(endpoint: Endpoint) -> socket.socket:
    """A connection on which nothing has been sent."""
    return socket.create_connection(("127.0.0.1", endpoint.port), timeout=10)


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes on a connection until the other side ends it."""
    parts: list[bytes] = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def until(holds: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    """Wait until something holds; return whether it does."""
    end = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return holds()


def names(tools: Sequence[Any]) -> list[str]:
    """The names of tools, by their schemas."""
    return [tool["function"]["name"] for tool in tools]
