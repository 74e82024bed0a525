"""Attacks from boxes whose specs open something: they reach what was opened, and nothing else."""

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from attack_fixtures import (
    LIMITS,
    MIB,
    SYSCALL,
    addresses_of_a_server_in,
    on_every_isolating_backend,
    tries,
)
from endpoint_fixtures import Echo
from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes.contract.spec import CAPABILITIES
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from sandbox_fixtures import OpenBox

pytestmark = on_every_isolating_backend

# Family, kind and protocol of sockets that are not TCP's or UDP's.
OTHERS = [
    ("sctp", "2, 1, 132"), ("sctp by its kind", "2, 5, 0"), ("dccp", "2, 6, 0"),
    ("mptcp", "2, 1, 262"), ("udplite", "2, 2, 136"), ("ping", "2, 2, 1"), ("raw", "2, 3, 1"),
    ("ipv6", "10, 1, 0"), ("packet", "17, 3, 0"), ("netlink", "16, 3, 0"), ("vsock", "40, 1, 0"),
]  # fmt: skip

Opened = Callable[..., WorkerSandbox | None]


@pytest.fixture
def opened(open_box: OpenBox, backend: str) -> Opened:
    """Opens boxes with small limits; None where the backend refuses, as all but Docker may."""

    def opened(**opening: Any) -> WorkerSandbox | None:
        if backend == "docker" or opening.get("network") == "endpoint":
            return open_box(**LIMITS, **opening)
        with pytest.raises(SandboxUnavailable, match="box cannot have that"):
            open_box(**LIMITS, **opening)
        return None

    return opened


@pytest.fixture
def open_to(open_box: OpenBox, echo: Echo) -> WorkerSandbox:
    """A box that may reach the server."""
    return open_box(**LIMITS, network="endpoint", endpoint=echo.address)


def addresses() -> list[str]:
    """Those of this machine but its loopback."""
    shown = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    return [address for address in shown if ":" not in address]


def still_works(box: WorkerSandbox, echo: Echo) -> bool:
    talk = f"c = socket.create_connection(('127.0.0.1', {echo.port}), 20); c.send(b'a'); c.recv(9)"
    return box.python(f"import socket\n{talk}").stdout == "b'a'\n"


