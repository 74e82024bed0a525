"""Images that have no Python, and even no C library: their boxes answer all calls."""

import io
import platform
import tarfile

import pytest

from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes import DockerSandbox, SandboxSpec
from gymnast.sandboxes.docker.engine import engine_client
from gymnast.sandboxes.docker.python_layer import REPOSITORY

pytestmark = pytest.mark.docker

BUSYBOX = "gymnast-base:busybox"
EMPTY = "gymnast-base:empty"
MIB = 1 << 20


@pytest.fixture(scope="module")
def busybox(docker_image: str) -> str:
    """Commands in one static program."""
    if not engine_client().images(BUSYBOX):
        pytest.skip(f"no image {BUSYBOX}: run tests/sandboxes/start_engine.sh")
    return BUSYBOX


@pytest.fixture(scope="module")
def empty(docker_image: str) -> str:
    """Not even a shell."""
    if not engine_client().images(EMPTY):  # an import is another image each time
        files = io.BytesIO()
        with tarfile.open(fileobj=files, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("nothing"))
        repository, _, tag = EMPTY.partition(":")
        engine_client().import_image(files.getvalue(), repository=repository, tag=tag)
    return EMPTY


def spec(image: str) -> SandboxSpec:
    return SandboxSpec(image=image, python=None, memory_bytes=128 * MIB)


def test_commands_are_the_images_and_python_is_ours(busybox: str) -> None:
    with DockerSandbox(spec(busybox)) as box:
        assert box.exec("ls /bin; command -v python3").stdout == "busybox\ncat\nid\nls\nsh\nsleep\n"
        assert box.exec(["cat"], stdin="given").stdout == "given"
        assert box.exec("sleep 60", timeout_s=0.5).verdict == "timeout"
        assert box.python("import platform, sqlite3, ssl").verdict == "ok"
        assert box.python("platform.python_version()").stdout == f"'{platform.python_version()}'\n"
        assert box.python("x = bytearray(1 << 30)").verdict == "oom"
        assert box.exec("echo > /gymnast-python/bin/python3").verdict == "nonzero"


def test_files_and_started_processes_are_there(busybox: str) -> None:
    with DockerSandbox(spec(busybox)) as box, box.start(["cat"]) as echo:
        box.write_file("deep/er/file", b"\x00\xff")
        assert box.read_file("deep/er/file") == b"\x00\xff"
        assert box.exec("ls deep").stdout == "er\n"
        echo.stdin.write("said\n")
        assert echo.stdout.readline(timeout_s=20) == b"said\n"


def test_an_image_without_a_shell_has_files_and_python(empty: str) -> None:
    with DockerSandbox(spec(empty)) as box:
        ended = box.exec("ls")
        assert (ended.exit_code, ended.stderr) == (127, "/bin/sh: No such file or directory\n")
        box.write_file("numbers", b"1 2 3")
        assert box.python("sum(map(int, open('numbers').read().split()))").stdout == "6\n"


def test_the_copy_is_made_once(busybox: str) -> None:
    DockerSandbox(spec(busybox)).close()
    before = engine_client().images(REPOSITORY, quiet=True, all=True)
    DockerSandbox(spec(busybox)).close()
    assert engine_client().images(REPOSITORY, quiet=True, all=True) == before


def test_an_image_for_another_machine_is_refused(
    busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxUnavailable, match=r"is for (amd64|arm64)") as refused:
        DockerSandbox(spec(busybox))
    assert "for riscv64: take an image that has Python" in str(refused.value)


def test_without_the_setting_the_error_names_it(busybox: str) -> None:
    with pytest.raises(SandboxUnavailable, match="python=None needs none"):
        DockerSandbox(SandboxSpec(image=busybox))
