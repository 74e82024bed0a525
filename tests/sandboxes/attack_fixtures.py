"""Attacks on a box: a victim, what must hold afterwards, and what is known not to hold.

Each test of `test_attacks_*.py` is one attack, named by the first line of its docstring, and runs
on every backend that isolates. `docs/isolation.md` has the same attacks as a table.
"""

import ast
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gymnast.sandboxes import ExecResult
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from sandbox_fixtures import OpenBox

ATTACKED = [
    pytest.param("landlock", marks=pytest.mark.attacks),
    pytest.param("bubblewrap", marks=pytest.mark.attacks),
    pytest.param("docker", marks=[pytest.mark.attacks, pytest.mark.docker]),
]

on_every_isolating_backend = pytest.mark.parametrize(
    "backend", ATTACKED, indirect=True, scope="module"
)

MIB = 1 << 20


def not_contained(backend: str, reason: str) -> pytest.MarkDecorator:
    """Mark an attack that a backend is known not to stop: it must succeed there, or this goes."""
    return pytest.mark.not_contained(backend, reason)


@pytest.fixture(autouse=True)
def _known_not_to_hold(request: pytest.FixtureRequest) -> None:
    for mark in request.node.iter_markers("not_contained"):
        backend, reason = mark.args
        if request.getfixturevalue("backend") == backend:
            request.applymarker(pytest.mark.xfail(strict=True, reason=reason))


LIMITS: dict[str, Any] = {
    "memory_bytes": 256 * MIB,
    "processes": 24,
    "disk_bytes": 8 * MIB,
    "timeout_s": 20.0,
}


@pytest.fixture
def victim(open_box: OpenBox) -> Iterator[WorkerSandbox]:
    """A box with small limits. Afterwards it works or says that it is dead; another one works."""
    box = open_box(**LIMITS)
    yield box
    if box.alive:
        answer = box.python("6 * 7")
        if "it was killed" in answer.stderr:  # by the attack, of which it died only now
            answer = box.python("6 * 7")
        assert answer.stdout == "42\n"
        assert box.exec("echo still there").stdout == "still there\n"
    with open_box(**LIMITS) as after:
        assert after.python("6 * 7").stdout == "42\n"
        assert after.exec("ls").stdout == ""


@pytest.fixture
def mark() -> Iterator[str]:
    """A text for command lines; afterwards no process of the host has it in its own."""
    text = "attack" + secrets.token_hex(8)
    yield text
    deadline = time.monotonic() + 5
    while left := processes_with(text):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def processes_with(text: str) -> list[int]:
    """The processes of this machine that have a text in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


RunCode = Callable[..., ExecResult]


def run_python(box: WorkerSandbox, code: str, *arguments: str, **limits: Any) -> ExecResult:
    """Run a program in a process of its own."""
    return box.exec(["python3", "-c", code, *arguments], **limits)


def tries(box: WorkerSandbox, attempts: dict[str, str]) -> dict[str, str]:
    """Evaluate each attempt in the box's session.

    Returns:
        For each: the name of the exception that it raised, or the repr of its value.
    """
    code = f"""
import json
def _attempt(text):
    try:
        return repr(eval(text))
    except Exception as error:
        return type(error).__name__
print(json.dumps({{name: _attempt(text) for name, text in {attempts!r}.items()}}))
"""
    ended = box.python(code)
    assert ended.verdict == "ok", ended
    outcome: dict[str, str] = json.loads(ended.stdout)
    return outcome


# For the session: `call(number, ...)` makes a system call and gives its result and its errno.
SYSCALL = """
import ctypes, os, socket, struct
_libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    return _libc.syscall(*map(ctypes.c_long, arguments)), ctypes.get_errno()
"""


SERVER = """
import socket, threading
def serve(server, word):
    while True:
        connection = server.accept()[0]
        connection.sendall(word)
        connection.close()
server = socket.create_server(("0.0.0.0", 0))
threading.Thread(target=serve, args=(server, {word!r}), daemon=True).start()
port = server.getsockname()[1]
(port, socket.create_connection(("127.0.0.1", port), 5).recv(100))
"""


def addresses_of_a_server_in(box: WorkerSandbox, addresses: Sequence[str]) -> list[str] | None:
    """Which addresses of the host lead to a server in a box; None where it may have no server.

    Somebody else may listen on the same port of the host, so the server says a word.
    """
    word = secrets.token_hex(16).encode()
    answer = box.python(SERVER.format(word=word)).stdout
    if not answer:
        return None
    port, heard = ast.literal_eval(answer)
    assert heard == word
    return [address for address in addresses if _heard(address, port) == word]


def _heard(address: str, port: int) -> bytes:
    """What is said first on a port; nothing where nobody listens, or nothing is said."""
    with suppress(OSError), socket.create_connection((address, port), 2) as connection:
        return connection.recv(100)
    return b""
