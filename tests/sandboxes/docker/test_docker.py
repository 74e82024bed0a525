"""What containers add to the contract: limits that hold, no network, no privileges, no leaks."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest

from gymnast.errors import SandboxFileError, SandboxUnavailable
from gymnast.sandboxes import DockerSandbox, SandboxSpec, open_sandbox
from gymnast.sandboxes.docker.engine import engine_client, has_all_user_ids
from gymnast.sandboxes.lifetime.users import all_ids_are_here, random_user_id
from gymnast.sandboxes.seccomp.system_calls import ABSENT
from gymnast.visible import visible

pytestmark = pytest.mark.docker

OpenContainer = Callable[..., DockerSandbox]
MIB = 1 << 20


@pytest.fixture
def open_container(docker_image: str) -> Iterator[OpenContainer]:
    opened = []

    def open_container(**limits: Any) -> DockerSandbox:
        opened.append(DockerSandbox(SandboxSpec(**{"image": docker_image, **limits})))
        return opened[-1]

    yield open_container
    for box in opened:
        box.close()


@pytest.fixture(scope="module")
def container(docker_image: str) -> Iterator[DockerSandbox]:
    """One for the tests that do it no harm."""
    with DockerSandbox(image=docker_image) as box:
        yield box


def is_gone(container_id: str, *, within_s: float = 20) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            engine_client().inspect_container(container_id)
        except docker.errors.NotFound:
            return True
        time.sleep(0.05)
    return False


def test_memory_is_limited_and_the_box_lives_on(open_container: OpenContainer) -> None:
    box = open_container(memory_bytes=96 * MIB)
    ended = box.exec(["python3", "-c", "x = bytearray(1 << 30)"])
    assert (ended.verdict, ended.exit_code) == ("oom", 137)
    ended = box.python("x = bytearray(1 << 30)")
    assert (ended.verdict, ended.exit_code) == ("oom", 137)
    assert "variables are gone" in ended.stderr
    assert box.python("1").stdout == "1\n"
    assert box.exec("exit 2").verdict == "nonzero"


def test_swap_is_no_way_around(open_container: OpenContainer) -> None:
    box = open_container(memory_bytes=96 * MIB)
    host = engine_client().inspect_container(box.container_id)["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 96 * MIB


def test_a_fork_bomb_is_bounded_and_cleared(open_container: OpenContainer) -> None:
    box = open_container(processes=24)
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    ended = box.exec(["python3", "-c", bomb], timeout_s=2)
    assert ended.verdict in ("timeout", "oom")
    assert box.exec("ls /proc | grep -c '^[0-9]'").stdout.strip() in ("4", "5", "6")
    assert box.python("1").stdout == "1\n"


def test_a_fork_bomb_in_the_session_is_cleared_too(open_container: OpenContainer) -> None:
    box = open_container(processes=24)
    ended = box.python(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", timeout_s=2
    )
    assert ended.verdict in ("timeout", "oom")
    assert box.python("1").stdout == "1\n"


def test_threads_are_limited(open_container: OpenContainer) -> None:
    box = open_container(processes=24)
    code = """
import threading, time
while True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
"""
    assert "can't start new thread" in box.python(code, timeout_s=20).stderr
    assert box.python("threading.active_count() <= 25").stdout == "True\n"


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
def test_writable_folders_have_their_size(open_container: OpenContainer, folder: str) -> None:
    box = open_container(disk_bytes=4 * MIB)
    ended = box.exec(f"head -c 100000000 /dev/zero > {folder}/fill; wc -c < {folder}/fill")
    assert "No space left" in ended.stderr
    assert int(ended.stdout) <= 16 * MIB
    assert box.exec(f"rm {folder}/fill").verdict == "ok"


def test_files_leave_memory_for_what_runs(open_container: OpenContainer) -> None:
    box = open_container(memory_bytes=96 * MIB, disk_bytes=1024 * MIB)
    for folder in ("/work", "/tmp", "/dev/shm"):
        ended = box.exec(f"head -c 500000000 /dev/zero > {folder}/fill; wc -c < {folder}/fill")
        assert int(ended.stdout) == 12 * MIB
    assert box.python("len(bytearray(4 << 20))").stdout == "4194304\n"


def test_when_memory_runs_out_the_worker_is_the_last_to_go(open_container: OpenContainer) -> None:
    box = open_container(memory_bytes=64 * MIB)
    many_small_ones = """
