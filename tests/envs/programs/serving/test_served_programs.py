"""The endpoint: programs ask over HTTP, episodes answer."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from gymnast.envs.programs.dialects.requests import Answer
from gymnast.envs.programs.serving.endpoint import Endpoint
from gymnast.envs.programs.serving.lines import Line, Pending
from gymnast.types import ToolCall

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    started = Endpoint()
    yield started
    started.stop()


@pytest.fixture
def line(endpoint: Endpoint) -> Iterator[Line]:
    opened = endpoint.open()
    yield opened
    opened.close()


def said(text: str, *calls: ToolCall) -> Answer:
    return Answer(
        {"role": "assistant", "content": text, "tool_calls": list(calls)},
        "tool_calls" if calls else "stop",
        prompt_tokens=5,
        completion_tokens=2,
    )


def served(line: Line, *answers: Answer) -> tuple[list[Pending], threading.Thread]:
    """Answer what arrives, one after another, on another thread."""
    pendings: list[Pending] = []

    async def serve() -> None:
        for answer in answers:
            pending = await line.next(10)
            assert pending is not None
            pending.answer(answer)
            pendings.append(pending)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    return pendings, thread


def post(
    endpoint: Endpoint,
    key: str,
    body: Any,
    path: str = "/v1/chat/completions",
    **headers: str,
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {
        "authorization": f"Bearer {key}",
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    connection.request("POST", path, raw, sent)
    response = connection.getresponse()
    read = response.read()
    connection.close()
    return response.status, json.loads(read)


def test_a_program_is_answered_and_asks_again(endpoint: Endpoint, line: Line) -> None:
    call = ToolCall("call_1", "add", {"a": 1, "b": "ü"})
    pendings, thread = served(line, said("Adding.", call), said("3"))
    client = openai.OpenAI(base_url=endpoint.url + "/v1", api_key=line.key)
    tool: Any = {"type": "function", "function": {"name": "add"}}
    messages: Any = list(HELLO)
    first = client.chat.completions.create(model="policy", messages=messages, tools=[tool])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls" and message.tool_calls
    messages += [message, {"role": "tool", "tool_call_id": "call_1", "content": "3"}]
    second = client.chat.completions.create(model="policy", messages=messages, tools=[tool])
    thread.join()
    assert second.choices[0].message.content == "3"
    assert pendings[1].request.messages[1:] == [
        {
            "role": "assistant",
            "content": "Adding.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 1, "b": "ü"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    assert pendings[0].received
    client.close()


def test_models_are_listed(endpoint: Endpoint, line: Line) -> None:
    with openai.OpenAI(base_url=endpoint.url + "/v1", api_key=line.key) as client:
        assert [model.id for model in client.models.list()] == ["policy"]
        assert client.models.retrieve("policy").id == "policy"


@pytest.mark.parametrize("key", ["", "wrong", "sk-gymnast-", "ü"])
def test_a_wrong_key_gets_401(endpoint: Endpoint, key: str) -> None:
    status, body = post(endpoint, key, {"messages": HELLO})
    assert status == 401 and body["error"]["code"] == "invalid_api_key"


def test_the_end_of_an_episode_ends_its_requests_and_its_key(
    endpoint: Endpoint, line: Line
) -> None:
    got: list[tuple[int, Any]] = []

    def asking() -> None:
        got.append(post(endpoint, line.key, {"messages": HELLO}))

    thread = threading.Thread(target=asking)
    thread.start()
    assert asyncio.run(line.next(10)) is not None
    line.close()
    thread.join()
    asking()
    assert [status for status, _ in got] == [401, 401]
    assert asyncio.run(line.next()) is None


def test_keys_do_not_share_a_line(endpoint: Endpoint, line: Line) -> None:
    other = endpoint.open()
    _, thread = served(line, said("mine"))
    status, body = post(endpoint, line.key, {"messages": HELLO})
    thread.join()
    assert status == 200 and body["choices"][0]["message"]["content"] == "mine"
    with pytest.raises(TimeoutError):
        asyncio.run(other.next(0.05))
    other.close()


def test_foreign_hosts_and_origins_are_refused(endpoint: Endpoint, line: Line) -> None:
    for headers in (
        {"host": "example.com"},
        {"host": f"example.com:{endpoint.port}"},
        {"host": "127.0.0.1:1"},
        {"origin": "http://example.com"},
        {"origin": "null"},
    ):
        status, body = post(endpoint, line.key, {"messages": HELLO}, **headers)
        assert status == 403 and "endpoint" in body["error"]["message"], headers


def test_five_megabytes_work_and_too_many_do_not(endpoint: Endpoint, line: Line) -> None:
    pendings, thread = served(line, said("long"))
    status, _ = post(
        endpoint, line.key, {"messages": [{"role": "user", "content": "x" * 5_000_000}]}
    )
    thread.join()
    assert status == 200 and len(pendings[0].request.messages[0]["content"]) == 5_000_000
    status, body = post(endpoint, line.key, b" " * (33 * 1024**2))
    assert status == 413 and "32 MiB" in body["error"]["message"]


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/chat/completions", "GET", 405),
        ("/v1/models", "POST", 405),
        ("/v1/embeddings", "POST", 404),
        ("/", "GET", 404),
    ],
)
def test_other_paths_and_methods(
    endpoint: Endpoint, line: Line, path: str, method: str, status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    connection.request(method, path, headers={"x-api-key": line.key})
    response = connection.getresponse()
    assert response.status == status and json.loads(response.read())["error"]["message"]
    connection.close()
