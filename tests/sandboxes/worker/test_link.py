"""The connection to a worker takes an answer for the answer only if it is one."""

import ast
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gymnast.sandboxes.worker.program as program
from gymnast.sandboxes.docker.engine import AttachedStream
from gymnast.sandboxes.guest.protocol import BrokenFrame, pack, unpack
from gymnast.sandboxes.worker.link import Link, LinkClosed, LinkTimeout


def reader(data: bytes) -> Callable[[int], bytes]:
    position = 0

    def receive(size: int) -> bytes:
        nonlocal position
        if position + size > len(data):
            raise EOFError
        position += size
        return data[position - size : position]

    return receive


@given(st.dictionaries(st.text(), st.text() | st.integers()), st.binary())
def test_a_frame_is_read_as_it_was_written(header: dict[str, Any], payload: bytes) -> None:
    got, data = unpack(reader(pack(header, payload)), len(payload))
    assert got == {**header, "size": len(payload)}
    assert data == payload


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises((BrokenFrame, EOFError)):
        unpack(reader(data), 10)


def test_a_payload_above_the_limit_is_refused_before_it_is_read() -> None:
    frame = pack({}, b"12345")
    with pytest.raises(BrokenFrame, match="5 bytes is larger than 4"):
        unpack(reader(frame[:-5]), 4)


def read_frame(worker: socket.socket) -> dict[str, Any]:
    length = int.from_bytes(worker.recv(4, socket.MSG_WAITALL), "big")
    header: dict[str, Any] = json.loads(worker.recv(length, socket.MSG_WAITALL))
    return header


def answer_with(reply: Callable[[dict[str, Any]], bytes], timeout_s: float = 5) -> Any:
    """What a link makes of a worker that replies so to a request."""
    ours, theirs = socket.socketpair()

    def work() -> None:
        theirs.sendall(reply(read_frame(theirs)))

    thread = threading.Thread(target=work)
    thread.start()
    with ours, theirs:
        try:
            return Link(ours).request({"op": "ping"}, timeout_s=timeout_s, max_answer_bytes=8)
        finally:
            thread.join()


def test_the_answer_with_the_nonce_is_taken() -> None:
    header, payload = answer_with(lambda request: pack({"nonce": request["nonce"]}, b"ok"))
    assert (header["size"], payload) == (2, b"ok")


@pytest.mark.parametrize(
    "reply",
    [
        lambda request: pack({"nonce": "guessed"}, b""),
        lambda request: pack({}, b""),
        lambda request: pack({"nonce": request["nonce"]}, b"too long a payload"),
        lambda request: b"\xff" * 100,
        lambda request: (2).to_bytes(4, "big") + b"[]",
    ],
)
def test_other_answers_are_not(reply: Callable[[dict[str, Any]], bytes]) -> None:
    with pytest.raises(LinkClosed):
        answer_with(reply)


def test_no_answer_is_waited_for_as_long_as_allowed() -> None:
    with pytest.raises(LinkTimeout, match=r"within 0\.1 s"):
        answer_with(lambda request: pack(request)[:9], timeout_s=0.1)


@contextlib.contextmanager
def worker_of(count: int) -> Iterator[tuple[Link, list[dict[str, Any]], socket.socket]]:
    """A link, the requests once so many have come, and the worker's end, which has not answered."""
    ours, theirs = socket.socketpair()
    link, requests = Link(ours), list[dict[str, Any]]()

    def ask(name: str) -> None:
        with contextlib.suppress(LinkClosed):
            asked = link.request({"op": name}, timeout_s=20, max_answer_bytes=8)
            answers[name] = asked[1]

    answers: dict[str, bytes] = {}
    threads = [threading.Thread(target=ask, args=[str(name)]) for name in range(count)]
    for thread in threads:
        thread.start()
    for _ in threads:
        requests.append(read_frame(theirs))
    with ours, theirs:
        yield link, requests, theirs
        for thread in threads:
            thread.join(20)
    for request in requests:
        request["answer"] = answers.get(request["op"])


def test_requests_are_answered_in_any_order() -> None:
    with worker_of(5) as (_, requests, worker):
        for request in reversed(requests):
            worker.sendall(pack({"nonce": request["nonce"]}, request["op"].encode()))
    assert [request["answer"] for request in requests] == [
        request["op"].encode() for request in requests
    ]


