"""The endpoint: programs ask over HTTP, episodes answer."""

import asyncio
import http.client
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from asking_fixtures import (
    ASKS,
    CHAT,
    HELLO,
    answered,
    arrival,
    asking,
    opened_line,
    post,
    running_endpoint,
    said,
)
from gymnast.envs.programs.dialects.requests import Refused
from gymnast.envs.programs.serving.endpoint import Endpoint
from gymnast.envs.programs.serving.lines import Line
from gymnast.errors import ConfigError


@pytest.fixture(scope="module", name="endpoint")
def running() -> Iterator[Endpoint]:
    yield from running_endpoint()


@pytest.fixture(name="line")
def opened(endpoint: Endpoint) -> Iterator[Line]:
    yield from opened_line(endpoint)


def error_of(path: str, body: Any) -> str:
    """The sentence of an error, in the form of the path's dialect."""
    if path == "/v1/messages":
        assert body["type"] == "error" and body["error"]["type"].endswith(("error", "large"))
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    sentence = body["error"]["message"]
    assert sentence.endswith(".") and "Traceback" not in sentence
    return str(sentence)


def test_models_are_listed(endpoint: Endpoint, line: Line) -> None:
    with openai.OpenAI(base_url=endpoint.url + "/v1", api_key=line.key) as client:
        assert [model.id for model in client.models.list()] == ["policy"]
        assert client.models.retrieve("policy").id == "policy"


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize("key", ["", "wrong", "sk-gymnast-", "ü", "a b"])
def test_a_wrong_key_gets_401(endpoint: Endpoint, key: str, path: str) -> None:
    status, body = post(endpoint, key, ASKS[path], path)
    assert status == 401 and "key" in error_of(path, body)


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_an_episode_ends_its_requests_and_its_key(
    endpoint: Endpoint, line: Line, path: str, stream: bool
) -> None:
    ask = ASKS[path] | {"stream": stream}
    waiting = asking(endpoint, line.key, ask, path)
    arrival(line)
    unseen = asking(endpoint, line.key, ask, path)
    line.close()
    for connection in (waiting, unseen):
        response = connection.getresponse()
        assert response.status == 401 and "over" in error_of(path, json.loads(response.read()))
        connection.close()
    status, body = post(endpoint, line.key, ask, path)
    assert status == 401 and "over" in error_of(path, body)
    assert asyncio.run(line.next()) is None


def test_whoever_waits_for_a_request_is_told_of_the_end(line: Line) -> None:
    threading.Timer(0.05, line.close).start()
    assert asyncio.run(line.next(10)) is None


def test_a_key_may_come_in_either_header(endpoint: Endpoint, line: Line) -> None:
    with answered(line, said("a"), said("b")):
        ways = (
            {"authorization": "", "x-api-key": line.key},
            {"authorization": f"bearer {line.key}"},
        )
        for headers in ways:
            assert post(endpoint, "", ASKS[CHAT], headers=headers)[0] == 200


def test_keys_do_not_share_a_line(endpoint: Endpoint, line: Line) -> None:
    other = endpoint.open()
    with answered(line, said("mine")):
        status, body = post(endpoint, line.key, ASKS[CHAT])
    assert status == 200 and body["choices"][0]["message"]["content"] == "mine"
    with pytest.raises(TimeoutError):
        asyncio.run(other.next(0.05))
    other.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "example.com"},
        {"host": "127.0.0.1"},
        {"host": "127.0.0.1:1"},
        {"origin": "http://example.com"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1"},
    ],
)
def test_foreign_hosts_and_origins_are_refused(
    endpoint: Endpoint, line: Line, headers: dict[str, str]
) -> None:
    status, body = post(endpoint, line.key, ASKS[CHAT], headers=headers)
    assert status == 403 and "endpoint" in error_of(CHAT, body)


def test_the_endpoints_own_names_are_welcome(endpoint: Endpoint, line: Line) -> None:
    own = f"localhost:{endpoint.port}"
    with answered(line, said("a")):
        headers = {"host": own, "origin": f"http://{own}"}
        assert post(endpoint, line.key, ASKS[CHAT], headers=headers)[0] == 200


