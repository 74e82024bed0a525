"""The endpoint under schemathesis: what is posted is answered, or refused in its dialect's form."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs.programs.dialects.requests import Answer
from gymnast.envs.programs.serving import endpoint as endpoint_module
from gymnast.envs.programs.serving.application import Application
from gymnast.envs.programs.serving.endpoint import Endpoint
from gymnast.types import ToolCall

pytestmark = pytest.mark.adapters

TEXT = {"type": "string"}


def an_object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def a_list(items: dict[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


PART = an_object("type", "text", type={"enum": ["text", "input_text", "image_url"]}, text=TEXT)
CONTENT = {"anyOf": [TEXT, a_list(PART)]}
CALLED = an_object("name", "arguments", name=TEXT, arguments=TEXT)
CALL = an_object("id", "function", id=TEXT, type={"const": "function"}, function=CALLED)
ROLE = {"enum": ["user", "assistant", "system", "tool"]}
MESSAGES = a_list(
    an_object(
        "role", "content", role=ROLE, content=CONTENT, tool_call_id=TEXT, tool_calls=a_list(CALL)
    ),
    minItems=1,
)
FUNCTION = an_object(name=TEXT, description=TEXT, parameters={"type": "object"})
TOOL = an_object(
    type={"const": "function"},
    name=TEXT,
    parameters={"type": "object"},
    input_schema={"type": "object"},
    function=FUNCTION,
)
COMMON: dict[str, Any] = {
    "model": TEXT,
    "stream": {"type": "boolean"},
    "tools": a_list(TOOL),
    "temperature": {"type": "number"},
    "max_tokens": {"type": "integer"},
    "stop": TEXT,
    "n": {"type": "integer"},
    "tool_choice": {},
    "response_format": {},
    "logprobs": {"type": "boolean"},
}


def response(description: str, properties: dict[str, Any], *others: str) -> dict[str, Any]:
    kinds: dict[str, Any] = {other: {} for other in others}
    kinds["application/json"] = {"schema": an_object(*properties, **properties)}
    return {"description": description, "content": kinds}


def operation(answered: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    """A path that is posted to: its first property is required."""
    error = response("an error", {"error": an_object("message", "type", message=TEXT)})
    body = {"application/json": {"schema": an_object(next(iter(properties)), **properties)}}
    answer = response("an answer", answered, "text/event-stream")
    return {
        "post": {
            "requestBody": {"required": True, "content": body},
            "security": [{"key": []}],
            "responses": {"200": answer, "400": error, "401": error},
        }
    }


API = {
    "openapi": "3.1.0",
    "info": {"title": "what programs speak to", "version": "1"},
    "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    "paths": {
        "/v1/chat/completions": operation(
            {"choices": {"type": "array", "minItems": 1}}, {"messages": MESSAGES, **COMMON}
        ),
        "/v1/completions": operation({"choices": {"type": "array"}}, {"prompt": TEXT, **COMMON}),
        "/v1/responses": operation(
            {"output": {"type": "array"}},
            {"input": {"anyOf": [TEXT, MESSAGES]}, "previous_response_id": TEXT, **COMMON},
        ),
        "/v1/messages": operation(
            {"content": {"type": "array"}, "role": {"const": "assistant"}},
            {"messages": MESSAGES, "system": CONTENT, **COMMON},
        ),
    },
}
ANSWERS = [
    {"role": "assistant", "content": "It is 12.", "tool_calls": []},
    {"role": "assistant", "content": "", "tool_calls": [ToolCall("c1", "look", {"at": "it"})]},
    {"role": "assistant", "content": "x", "tool_calls": [ToolCall("c2", "", {}, "no JSON")]},
]


@pytest.fixture
def served() -> Iterator[tuple[str, str]]:
    """The address and the key of an endpoint that answers every request."""
    endpoint = Endpoint()
    line = endpoint.open()

    async def answer() -> None:
        count = 0
        while (pending := await line.next()) is not None:
            said: Any = ANSWERS[count % len(ANSWERS)]
            pending.answer(Answer(said, "stop", 3, 2))
            count += 1

    thread = threading.Thread(target=asyncio.run, args=(answer(),))
    thread.start()
    yield endpoint.url, line.key
    line.close()
    thread.join()
    endpoint.stop()


def fuzzed(url: str, key: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What schemathesis says of an endpoint, from a folder that it may leave files in."""
    (folder / "api.json").write_text(json.dumps(API))
    program = "from schemathesis.cli import schemathesis; schemathesis()"
    options = {
        "url": url,
        "header": f"Authorization: Bearer {key}",
        "checks": "not_a_server_error,status_code_conformance,content_type_conformance,"
        "response_schema_conformance",
        "phases": "coverage,fuzzing",
        "max-examples": "40",
        "request-timeout": "20",
        "seed": "1",
    }
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    return subprocess.run(
        [sys.executable, "-c", program, "run", "api.json", *given],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_whatever_is_posted_is_answered_or_refused(served: tuple[str, str], tmp_path: Path) -> None:
    ended = fuzzed(*served, tmp_path)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    assert "4 selected / 4 total" in ended.stdout, ended.stdout[:2000]


class Broken(Application):
    """Answers as the application does, but for one field of what is posted.

    Class attributes:
        field: Requests with it are answered wrongly.
        change: Makes a wrong message out of each that would be sent.
    """

    field: bytes
    change: Callable[[dict[str, Any]], dict[str, Any]]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        read = bytearray()

        async def reads() -> Any:
            message = await receive()
            read.extend(message.get("body", b""))
            return message

        async def sends(message: Any) -> None:
            wrong = b'"%s"' % type(self).field in read
            await send(type(self).change(dict(message)) if wrong else message)

        await super().__call__(scope, reads, sends)


def failed(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"status": 500} if message["type"] == "http.response.start" else message


def undocumented(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"status": 418} if message["type"] == "http.response.start" else message


def as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["type"] != "http.response.start":
        return message
    others = [(name, value) for name, value in message["headers"] if name != b"content-type"]
    return message | {"headers": [*others, (b"content-type", b"text/plain")]}


def of_another_form(message: dict[str, Any]) -> dict[str, Any]:
    """Of the same length."""
    body = message.get("body", b"")
    renamed = body.replace(b'"choices"', b'"chances"').replace(b'"error"', b'"wrong"')
    return message | {"body": renamed} if body else message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (failed, "Server error"),
        (undocumented, "Undocumented status code"),
        (as_text, "Undocumented Content-Type"),
        (of_another_form, "Response violates schema"),
    ],
)
def test_one_wrong_field_is_enough_to_be_found(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    says: str,
) -> None:
    """An endpoint that answers wrongly where a request has `n` fails the same test."""
    application = type("BrokenOne", (Broken,), {"field": b"n", "change": staticmethod(change)})
    monkeypatch.setattr(endpoint_module, "Application", application)
    url, key = request.getfixturevalue("served")
    ended = fuzzed(url, key, tmp_path)
    assert ended.returncode == 1, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert says in ended.stdout, ended.stdout[-4000:]