def test_a_nonce_is_taken_once() -> None:
    with worker_of(2) as (link, requests, worker):
        again = pack({"nonce": requests[0]["nonce"]}, b"forged")
        worker.sendall(pack({"nonce": requests[0]["nonce"]}, b"ok") + again)
    assert [request["answer"] for request in requests] == [b"ok", None]
    with pytest.raises(LinkClosed, match="belongs to no request"):
        link.request({"op": "ping"}, timeout_s=5, max_answer_bytes=0)


def test_a_request_that_is_late_breaks_the_link_for_all() -> None:
    with worker_of(1) as (link, requests, _):
        with pytest.raises(LinkTimeout, match=r"within 0\.1 s"):
            link.request({"op": "ping"}, timeout_s=0.1, max_answer_bytes=0)
        with pytest.raises(LinkClosed, match="did not come in time"):
            link.request({"op": "ping"}, timeout_s=5, max_answer_bytes=0)
        link._stream.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
    assert requests[0]["answer"] is None


def test_nobody_reads_on_in_the_middle_of_an_answer_that_is_late() -> None:
    """Else what code in the box has written is read as an answer, or waited for."""
    ours, theirs = socket.socketpair()
    link, said = Link(ours), dict[float, str]()
    remember = link._break

    def remember_late(why: str) -> str:
        time.sleep(0.2)  # as when the machine is busy
        return remember(why)

    link._break = remember_late  # type: ignore[method-assign]

    def ask(timeout_s: float) -> None:
        try:
            link.request({"op": "ping"}, timeout_s=timeout_s, max_answer_bytes=8)
        except (LinkTimeout, LinkClosed) as error:
            said[timeout_s] = str(error)

    threads = [threading.Thread(target=ask, args=[timeout_s]) for timeout_s in (0.1, 1)]
    with ours, theirs:
        for thread in threads:
            thread.start()
            request = read_frame(theirs)
        theirs.sendall(pack({"nonce": request["nonce"]}, b"a answer")[:-4])
        for thread in threads:
            thread.join()
    assert said == {0.1: "no answer within 0.1 s", 1: "an answer did not come in time"}


def test_a_large_request_and_a_large_answer_pass_each_other() -> None:
    ours, theirs = socket.socketpair()
    size, asked = 8 << 20, threading.Event()
    worker = threading.Thread(target=_answer_before_reading, args=[theirs, size, asked])
    worker.start()
    with ours:
        link = Link(ours)
        first = threading.Thread(
            target=link.request,
            args=[{"op": "read"}],
            kwargs={"timeout_s": 20, "max_answer_bytes": size},
        )
        first.start()
        assert asked.wait(20)
        link.request({"op": "write"}, b"x" * size, timeout_s=20, max_answer_bytes=0)
        first.join()
    worker.join()
    theirs.close()


def _answer_before_reading(worker: socket.socket, size: int, asked: threading.Event) -> None:
    """Be asked for much, and send all of it while a request comes that is as large."""

    first = read_frame(worker)
    asked.set()
    worker.sendall(pack({"nonce": first["nonce"]}, b"y" * size))
    second = read_frame(worker)
    while size > 0:
        size -= len(worker.recv(1 << 20))
    worker.sendall(pack({"nonce": second["nonce"]}))


def test_the_program_is_for_any_python_from_3_8_on() -> None:
    sources = dict(program.guest_sources())
    on_disk = {path.stem for path in Path(program.__file__).parents[1].glob("guest/*.py")}
    assert set(sources) == on_disk - {"__init__"}
    for source in [*sources.values(), program.LOADER]:
        ast.parse(source, feature_version=(3, 8))


@pytest.mark.parametrize("piece", [b"said", b""])
def test_an_engine_that_sends_stderr_without_end_is_waited_for_no_longer(piece: bytes) -> None:
    """Of an image that says endlessly why it cannot start, or a worker that was broken into."""
    ours, theirs = socket.socketpair()
    frames = (b"\2\0\0\0" + len(piece).to_bytes(4, "big") + piece) * 1000

    def talk() -> None:
        with contextlib.suppress(OSError):
            while True:
                theirs.sendall(frames)

    thread = threading.Thread(target=talk)
    thread.start()
    watchdog = threading.Timer(20, ours.shutdown, [socket.SHUT_RDWR])
    watchdog.start()
    with pytest.raises(LinkTimeout):
        Link(AttachedStream(ours)).request({"op": "ping"}, timeout_s=0.2, max_answer_bytes=0)
    watchdog.cancel()
    ours.close()
    thread.join()
    theirs.close()