def test_beyond_the_endpoint(open_to: WorkerSandbox, echo: Echo) -> None:
    """With an endpoint: other ports, addresses and protocols, by TCP, UDP, IPv6 and DNS"""
    assert still_works(open_to, echo)
    with (
        socket.create_server(("0.0.0.0", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(("0.0.0.0", echo.port))
        other = tcp.getsockname()[1]
        connect = "__import__('socket').create_connection(({!r}, {}), 2)"
        send = "__import__('socket').socket(2, 2).sendto(b'x', ({!r}, {}))"
        targets = ["127.0.0.1", "127.0.0.2", "0.0.0.0", *addresses(), "1.1.1.1", "169.254.169.254"]
        attempts = {target: connect.format(target, other) for target in targets}
        attempts.update({f"its port {a}": connect.format(a, echo.port) for a in addresses()})
        attempts.update({f"udp {a}": send.format(a, echo.port) for a in addresses()})
        attempts["ipv6"] = connect.format("::1", echo.port)
        attempts["dns"] = "__import__('socket').getaddrinfo('example.com', 80)"
        outcome = tries(open_to, attempts)
        assert all("rror" in found for found in outcome.values()), outcome
        other_protocols = {name: f"__import__('socket').socket({asked})" for name, asked in OTHERS}
        refused = tries(open_to, other_protocols)
        assert set(refused.values()) == {"PermissionError"}, refused
        tries(open_to, {"loopback": send.format("127.0.0.1", echo.port)})
        for listener in (tcp, udp):
            listener.settimeout(0.3)
            with pytest.raises(TimeoutError):
                listener.recv(9) if listener is udp else listener.accept()
    assert still_works(open_to, echo)


def test_local_sockets(open_to: WorkerSandbox) -> None:
    """With an endpoint: a local socket of the host, in the abstract namespace or by its path"""
    name, path = ("\0gymnast-" + secrets.token_hex(8), "/var/tmp/gymnast-" + secrets.token_hex(8))
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        abstract.bind(name)
        named.bind(path)
        try:
            os.chmod(path, 0o777)
            for listener in (abstract, named):
                listener.listen()
            connect = "__import__('socket').socket(1).connect({!r})"
            outcome = tries(open_to, {place: connect.format(place) for place in (name, path)})
        finally:
            os.unlink(path)
    assert all("Error" in found for found in outcome.values()), outcome


def test_a_server_in_the_box(open_to: WorkerSandbox) -> None:
    """With an endpoint: a server in the box that the host's addresses lead to"""
    assert addresses_of_a_server_in(open_to, ["127.0.0.1", *addresses()]) == []


def test_the_endpoints_place(open_to: WorkerSandbox, echo: Echo) -> None:
    """With an endpoint: taking its port, to answer for it"""
    take = """
import socket
taken = []
for address in ("127.0.0.1", "0.0.0.0"):
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            server.bind((address, HERE))
            server.listen()
            taken.append((address, option))
        except OSError:
            pass
taken
"""
    assert open_to.python(take.replace("HERE", str(echo.port))).stdout == "[]\n"
    assert still_works(open_to, echo)


def test_many_connections(open_to: WorkerSandbox, echo: Echo) -> None:
    """With an endpoint: more connections than are carried, left open"""
    connect = f"""
import socket
left = []
for _ in range(300):
    try: left.append(socket.create_connection(("127.0.0.1", {echo.port}), 5))
    except OSError: pass
"""
    open_to.python(connect)
    assert open_to.exec("echo call").stdout == "call\n"
    assert 0 < echo.most <= 64
    open_to.python("for connection in left: connection.close()")
    deadline = time.monotonic() + 20
    while not still_works(open_to, echo):
        assert time.monotonic() < deadline


def test_floods(open_to: WorkerSandbox, echo: Echo) -> None:
    """With an endpoint: data without end in both directions, which nobody reads"""
    resident = "cat /proc/1/statm"
    before = int(open_to.exec(resident).stdout.split()[1])
    flood = f"""
import socket, time
left = [socket.create_connection(("127.0.0.1", {echo.port}), 5) for _ in range(8)]
for connection in left[:4]: connection.send(b"flood")
end = time.monotonic() + 1
for connection in left[4:]: connection.setblocking(False)
while time.monotonic() < end:
    for connection in left[4:]:
        try: connection.send(b"x" * 65536)
        except BlockingIOError: pass
"""
    assert open_to.python(flood).verdict == "ok"
    for _ in range(10):
        assert open_to.exec("echo call").stdout == "call\n"
    assert 4096 * (int(open_to.exec(resident).stdout.split()[1]) - before) < 8 * MIB
    assert still_works(open_to, echo)


def test_full_network(opened: Opened) -> None:
    """With a full network: the host's own loopback and local sockets; raw packets"""
    box = opened(network="full")
    if box is None:
        return
    name = "\0gymnast-" + secrets.token_hex(8)
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        port = tcp.getsockname()[1]
        attempts = {
            "loopback": f"__import__('socket').create_connection(('127.0.0.1', {port}), 2)",
            "abstract": f"__import__('socket').socket(1).connect({name!r})",
            "raw": "__import__('socket').socket(2, 3, 1)",
            "packet": "__import__('socket').socket(17, 3, 0)",
            "netlink": "__import__('socket').socket(16, 3, 0)",
        }
        outcome = tries(box, attempts)
        assert all("Error" in found for found in outcome.values()), outcome


def test_root_of_a_writable_root(opened: Opened) -> None:
    """As root of a writable root: the kernel's settings, devices, mounts, other users' rights"""
    box = opened(root="writable", user="root")
    if box is None:
        return
    attempts = {
        "setting": "open('/proc/sys/kernel/hostname', 'w').write('x')",
        "trigger": "open('/proc/sysrq-trigger', 'w').write('h')",
        "group": "__import__('os').mkdir('/sys/fs/cgroup/memory/new')",
        "device": "__import__('os').mknod('/opt/disk', 0o60600, 0x800)",
        "chown": "__import__('os').chown('/opt', 1234, 1234)",
        "chroot": "__import__('os').chroot('/opt')",
        "other user": "__import__('os').setuid(1234)",
        "network": "__import__('socket').socket(2, 1, 0)",
        "memory": "open('/proc/1/mem', 'rb').read(1)",
        "connection": "__import__('os').open('/proc/1/fd/3', 2)",
    }
    outcome = tries(box, attempts)
    assert all("Error" in found for found in outcome.values()), outcome
    mount = f"{SYSCALL}\nprint(call(165, 0, 0, 0, 0, 0), call(272, 0x10000000), call(101, 16, 1))"
    assert box.python(mount).stdout == "(-1, 1) (-1, 1) (-1, 1)\n"


def test_root_with_capabilities(opened: Opened) -> None:
    """As root with all capabilities that there are: devices, mounts, the worker's memory, limits"""
    box = opened(root="image", user="root", capabilities=CAPABILITIES)
    if box is None:
        return
    attempts = {
        "setting": "open('/proc/sys/kernel/hostname', 'w').write('x')",
        "trigger": "open('/proc/sysrq-trigger', 'w').write('h')",
        "group": "__import__('os').mkdir('/sys/fs/cgroup/memory/new')",
        "device": "__import__('os').mknod('/var/disk', 0o60600, 0x800)",
        "chroot": "__import__('os').chroot('/var')",
        "network": "__import__('socket').socket(2, 1, 0)",
        "memory": "open('/proc/1/mem', 'rb').read(1)",
        "connection": "__import__('os').open('/proc/1/fd/3', 2)",
        "limits": "__import__('resource').prlimit(1, 7, (3, 3))",
        "raised": "__import__('resource').setrlimit(7, (1 << 20, 1 << 20))",
    }
    outcome = tries(box, attempts)
    assert all("Error" in found for found in outcome.values()), outcome
    mount = f"{SYSCALL}\nprint(call(165, 0, 0, 0, 0, 0), call(272, 0x10000000), call(101, 16, 1))"
    assert box.python(mount).stdout == "(-1, 1) (-1, 1) (-1, 1)\n"
    box.exec("kill -9 1; kill -STOP 1; kill -TERM 1; kill -9 -1")
    code = "import os; os.chown('/var', 9, 9); os.setuid(9); os.getuid()"
    box.python("pass")
    assert box.python(code).stdout == "9\n"


def test_the_worker_of_root(opened: Opened) -> None:
    """As root: killing and stopping the worker, and having it killed first"""
    box = opened(user="root")
    if box is None:
        return
    score = tries(box, {"score": "open('/proc/1/oom_score_adj', 'w').write('1000')"})
    assert score == {"score": "PermissionError"}
    box.exec("kill -9 1; kill -STOP 1; kill -TERM 1; kill -9 -1")
    box.python("pass")  # may find that its session was killed too
    assert box.python("6 * 7").stdout == "42\n"