import os, time
for _ in range(40):
    if not os.fork():
        held = bytearray(4 << 20)
        time.sleep(1)
        os._exit(0)
raise SystemExit(any(os.wait()[1] for _ in range(40)))
"""
    assert box.exec(["python3", "-c", many_small_ones]).verdict == "oom"
    assert box.python("1").stdout == "1\n"


def test_cpu_is_limited(open_container: OpenContainer) -> None:
    box = open_container(cpus=0.5)
    ratio = """
import time
wall, cpu = time.monotonic(), time.process_time()
while time.process_time() - cpu < 0.3: pass
(time.process_time() - cpu) / (time.monotonic() - wall) < 0.8
"""
    assert box.python(ratio).stdout == "True\n"


def test_the_root_is_read_only(container: DockerSandbox) -> None:
    root = container.exec("grep ' / ' /proc/mounts").stdout.split()
    assert root[3].split(",")[0] == "ro"
    for folder in ("/", "/etc", "/usr/bin", "/proc/sys/kernel", "/sys/fs/cgroup/memory"):
        ended = container.exec(f"touch {folder}/new || echo 1 > {folder}/new")
        assert ended.verdict == "nonzero", folder
    with pytest.raises(SandboxFileError):
        container.write_file("/etc/passwd", "root::0:0::/:/bin/sh")
    with pytest.raises(SandboxFileError):
        container.write_file("../etc/passwd", "root::0:0::/:/bin/sh")


def test_files_of_the_host_are_not_there(container: DockerSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush")
    for path in (str(secret), f"../../..{secret}", f"/proc/1/root{secret}"):
        with pytest.raises(SandboxFileError):
            container.read_file(path)
    container.exec(f"ln -s {secret} /tmp/link")
    with pytest.raises(SandboxFileError, match="No such file"):
        container.read_file("/tmp/link")


def test_the_way_to_the_network_is_not_shown(docker_image: str, tmp_path: Path) -> None:
    """Neither the proxy of the user's settings, with its password, nor the host's name servers."""
    proxy = "http://user:secret@proxy.example:3128"
    settings = {"proxies": {"default": {"httpProxy": proxy, "httpsProxy": proxy}}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    program = (
        "from gymnast.sandboxes import DockerSandbox\n"
        f"with DockerSandbox(image={docker_image!r}) as box:\n"
        "    print(box.exec('env; cat /etc/resolv.conf').stdout)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "DOCKER_CONFIG": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "HOME=/work" in shown
    assert "proxy" not in shown.lower()
    lines = [line.split() for line in shown.splitlines()]
    assert ["nameserver", "127.0.0.1"] in lines
    assert len([line for line in lines if line[:1] in (["nameserver"], ["search"])]) == 1


def test_there_is_no_privilege_and_none_to_gain(container: DockerSandbox) -> None:
    status = dict(
        line.split(":\t", 1) for line in container.exec("cat /proc/self/status").stdout.splitlines()
    )
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    [user_id] = {*status["Uid"].split(), *status["Gid"].split()}
    assert int(user_id) >= 1 << 15
    assert container.exec("id -u").stdout == f"{user_id}\n"
    assert container.exec("id -G").stdout == f"{user_id} 1000\n"


def test_every_box_is_a_user_of_its_own(
    container: DockerSandbox, open_container: OpenContainer
) -> None:
    shown = [
        box.exec("id -u; stat -c %u /work /tmp").stdout for box in (container, open_container())
    ]
    users = [set(text.split()) for text in shown]
    assert [len(user) for user in users] == [1, 1]
    assert users[0] != users[1]


class Engine:
    """Says of itself what an engine says."""

    def __init__(self, *options: str) -> None:
        self._options = list(options)

    def info(self) -> dict[str, Any]:
        return {"SecurityOptions": self._options}


@pytest.mark.parametrize("option", ["name=userns", "name=rootless"])
def test_an_engine_with_few_users_is_asked_for_none_that_it_lacks(option: str) -> None:
    plain = "name=seccomp,profile=default"
    assert has_all_user_ids(Engine(plain)) == all_ids_are_here()
    assert not has_all_user_ids(Engine(plain, option))
    drawn = [random_user_id(all_ids=False) for _ in range(100)]
    assert all(1 << 15 <= user_id < 1 << 16 for user_id in drawn)
    assert len(set(drawn)) > 90


def test_the_worker_is_process_one_which_nothing_inside_can_kill(container: DockerSandbox) -> None:
    assert container.python("import os; os.getppid()").stdout == "1\n"
    container.exec("kill -9 1; kill -9 -1")
    assert container.ping()
    container.python("")  # may still meet the session that was just killed; the next call does not


def test_no_address_can_be_reached(container: DockerSandbox) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        addresses = ["127.0.0.1", *_addresses_of_this_host()]
        for address in addresses:  # here they answer
            socket.create_connection((address, port), 5).close()
        code = f"""
