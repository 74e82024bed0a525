"""The endpoint under schemathesis: what is posted is answered, or refused in its dialect's form."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs.programs.dialects.requests import Answer
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


def test_whatever_is_posted_is_answered_or_refused(served: tuple[str, str], tmp_path: Path) -> None:
    url, key = served
    (tmp_path / "api.json").write_text(json.dumps(API))
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
    ended = subprocess.run(
        [sys.executable, "-c", program, "run", "api.json", *given],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    assert "4 selected / 4 total" in ended.stdout, ended.stdout[:2000]
