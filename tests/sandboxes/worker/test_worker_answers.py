"""Whatever a worker that is not ours any more answers, the host sees a dead box, nothing else."""

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gymnast.errors import ProcessInputClosed, ProcessTimeout, SandboxDead, SandboxFileError
from gymnast.sandboxes import ExecResult, SandboxSpec
from gymnast.sandboxes.guest.protocol import pack, unpack
from gymnast.sandboxes.worker.process import WorkerProcess
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from gymnast.visible import visible_line

DEAD = object()
Reply = Callable[[dict[str, Any]], bytes]

RAN = {
    "reason": "ended", "exit_code": 0, "oom": False, "killed": True, "note": "",
    "outputs": [[2, 0, 0], [0, 0, 0]],
}  # fmt: skip
READ = {"file_bytes": 2}
FAILED = {"error": {"kind": "file", "number": 2, "text": "No such file"}}


class OverSockets(WorkerSandbox):
    """A box whose worker replies as it likes, once it has started."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(SandboxSpec(timeout_s=5))
        ours, theirs = socket.socketpair()

        def receive(size: int) -> bytes:
            data = theirs.recv(size, socket.MSG_WAITALL) if size else b""
            if len(data) < size:
                raise EOFError
            return data

        def work() -> None:
            try:
                boot, _ = unpack(receive, 1 << 24)
                theirs.sendall(pack({"nonce": boot["nonce"], "pid": 1}))
                while True:
                    theirs.sendall(reply(unpack(receive, 1 << 24)[0]))
            except (EOFError, OSError):
                theirs.close()

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

        def discard() -> None:
            ours.shutdown(socket.SHUT_RDWR)
            ours.close()

        self._connect(ours, discard, alone=False)

    def _name(self) -> str:
        return "a box over sockets"


def asked(reply: Reply, ask: Callable[[WorkerSandbox], Any]) -> Any:
    """What a call comes to; DEAD where the box is dead, and says so."""
    box = OverSockets(reply)
    try:
        found = ask(box)
    except SandboxDead:
        found = DEAD
    except (SandboxFileError, ProcessTimeout, ProcessInputClosed) as error:
        found = error
    alive = box.alive
    box.close()
    box.thread.join()
    if isinstance(found, ExecResult) and found.verdict == "dead":
        found = DEAD
    assert alive is (found is not DEAD)
    return found


def process(box: WorkerSandbox) -> WorkerProcess:
    """A process that was started in the box."""
    return WorkerProcess(box._ask_beside, 1, "the process")


CALLS: dict[str, tuple[dict[str, Any], bytes, Callable[[WorkerSandbox], Any]]] = {
    "exec": (RAN, b"hi", lambda box: box.exec("true")),
    "python": (RAN, b"hi", lambda box: box.python("1")),
    "read": (READ, b"hi", lambda box: box.read_file("f")),
    "write": ({}, b"", lambda box: box.write_file("f", b"x")),
    "missing": (FAILED, b"", lambda box: box.read_file("f")),
    "start": ({"process": 1}, b"", lambda box: box.start("true")),
    "not started": (FAILED, b"", lambda box: box.start("none")),
    "receive": ({"end": False}, b"hi", lambda box: process(box).receive(1, 2, 0.05)),
    "send": ({"taken": 2, "open": True}, b"", lambda box: process(box).send(b"hi", 0.05)),
    "wait": ({"exit_code": 3}, b"", lambda box: process(box).wait(0.05)),
    "kill": ({"killed": True}, b"", lambda box: process(box).kill()),
    "close": ({}, b"", lambda box: process(box).close_stream(1)),
    "forget": ({"exit_code": 0}, b"", lambda box: process(box).forget()),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_as_it_must_be_is_taken(name: str) -> None:
    answer, payload, ask = CALLS[name]
    said = asked(lambda request: pack({**answer, "nonce": request["nonce"]}, payload), ask)
    assert said is not DEAD


MALFORMED = {
    "no object": b"[1]",
    "a text": b'"nonce"',
    "nothing": b"null",
    "no JSON": b"{",
    "nested without end": b"[" * 200_000,
    "objects nested without end": b'{"a":' * 200_000,
    "a size that is no number": b'{"nonce": "N", "size": "2"}',
    "a size that is a truth": b'{"nonce": "N", "size": true}',
    "a negative size": b'{"nonce": "N", "size": -1}',
    "a fraction for a size": b'{"nonce": "N", "size": 0.5}',
    "a nonce that is no ASCII": '{"nonce": "\u00e9", "size": 0}'.encode(),
    "half a surrogate pair": b'{"nonce": "\\ud800", "size": 0}',
    "no UTF-8": b"\xff\xfe",
    "a long number": b'{"nonce": ' + b"9" * 10_000 + b', "size": 0}',
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_frame_is_a_dead_box(text: bytes, call: str) -> None:
    def reply(request: dict[str, Any]) -> bytes:
        said = text.replace(b'"N"', json.dumps(request["nonce"]).encode())
        return len(said).to_bytes(4, "big") + said

    assert asked(reply, CALLS[call][2]) is DEAD


@pytest.mark.parametrize(
    "call, answer",
    {
        "start": {"process": "1"},
        "receive": {"end": 0},
        "send": {"taken": -1, "open": True},
        "wait": {"exit_code": "0"},
        "kill": {"killed": False},
        "close": FAILED,
        "forget": {"exit_code": True},
    }.items(),
)
def test_an_answer_about_a_process_that_cannot_be_is_a_dead_box(
    call: str, answer: dict[str, Any]
) -> None:
    def reply(request: dict[str, Any]) -> bytes:
        return pack({**answer, "nonce": request["nonce"]})

    assert asked(reply, CALLS[call][2]) is DEAD


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(CALLS)), st.data())
def test_an_answer_with_anything_in_a_field_is_read_or_a_dead_box(
    call: str, data: st.DataObject
) -> None:
    answer, payload, ask = CALLS[call]
    names = st.sampled_from([*answer, "error", "outputs", "size"])
    changed = {**answer, **data.draw(st.dictionaries(names, values, min_size=1, max_size=2))}
    assume(changed.get("killed") is not False)  # see below
    asked(lambda request: pack({**changed, "nonce": request["nonce"]}, payload), ask)


def test_a_box_in_which_something_lives_on_is_thrown_away_after_its_answer() -> None:
    box = OverSockets(
        lambda request: pack({**RAN, "killed": False, "nonce": request["nonce"]}, b"hi")
    )
    assert box.exec(["true"]).stdout == "hi"
    assert not box.alive
    box.close()
    box.thread.join()


@pytest.mark.parametrize("kind", ["file", "worker"])
def test_what_a_failure_is_called_steers_no_terminal(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    steering = "\x1b]0;title\x07\nerror: no\r\u202e"
    failed = {"error": {"kind": kind, "number": 2, "text": steering}}
    box = OverSockets(lambda request: pack({**failed, "nonce": request["nonce"]}, b""))
    with pytest.raises((SandboxFileError, SandboxDead)) as raised:
        box.read_file("f")
    box.close()
    box.thread.join()
    told = [str(raised.value), *(record.getMessage() for record in caplog.records)]
    assert [r"\x1b]0;title\x07\nerror: no\r\u202e" in text for text in told] == [True] * len(told)
    assert all(text == visible_line(text) for text in told)
    assert len(told) == (1 if kind == "file" else 2)