import socket
for address in {addresses!r} + ["1.1.1.1"]:
    try:
        socket.create_connection((address, {port}), 2)
        print("reached", address)
    except OSError as error:
        pass
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ({addresses[-1]!r}, {port}))
    print("sent")
except OSError: pass
try:
    socket.getaddrinfo("example.com", 80)
    print("resolved")
except OSError: pass
"""
        tried = container.python(code)
        assert (tried.verdict, tried.stdout) == ("ok", ""), tried
    own = container.python("socket.create_server(('127.0.0.1', 0))")
    assert "PermissionError" in own.stderr, own


def _addresses_of_this_host() -> list[str]:
    shown = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    return [address for address in shown if "." in address]


# Numbers of x86-64.
FORBIDDEN_CALLS = {
    "socket(AF_VSOCK)": (41, 40, 1, 0),
    "socket(AF_NETLINK)": (41, 16, 3, 0),
    "socket(AF_PACKET)": (41, 17, 3, 0),
    "socket(AF_ALG)": (41, 38, 5, 0),
    "io_uring_setup": (425, 1, 0),
    "ptrace(PTRACE_TRACEME)": (101, 0, 0, 0, 0),
    "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
    "mount": (165, 0, 0, 0, 0, 0),
    "fsopen": (430, 0, 0),
    "unshare(CLONE_NEWUSER)": (272, 0x10000000),
    "clone(CLONE_NEWUSER)": (56, 0x10000000 | 17, 0, 0, 0, 0),
    "setns": (308, 0, 0),
    "bpf": (321, 0, 0, 0),
    "userfaultfd": (323, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0),
    "keyctl": (250, 0, 0, 0, 0, 0),
    "open_by_handle_at": (304, 0, 0, 0),
    "kexec_load": (246, 0, 0, 0, 0),
    "pidfd_getfd": (438, 0, 0, 0),
    "prlimit64(1)": (302, 1, 7, 0, 0),
    "personality(ADDR_NO_RANDOMIZE)": (135, 0x0040000),
}


def test_system_calls_off_the_list_are_refused(container: DockerSandbox) -> None:
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    return libc.syscall(*map(ctypes.c_long, arguments)), ctypes.get_errno()
import json, os
print(json.dumps({{name: call(*number) for name, number in {FORBIDDEN_CALLS!r}.items()}}))
print(call(435, 0, 0), call(41, 1, 1, 0)[0] > 2, call(302, 0, 7, 0, 0))
"""
    forbidden, allowed = container.python(code).stdout.splitlines()
    assert json.loads(forbidden) == {
        name: [-1, errno.ENOSYS if name in ABSENT else errno.EPERM] for name in FORBIDDEN_CALLS
    }
    assert allowed == "(-1, 38) True (0, 0)"  # clone3: not there; socket(AF_UNIX); own limits


def test_programs_can_be_run_from_the_working_folder_only(container: DockerSandbox) -> None:
    for folder, code in (("/work", 0), ("/tmp", 126)):
        container.write_file(f"{folder}/program", "#!/bin/sh\nexit 0\n")
        assert container.exec(f"chmod +x {folder}/program; {folder}/program").exit_code == code


