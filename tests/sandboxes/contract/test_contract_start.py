"""`start` on every backend: streams, ends, and calls that are answered meanwhile."""

import asyncio
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from gymnast.errors import (
    ProcessInputClosed,
    ProcessTimeout,
    SandboxDead,
    SandboxFileError,
    UsageError,
)
from gymnast.sandboxes import Process, Sandbox
from gymnast.sandboxes.contract.forwarding import ForwardingSandbox
from gymnast.sandboxes.contract.process import ProcessCalls
from pool_fixtures import eventually
from sandbox_fixtures import OpenBox

Running = Callable[[str], int]

ECHO = """
import sys
for line in sys.stdin:
    print("got", line, end="", flush=True)
    print("aside", file=sys.stderr, flush=True)
"""


@pytest.fixture
def seconds() -> str:
    """A time to sleep that no other process on the machine sleeps."""
    return f"{1000 + uuid.uuid4().int % 10**9}.5"


def test_a_process_reads_writes_and_ends(box: Sandbox) -> None:
    with box.start(["python3", "-c", ECHO]) as process:
        process.stdin.write("one\n")
        assert process.stdout.readline(timeout_s=20) == b"got one\n"
        assert process.stderr.read(timeout_s=20) == b"aside\n"
        process.stdin.write(b"two\nthree")
        process.stdin.close()
        assert list(process.stdout) == [b"got two\n", b"got three"]
        assert process.wait(timeout_s=20) == 0
        assert process.stdout.read() == process.stdout.readline() == b""


def test_a_text_is_for_the_shell_with_a_folder_and_variables(box: Sandbox) -> None:
    with box.start("pwd; echo $MINE; exit 3", cwd="/", env={"MINE": "a b"}) as process:
        assert list(process.stdout) == [b"/\n", b"a b\n"]
        assert process.wait(timeout_s=20) == 3


def test_calls_are_answered_while_it_runs_and_it_while_they_run(box: Sandbox) -> None:
    with box.start(["cat"]) as process:
        assert box.exec("echo one").stdout == "one\n"
        assert box.python("a = 6; a * 7").stdout == "42\n"
        box.write_file("note", "text")
        assert box.read_file("note") == b"text"
        # A call that ends only when the process has been spoken to.
        ended: list[Any] = []
        wait = "while [ ! -e said ]; do sleep 0.01; done; echo seen"
        call = threading.Thread(target=lambda: ended.append(box.exec(wait, timeout_s=60)))
        call.start()
        process.stdin.write("hello\n")
        assert process.stdout.readline(timeout_s=20) == b"hello\n"
        for _ in range(30):  # their ends come at any point of the call
            with box.start(["true"]) as other:
                assert other.wait(timeout_s=20) == 0
        with box.start("echo > said") as other:
            assert other.wait(timeout_s=20) == 0
        call.join()
        assert ended[0].stdout == "seen\n"
        process.stdin.write("again\n")
        assert process.stdout.readline(timeout_s=20) == b"again\n"


def test_code_in_the_box_and_a_process_share_its_files(box: Sandbox) -> None:
    serve = 'mkfifo in out; read line <in; echo "served $line" >out'
    with box.start(serve) as process:
        asked = box.exec("while [ ! -p out ]; do sleep 0.01; done; echo me >in; cat out")
        assert asked.stdout == "served me\n"
        assert process.wait(timeout_s=20) == 0


def test_calls_spare_it_and_what_it_has_started(
    box: Sandbox, running: Running, seconds: str
) -> None:
    with box.start(f"(sleep {seconds} & sleep {seconds}); sleep {seconds}; true") as process:
        while running(f"sleep\0{seconds}") < 2:
            pass
        before = running(f"sleep\0{seconds}")
        box.exec("true")
        box.exec("sleep 9", timeout_s=0.2)
        box.python("while True: pass", timeout_s=0.2)
        box.python("raise SystemExit")
        assert running(f"sleep\0{seconds}") == before
        process.kill()
        assert process.wait(timeout_s=20) == 137
        assert running(seconds) == 0