def test_five_megabytes_work_and_too_many_do_not(endpoint: Endpoint, line: Line) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 5_000_000}]}
    with answered(line, said("long")) as pendings:
        assert post(endpoint, line.key, long)[0] == 200
    assert len(pendings[0].request.messages[0]["content"]) == 5_000_000
    status, body = post(endpoint, line.key, b" " * (33 * 1024**2))
    assert status == 413 and "32 MiB" in error_of(CHAT, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff",
        b'{"messages": NaN}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"n": 1, "n": 1}',
        b'{"user": "\\ud800"}',
        b'{"max_tokens": 1' + b"0" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 300 + b"1" + b"}" * 300,
    ],
)
@pytest.mark.parametrize("path", ASKS)
def test_what_is_no_request_gets_400(
    endpoint: Endpoint, line: Line, body: bytes, path: str
) -> None:
    status, answer = post(endpoint, line.key, body, path)
    assert status == 400 and error_of(path, answer)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        (CHAT, "GET", 405),
        (CHAT, "HEAD", 405),
        (CHAT, "OPTIONS", 405),
        ("/v1/messages", "DELETE", 405),
        ("/v1/messages/count_tokens", "POST", 404),
        ("/v1/models", "POST", 405),
        ("/v1/models/other", "GET", 404),
        ("/v1/embeddings", "POST", 404),
        ("/", "GET", 404),
        ("/v1/%00%ff", "GET", 404),
    ],
)
def test_other_paths_and_methods(
    endpoint: Endpoint, line: Line, path: str, method: str, status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    connection.request(method, path, headers={"x-api-key": line.key})
    response = connection.getresponse()
    read = response.read()
    assert response.status == status
    if method != "HEAD":
        assert json.loads(read)["error"]["message"].endswith(".")
    connection.close()


def test_requests_come_in_the_order_of_arrival_and_get_their_own_answers(
    endpoint: Endpoint, line: Line
) -> None:
    connections = []
    for number in range(5):
        ask = {"messages": [{"role": "user", "content": str(number)}]}
        connections.append(asking(endpoint, line.key, ask))
        connections[-1].sock.settimeout(10)
    pendings = [arrival(line) for _ in connections]
    for pending in reversed(pendings):
        pending.answer(said("to " + pending.request.messages[0]["content"]))
    for number, connection in enumerate(connections):
        body = json.loads(connection.getresponse().read())
        assert body["choices"][0]["message"]["content"] == f"to {number}"
        connection.close()
    assert line.counts["program/requests"] == 5


def test_requests_at_once_are_refused_where_they_are_not_allowed(endpoint: Endpoint) -> None:
    line = endpoint.open(parallel=False)
    first = asking(endpoint, line.key)
    pending = arrival(line)
    status, body = post(endpoint, line.key, {"messages": [*HELLO, *HELLO]})
    assert status == 400 and "deterministic" in error_of(CHAT, body)
    pending.answer(said("one"))
    assert first.getresponse().status == 200
    with answered(line, said("two")):
        assert post(endpoint, line.key, {"messages": [*HELLO, *HELLO]})[0] == 200
    assert line.counts["program/parallel_refused"] == 1
    first.close()
    line.close()


def test_a_second_answer_changes_nothing(endpoint: Endpoint, line: Line) -> None:
    connection = asking(endpoint, line.key)
    pending = arrival(line)
    pending.answer(said("first"))
    pending.answer(said("second"))
    pending.refuse(Refused("third"))
    assert b"first" in connection.getresponse().read()
    connection.close()


def test_several_event_loops_and_cancelled_waits_lose_no_request(
    endpoint: Endpoint, line: Line
) -> None:
    for _ in range(3):
        with pytest.raises(TimeoutError):
            asyncio.run(line.next(0.01))
    connection = asking(endpoint, line.key)
    arrival(line).answer(said("found"))
    assert b"found" in connection.getresponse().read()
    connection.close()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httptools", None)
    with pytest.raises(ConfigError, match=r"httptools.*pip install 'gymnast-rl\[programs\]'"):
        Endpoint()
