"""A chat endpoint for tests: a real HTTP server that answers by a script and keeps its requests."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

KEY = "sk-test-3f9a"  # what no file, error or pickle may hold


@dataclass(frozen=True)
class Answer:
    """What the server answers: a status, a body, headers; `hang` answers nothing for a while."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False


def says(content: str | None, *calls: tuple[str, str], usage: Any = (10, 5)) -> Answer:
    """A completion; each call is a name and its arguments as text."""
    listed = [
        {"id": f"id{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if listed:
        message["tool_calls"] = listed
    reason = "tool_calls" if listed else "stop"
    body: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    body["choices"] = [{"index": 0, "message": message, "finish_reason": reason}]
    if usage is not None:
        prompt, completion = usage
        counts = {"prompt_tokens": prompt, "completion_tokens": completion}
        body["usage"] = counts | {"total_tokens": prompt + completion}
    return Answer(body)


def refuses(status: int, text: str = "no", code: str | None = None, **headers: str) -> Answer:
    body = {"error": {"message": text, "code": code, "type": "x"}}
    return Answer(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


HANGS = Answer(None, hang=True)
Script = Callable[[dict[str, Any], int], Answer]


class Endpoint:
    """The server; `script(request, n)` answers its n-th request."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.script: Script = lambda request, number: says("Hello.")
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.at_once = self.most_at_once = 0
        self.lock, self.end = threading.Lock(), threading.Event()
        self.url = f"http://127.0.0.1:{server.server_address[1]}/v1"

    def answers(self, *script: Answer) -> None:
        """Answer the requests with these, and then with the last one."""
        self.script = lambda request, number: script[min(number, len(script) - 1)]


@contextmanager
def serving() -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with scripted.lock:
                number = len(scripted.requests)
                scripted.requests.append(request)
                scripted.keys.append(self.headers["Authorization"])
                scripted.at_once += 1
                scripted.most_at_once = max(scripted.most_at_once, scripted.at_once)
            answer = scripted.script(request, number)
            if answer.hang:
                scripted.end.wait(10)
            with scripted.lock:
                scripted.at_once -= 1
            self._send(answer)

        def _send(self, answer: Answer) -> None:
            raw = isinstance(answer.body, str)
            body = answer.body.encode() if raw else json.dumps(answer.body).encode()
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # nobody waits any more
                pass

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scripted = Endpoint(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield scripted
    finally:
        scripted.end.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("TEST_KEY", KEY)
    with serving() as server:
        yield server