def test_a_container_says_whose_it_is(open_container: OpenContainer) -> None:
    box = open_container()
    shown = engine_client().inspect_container(box.container_id)
    labels = shown["Config"]["Labels"]
    assert labels["gymnast.sandbox"] == "1"
    assert labels["gymnast.owner.pid"] == str(os.getpid())
    stat = Path(f"/proc/{os.getpid()}/stat").read_text()
    assert labels["gymnast.owner.started"] == stat.rsplit(")", 1)[1].split()[19]
    assert labels["gymnast.run"] and labels["gymnast.owner.host"]
    assert shown["HostConfig"]["LogConfig"]["Type"] == "none"


def test_a_closed_container_is_gone(open_container: OpenContainer) -> None:
    box = open_container()
    box.close()
    assert is_gone(box.container_id, within_s=0.2)


def test_a_container_ends_with_its_owner(docker_image: str) -> None:
    program = (
        "import sys, time\nfrom gymnast.sandboxes import DockerSandbox\n"
        "box = DockerSandbox(image=sys.argv[1])\nprint(box.container_id, flush=True)\n"
        "box.exec('sleep 999', timeout_s=999)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, docker_image], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        container_id = owner.stdout.readline().strip()
        assert not is_gone(container_id, within_s=0.1)
        owner.send_signal(signal.SIGKILL)
    assert is_gone(container_id)


def test_idle_connections_are_closed_with_the_last_box(docker_image: str) -> None:
    program = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from gymnast.sandboxes import DockerSandbox

def sockets():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith('socket') for link in links if os.path.islink(link))

def use(_):
    with DockerSandbox(image=sys.argv[1]) as box:
        return box.python("1").stdout

with ThreadPoolExecutor(3) as pool:
    print(*pool.map(use, range(3)))
print(use(0), sockets())
"""
    command = [sys.executable, "-c", program, docker_image]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert shown[:-1] == ["1"] * 4
    assert int(shown[-1]) <= 2  # the watch on the engine


def test_a_container_that_is_killed_under_way_is_dead(open_container: OpenContainer) -> None:
    box = open_container()
    box.python("import threading, time")
    engine_client().kill(box.container_id)
    assert box.python("1").verdict == "dead"
    assert not box.alive


def test_a_container_that_is_paused_is_given_up(
    open_container: OpenContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.sandboxes.worker.sandbox.GRACE_S", 0.3)
    box = open_container()
    engine_client().pause(box.container_id)
    assert box.exec("true", timeout_s=0.3).verdict == "timeout"
    assert is_gone(box.container_id)


def test_what_is_missing_is_named_with_a_way_out(
    docker_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandboxUnavailable, match=r"no image 'no/such:image': run `docker pull"):
        open_sandbox("docker", image="no/such:image")
    with pytest.raises(SandboxUnavailable, match="runtime 'nosuchruntime'"):
        open_sandbox("docker", image=docker_image, runtime="nosuchruntime")
    with pytest.raises(SandboxUnavailable, match=r"Python 3\.8 or newer as .nosuchpython"):
        open_sandbox("docker", image=docker_image, python="nosuchpython")
    with pytest.raises(SandboxUnavailable, match="the worker did not start"):
        open_sandbox("docker", image=docker_image, python="/bin/false")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SandboxUnavailable, match=r"unix:///nowhere/docker.sock.*set DOCKER_HOST"):
        open_sandbox("docker", image=docker_image)


def test_what_an_image_says_before_the_worker_starts_steers_no_terminal(
    docker_image: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = {"LD_PRELOAD": "\x1b]0;title\x07\rfine"}  # which the loader quotes as it is
    with pytest.raises(SandboxUnavailable) as failed:
        open_sandbox("docker", image=docker_image, python="/bin/false", env=said)
    for text in (str(failed.value), caplog.text):
        assert r"\x1b]0;title\x07\rfine" in text
        assert text == visible(text)


def test_auto_takes_it(docker_image: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), open_sandbox("auto", image=docker_image) as box:
        assert isinstance(box, DockerSandbox)
    assert "sandbox backend docker" in caplog.text
