"""The endpoint under schemathesis: whatever is posted, it answers or refuses in its dialect's form."""

import asyncio
import json
import os
import shutil
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
TEXTS = {"type": "array", "items": {"type": "object", "required": ["type", "text"], "properties": {
    "type": {"enum": ["text", "input_text", "image_url"]}, "text": TEXT}}}  # fmt: skip
CONTENT = {"anyOf": [TEXT, TEXTS]}
CALL = {"type": "object", "required": ["id", "function"], "properties": {
    "id": TEXT, "type": {"const": "function"}, "function": {"type": "object", "properties": {
        "name": TEXT, "arguments": TEXT}, "required": ["name", "arguments"]}}}  # fmt: skip
MESSAGES = {"type": "array", "minItems": 1, "items": {
    "type": "object", "required": ["role", "content"], "properties": {
        "role": {"enum": ["user", "assistant", "system", "tool"]}, "content": CONTENT,
        "tool_call_id": TEXT, "tool_calls": {"type": "array", "items": CALL}}}}  # fmt: skip
TOOLS = {"type": "array", "items": {"type": "object", "properties": {
    "type": {"const": "function"}, "name": TEXT, "description": TEXT, "parameters": {
        "type": "object"}, "input_schema": {"type": "object"}, "function": {
            "type": "object", "properties": {"name": TEXT, "parameters": {"type": "object"}}}}}}  # fmt: skip
COMMON: dict[str, Any] = {
    "model": TEXT, "stream": {"type": "boolean"}, "tools": TOOLS, "temperature": {"type": "number"},
    "max_tokens": {"type": "integer"}, "stop": TEXT, "n": {"type": "integer"}, "tool_choice": {},
    "response_format": {}, "logprobs": {"type": "boolean"},
}  # fmt: skip


def response(description: str, properties: dict[str, Any], *others: str) -> dict[str, Any]:
    schema = {"type": "object", "required": list(properties), "properties": properties}
    kinds = {"application/json": {"schema": schema}, **dict.fromkeys(others, {})}
    return {"description": description, "content": kinds}


def operation(answered: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    """A path that is posted to: its first property is required."""
    error = {"type": "object", "required": ["message", "type"], "properties": {"message": TEXT}}
    body = {"type": "object", "required": [next(iter(properties))], "properties": properties}
    return {"post": {
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "security": [{"key": []}],
        "responses": {
            "200": response("an answer", answered, "text/event-stream"),
            **{status: response("an error", {"error": error}) for status in ("400", "401")},
        },
    }}  # fmt: skip


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
    command = shutil.which(
        "st", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    assert command is not None, "pip install schemathesis"
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
        [command, "run", "api.json", *given],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    assert "4 selected / 4 total" in ended.stdout, ended.stdout[:2000]
