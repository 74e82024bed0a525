"""Clients that read an answer, leave before it, throw it away, ask again, or are slow."""

import asyncio
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from asking_fixtures import (
    ASKS,
    CHAT,
    answered,
    arrival,
    asking,
    connected,
    opened_line,
    post,
    raw_request,
    read_to_end,
    running_endpoint,
    said,
    until,
)
from gymnast.envs.programs.serving import protocol
from gymnast.envs.programs.serving.endpoint import Endpoint
from gymnast.envs.programs.serving.lines import Line, Pending

BODY = json.dumps(ASKS[CHAT]).encode()
LONG = said("x" * 20_000_000)


@pytest.fixture(scope="module", name="endpoint")
def running() -> Iterator[Endpoint]:
    yield from running_endpoint()


@pytest.fixture(name="line")
def opened(endpoint: Endpoint) -> Iterator[Line]:
    yield from opened_line(endpoint)


def reset(connection: socket.socket) -> None:
    """End a connection as one that breaks."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_head(connection: socket.socket) -> bytes:
    """What has come of an answer by now, some of it at least."""
    return connection.recv(100)


@contextmanager
def stalled(pending: Pending) -> Iterator[None]:
    """While this is open, the endpoint that a request arrived at does nothing."""
    goes_on = threading.Event()
    loop = pending.delivery.exchanges[0].woken.get_loop()
    loop.call_soon_threadsafe(goes_on.wait, 10)
    yield
    goes_on.set()


def test_an_answer_that_was_read_was_received_at_once(endpoint: Endpoint, line: Line) -> None:
    connection = asking(endpoint, line.key)
    pending = arrival(line)
    assert not pending.received and not pending.gone
    pending.answer(said("read"))
    connection.getresponse().read()
    assert pending.received
    connection.close()
    assert not until(lambda: not pending.received, 0.1)


@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_a_client_that_leaves_before_the_answer_is_gone(
    endpoint: Endpoint, line: Line, end: Any
) -> None:
    connection = connected(endpoint)
    connection.sendall(raw_request(endpoint, line.key, BODY))
    pending = arrival(line)
    end(connection)
    assert until(lambda: pending.gone)
    pending.answer(said("to nobody"))
    assert not until(lambda: pending.received, 0.1)


def test_a_reset_is_known_at_once(endpoint: Endpoint, line: Line) -> None:
    for number in range(20):
        connection = connected(endpoint)
        ask = json.dumps(ASKS[CHAT] | {"seed": number}).encode()
        connection.sendall(raw_request(endpoint, line.key, ask))
        pending = arrival(line)
        pending.answer(said("y" * 1000))
        while len(connection.recv(2000, socket.MSG_PEEK)) < 1000:
            pass
        assert pending.received
        connection.close()
        assert not pending.received


@pytest.mark.parametrize("headers", [(), ("Connection: close",)])
@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_an_answer_that_is_thrown_away_was_not_received(
    endpoint: Endpoint, line: Line, end: Any, headers: tuple[str, ...]
) -> None:
    connection = connected(endpoint)
    connection.sendall(raw_request(endpoint, line.key, BODY, *headers))
    pending = arrival(line)
    pending.answer(said("y" * 1000))
    assert read_head(connection)
    end(connection)
    assert until(lambda: not pending.received)
    assert not until(lambda: pending.received, 0.1)


@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_an_answer_that_is_written_as_its_client_leaves_was_not_received(
    endpoint: Endpoint, line: Line, end: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_of_the_end = protocol.Connection.connection_lost

    def late(self: protocol.Connection, error: Exception | None) -> None:
        time.sleep(0.2)
        told_of_the_end(self, error)

    monkeypatch.setattr(protocol.Connection, "connection_lost", late)
    connection = connected(endpoint)
    connection.sendall(raw_request(endpoint, line.key, BODY))
    pending = arrival(line)
    with stalled(pending):
        end(connection)
        pending.answer(said("to nobody"))
    assert not until(lambda: pending.received, 0.5)


def test_a_long_answer_is_received_when_the_last_of_it_is(endpoint: Endpoint, line: Line) -> None:
    connection = connected(endpoint)
    connection.sendall(raw_request(endpoint, line.key, BODY, "Connection: close"))
    pending = arrival(line)
    pending.answer(LONG)
    assert read_head(connection)
    assert not until(lambda: pending.received, 0.1)
    assert len(read_to_end(connection)) > 20_000_000
    assert until(lambda: pending.received)
    connection.close()
    assert not until(lambda: not pending.received, 0.1)


def test_a_program_that_dies_while_it_reads_has_not_received_the_answer(
    endpoint: Endpoint, line: Line
) -> None:
    connection = connected(endpoint)
    connection.sendall(raw_request(endpoint, line.key, BODY))
    pending = arrival(line)
    pending.answer(LONG)
    assert read_head(connection)
    connection.close()
    assert not until(lambda: pending.received, 0.2)


def test_a_request_whose_client_left_is_passed_over(endpoint: Endpoint, line: Line) -> None:
    asking(endpoint, line.key, {"messages": [{"role": "user", "content": "left"}]}).close()
    connection = asking(endpoint, line.key)
    assert until(lambda: line.counts["program/requests"] == 2)
    assert until(lambda: line._queue[0].gone)
    assert arrival(line).request.messages == ASKS[CHAT]["messages"]
    assert line.counts["program/left"] == 1
    connection.close()


def test_an_answer_that_nobody_read_is_given_to_whoever_asks_again(
    endpoint: Endpoint, line: Line
) -> None:
    first = connected(endpoint)
    first.sendall(raw_request(endpoint, line.key, BODY))
    pending = arrival(line)
    first.close()
    assert until(lambda: pending.gone)
    pending.answer(said("once"))
    status, body = post(endpoint, line.key, BODY)
    assert status == 200 and body["choices"][0]["message"]["content"] == "once"
    assert until(lambda: pending.received)
    assert line.counts == {"program/requests": 1, "program/repeated": 1}


def test_a_request_is_joined_by_its_repeat(endpoint: Endpoint, line: Line) -> None:
    first = connected(endpoint)
    first.sendall(raw_request(endpoint, line.key, BODY))
    pending = arrival(line)
    first.close()
    assert until(lambda: pending.gone)
    second = connected(endpoint)
    second.sendall(raw_request(endpoint, line.key, BODY, "Connection: close"))
    assert until(lambda: not pending.gone)
    pending.answer(said("once"))
    assert b"once" in read_to_end(second)
    second.close()
    assert until(lambda: pending.received)


def test_a_client_that_says_it_retries_gets_the_same_answer(endpoint: Endpoint, line: Line) -> None:
    with answered(line, said("once"), said("twice")):
        first = post(endpoint, line.key, BODY)
        again = post(endpoint, line.key, BODY, headers={"x-stainless-retry-count": "1"})
        anew = post(endpoint, line.key, BODY, headers={"x-stainless-retry-count": "0"})
    texts = [body["choices"][0]["message"]["content"] for _, body in (first, again, anew)]
    assert texts == ["once", "once", "twice"]


def test_a_client_that_was_passed_over_may_ask_again(endpoint: Endpoint, line: Line) -> None:
    connection = connected(endpoint)
    connection.sendall(raw_request(endpoint, line.key, BODY))
    assert until(lambda: line.counts["program/requests"] == 1)
    reset(connection)
    time.sleep(0.1)
    with pytest.raises(TimeoutError):
        asyncio.run(line.next(0.05))
    assert line.counts["program/left"] == 1
    with answered(line, said("after all")):
        status, body = post(endpoint, line.key, BODY, headers={"x-stainless-retry-count": "1"})
    assert status == 200 and body["choices"][0]["message"]["content"] == "after all"


def test_equal_requests_at_once_are_two(endpoint: Endpoint, line: Line) -> None:
    connections = [asking(endpoint, line.key) for _ in range(2)]
    for text in ("one", "two"):
        arrival(line).answer(said(text))
    read = {
        json.loads(c.getresponse().read())["choices"][0]["message"]["content"] for c in connections
    }
    assert read == {"one", "two"}
    for connection in connections:
        connection.close()


def test_a_repeat_of_an_answer_that_is_being_written_holds_nobody_up(
    endpoint: Endpoint, line: Line
) -> None:
    slow = connected(endpoint)
    slow.sendall(raw_request(endpoint, line.key, BODY))
    arrival(line).answer(LONG)
    again = json.dumps(ASKS[CHAT] | {"seed": 1}).encode()
    slow.sendall(raw_request(endpoint, line.key, again))
    arrival(line).answer(said("behind the long one"))
    assert read_head(slow)
    with answered(line, said("to somebody else")):
        status, body = post(endpoint, line.key, again)
    assert status == 200 and body["choices"][0]["message"]["content"] == "to somebody else"
    slow.close()


def test_another_body_or_path_is_no_repeat(endpoint: Endpoint, line: Line) -> None:
    body = {"messages": ASKS[CHAT]["messages"], "prompt": "x"}
    with answered(line, said("a"), said("b"), said("c")):
        retried = {"x-stainless-retry-count": "1"}
        post(endpoint, line.key, body, headers=retried)
        post(endpoint, line.key, body, "/v1/completions", retried)
        post(endpoint, line.key, body | {"seed": 1}, headers=retried)
    assert line.counts["program/requests"] == 3


def test_pipelined_requests_are_answered_in_order(endpoint: Endpoint, line: Line) -> None:
    connection = connected(endpoint)
    one, two = (json.dumps({"messages": [{"role": "user", "content": t}]}).encode() for t in "ab")
    connection.sendall(
        raw_request(endpoint, line.key, one)
        + raw_request(endpoint, line.key, two, "Connection: close")
    )
    with answered(line, said("first"), said("second")) as pendings:
        read = read_to_end(connection)
    assert 0 < read.index(b"first") < read.index(b"second")
    connection.close()
    assert until(lambda: all(pending.received for pending in pendings))


def test_half_a_request_harms_nobody(endpoint: Endpoint, line: Line) -> None:
    whole = raw_request(endpoint, line.key, BODY)
    halves = [connected(endpoint) for _ in range(3)]
    for connection, end in zip(halves, (10, len(whole) - len(BODY), len(whole) - 1), strict=True):
        connection.sendall(whole[:end])
    with answered(line, said("whole")):
        assert post(endpoint, line.key, BODY)[0] == 200
    for connection in halves:
        connection.close()
    assert line.counts["program/requests"] == 1


def test_headers_that_do_not_come_end_the_connection(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.1)
    silent, slow = connected(endpoint), connected(endpoint)
    slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: ")
    assert read_to_end(silent) == b""
    assert read_to_end(slow).startswith(b"HTTP/1.1 408 ")
    silent.close()
    slow.close()


def test_headers_without_end_end_the_connection(endpoint: Endpoint) -> None:
    connection = connected(endpoint)
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
    connection.sendall(b"X-Long: " + b"x" * 100_000)
    assert read_to_end(connection).startswith(b"HTTP/1.1 431 ")
    connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"CONNECT example.com:80 HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: x\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_ends_its_own_connection_alone(
    endpoint: Endpoint, line: Line, sent: bytes
) -> None:
    connection = connected(endpoint)
    connection.sendall(sent)
    assert read_to_end(connection).startswith(b"HTTP/1.1 4")
    connection.close()
    with answered(line, said("fine")):
        assert post(endpoint, line.key, BODY)[0] == 200


def test_a_body_in_chunks_is_read(endpoint: Endpoint, line: Line) -> None:
    head = raw_request(endpoint, line.key, b"").replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked\r\nConnection: close"
    )
    connection = connected(endpoint)
    with answered(line, said("chunks")):
        connection.sendall(head)
        for start in range(0, len(BODY), 7):
            part = BODY[start : start + 7]
            connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        assert b"chunks" in read_to_end(connection)
    connection.close()


def test_a_forked_child_holds_no_connection_open() -> None:
    shared = Endpoint.shared()
    line = shared.open()
    read, write = os.pipe()
    connection = connected(shared)
    connection.sendall(raw_request(shared, "no-such-key", b"{}"))
    assert read_head(connection).startswith(b"HTTP/1.1 401")
    child = os.fork()
    if not child:
        os.read(read, 1)  # lives until it is told to end
        os._exit(0)
    connection.settimeout(10)
    shared.stop()
    try:
        while connection.recv(1 << 16):
            pass
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        for each in (read, write):
            os.close(each)
        connection.close()
        line.close()


def test_the_shared_endpoint_is_one_a_process(line: Line) -> None:
    shared = Endpoint.shared()
    assert shared is Endpoint.shared()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, str(Endpoint.shared().port).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(read, 100)) != shared.port
    os.close(read)
    os.close(write)
    shared.stop()
    another = Endpoint.shared()  # a stopped one is of no use to who asks next
    assert another is not shared
    socket.create_connection(("127.0.0.1", another.port)).close()