def test_an_orphan_that_is_killed_takes_nobody_with_it_that_is_no_orphan(
    box: Sandbox, running: Running, seconds: str
) -> None:
    detached = f"(sleep {seconds} & sleep {seconds} & wait) & (sleep {seconds} &); echo begun; wait"
    code = f"import subprocess as s; s.run(['sh', '-c', {detached!r}], start_new_session=True)"
    with box.start(["python3", "-c", code]) as process:
        assert process.stdout.readline(timeout_s=20) == b"begun\n"
        box.exec("sleep 0.2")
        assert eventually(lambda: running(f"sleep\0{seconds}") == 2)
        with pytest.raises(ProcessTimeout):
            process.wait(timeout_s=0.1)


def test_what_it_leaves_behind_is_killed_at_its_end(
    box: Sandbox, running: Running, seconds: str
) -> None:
    with box.start(f"sleep {seconds} & setsid sleep {seconds} & echo begun") as process:
        assert process.stdout.readline(timeout_s=20) == b"begun\n"
        assert process.wait(timeout_s=20) == 0
        assert process.stdout.read(timeout_s=20) == b""
        assert running(seconds) == 0


def test_closing_it_kills_it(box: Sandbox, running: Running, seconds: str) -> None:
    process = box.start(f"trap '' TERM INT HUP; sleep {seconds}; sleep {seconds}")
    process.close()
    assert running(seconds) == 0
    assert process.wait() == 137
    with pytest.raises(ProcessInputClosed):
        process.stdin.write("more")
    assert process.stdout.read() == b""
    process.close()


def test_a_wait_ends_when_its_time_is_up_and_the_process_goes_on(box: Sandbox) -> None:
    with box.start(["cat"]) as process:
        with pytest.raises(ProcessTimeout, match=r"'cat' in .* still runs after 0\.1 s; it goes"):
            process.wait(timeout_s=0.1)
        with pytest.raises(ProcessTimeout, match=r"wrote nothing to stdout after 0\.1 s"):
            process.stdout.read(timeout_s=0.1)
        process.stdin.write("half")
        with pytest.raises(ProcessTimeout, match="wrote nothing to stdout"):
            process.stdout.readline(timeout_s=0.5)
        process.stdin.write(" a line\n")
        assert process.stdout.readline(timeout_s=20) == b"half a line\n"
        with pytest.raises(ProcessTimeout, match=r"did not read its stdin, \d+ of 1048576 bytes"):
            process.stdin.write(b"x" * (1 << 20), timeout_s=0.2)


def test_a_wait_for_another_thread_ends_when_its_time_is_up(box: Sandbox) -> None:
    with box.start("echo begun; sleep 999") as process:
        assert process.stdout.readline(timeout_s=20) == b"begun\n"
        reading = threading.Thread(target=process.stdout.readline)
        reading.start()
        while not process.stdout._turn.locked():
            pass
        with pytest.raises(ProcessTimeout, match=r"another thread reads it, and .* after 0\.2 s"):
            process.stdout.read(timeout_s=0.2)
        process.kill()
        reading.join()


def test_what_does_not_fit_a_pipe_goes_through(box: Sandbox) -> None:
    data = b"0123456789" * 100_000
    with box.start(["cat"]) as process:
        writing = threading.Thread(target=process.stdin.write, args=(data,))
        writing.start()
        received = bytearray()
        while len(received) < len(data):
            received += process.stdout.read(timeout_s=20)
        writing.join()
        assert received == data


def test_a_line_is_read_in_pieces_where_it_is_too_long(box: Sandbox) -> None:
    with box.start(["printf", "0123456789\\n12\\nend"]) as process:
        lines = [process.stdout.readline(max_bytes=8, timeout_s=20) for _ in range(5)]
        assert lines == [b"01234567", b"89\n", b"12\n", b"end", b""]


