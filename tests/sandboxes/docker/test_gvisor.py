"""Docker boxes under gVisor, whose kernel stands between the code and the host's.

On Debian: `apt-get install runsc`.
"""

import os
import shutil
from collections.abc import Iterator

import pytest

from engine_fixtures import OwnEngine
from gymnast.sandboxes import DockerSandbox, SandboxSpec

pytestmark = [pytest.mark.docker, pytest.mark.slow]

# Its own threads and memory count against the limits.
SPEC = SandboxSpec(runtime="runsc", processes=512, memory_bytes=512 << 20)


@pytest.fixture
def box(
    own_engine: OwnEngine, docker_image: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DockerSandbox]:
    if shutil.which("runsc") is None:
        pytest.skip("there is no runsc on the PATH")
    monkeypatch.setenv("DOCKER_HOST", own_engine.address)
    with DockerSandbox(SPEC, image=docker_image) as box:
        yield box


def test_code_meets_another_kernel_than_the_hosts(box: DockerSandbox) -> None:
    said = box.exec(["uname", "-r"])
    assert said.verdict == "ok"
    assert said.stdout.strip() != os.uname().release


def test_a_box_answers_as_without_it(box: DockerSandbox) -> None:
    box.write_file("numbers.txt", "1 2 3")
    counted = "sum(map(int, open('numbers.txt').read().split()))"
    assert box.python(counted).stdout == "6\n"
    assert box.exec("cat numbers.txt | wc -w").stdout == "3\n"
    box.exec("echo 4 > more.txt")
    assert box.read_file("more.txt") == b"4\n"
    assert box.exec(["sleep", "9"], timeout_s=0.5).verdict == "timeout"
    assert box.python("1 + 1").stdout == "2\n"


def test_nothing_outside_can_be_reached(box: DockerSandbox) -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=2)"
    assert box.python(code).verdict == "nonzero"


def test_calls_are_answered_by_its_kernel_whatever_the_list_says(box: DockerSandbox) -> None:
    code = "import socket; server = socket.create_server(('127.0.0.1', 0))"
    assert box.python(code).verdict == "ok"
    assert box.python("socket.create_connection(server.getsockname()).close()").verdict == "ok"


def test_memory_beyond_the_limit_breaks_the_box_and_not_the_call(box: DockerSandbox) -> None:
    ended = box.exec(["python3", "-c", "x = bytearray(1 << 30)"])
    assert ended.verdict in ("dead", "oom")
    assert ended.exit_code != 0