def test_a_process_that_has_closed_its_stdin_is_not_written_to(box: Sandbox) -> None:
    with box.start("exec <&-; echo closed; sleep 999") as process:
        assert process.stdout.readline(timeout_s=20) == b"closed\n"
        with pytest.raises(ProcessInputClosed, match="with 4 of 4 bytes to be written"):
            process.stdin.write("text")


def test_closing_an_output_ends_who_writes_there(box: Sandbox) -> None:
    with box.start(["yes"]) as process:
        assert process.stdout.read(2, timeout_s=20) == b"y\n"
        process.stdout.close()
        assert process.wait(timeout_s=20) == 128 + 13
        assert process.stdout.read() == b""


def test_what_cannot_be_started_is_refused(box: Sandbox) -> None:
    with pytest.raises(SandboxFileError, match="no-such-command: No such file"):
        box.start(["no-such-command"])
    with pytest.raises(SandboxFileError, match="/no/folder"):
        box.start(["true"], cwd="/no/folder")
    with pytest.raises(UsageError, match="command is empty"):
        box.start([])
    with box.start(["true"]) as process:
        with pytest.raises(UsageError, match="3 is no input for a process"):
            process.stdin.write(3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="timeout_s is 0"):
            process.wait(timeout_s=0)
    assert box.exec("echo still there").stdout == "still there\n"


def test_processes_that_are_open_are_limited(box: Sandbox) -> None:
    processes: list[Process] = []
    with pytest.raises(SandboxFileError, match="64 programs run or have streams that are open"):
        for _ in range(65):
            processes.append(box.start(["true"]))
            processes[-1].wait(timeout_s=20)
    assert len(processes) == 64
    processes[0].close()
    with box.start(["true"]) as process:
        assert process.wait(timeout_s=20) == 0
    for process in processes:
        process.close()


def test_it_ends_with_the_box_and_says_so(open_box: OpenBox) -> None:
    box = open_box()
    process = box.start(["cat"])
    errors: list[BaseException] = []

    def read() -> None:
        try:
            process.stdout.read()
        except SandboxDead as error:
            errors.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    assert box.exec("true").verdict == "ok"
    box.close()
    reading.join(20)
    assert len(errors) == 1
    for call in (process.wait, process.kill, lambda: process.stdin.write("more")):
        with pytest.raises(SandboxDead, match="it was closed"):
            call()
    process.close()
    with pytest.raises(SandboxDead, match="open another sandbox"):
        box.start(["true"])


def test_coroutines_wait_without_blocking_their_loop(box: Sandbox) -> None:
    async def talk() -> list[bytes]:
        process = await box.astart(["cat"])
        reading = asyncio.ensure_future(process.stdout.areadline(timeout_s=20))
        assert (await box.aexec("echo meanwhile")).stdout == "meanwhile\n"
        await process.stdin.awrite("line\n")
        lines = [await reading]
        process.stdin.close()
        lines.append(await process.stdout.aread())
        assert await process.await_end(timeout_s=20) == 0
        process.close()
        return lines

    assert asyncio.run(talk()) == [b"line\n", b""]


class Counted(ForwardingSandbox):
    """Counts what is forwarded."""

    def __init__(self, box: Sandbox) -> None:
        self.box, self.calls = box, 0

    def target(self) -> Sandbox:
        return self.box

    def forward(self, call: Callable[[Sandbox], Any]) -> Any:
        self.calls += 1
        return super().forward(call)

    def close(self) -> None:
        self.box.close()


def test_a_box_that_forwards_forwards_the_calls_of_a_process_too(box: Sandbox) -> None:
    counted = Counted(box)
    with counted.start(["cat"]) as process:
        process.stdin.write("line\n")
        assert process.stdout.readline(timeout_s=20) == b"line\n"
        process.stdin.close()
        assert process.wait(timeout_s=20) == 0
    assert counted.calls == 1 + 4 + 2
    assert isinstance(process.calls, ProcessCalls)
