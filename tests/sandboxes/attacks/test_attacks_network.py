"""Attacks over the network and local sockets, each against a listener that answers on the host."""

import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_fixtures import (
    SYSCALL,
    addresses_of_a_server_in,
    on_every_isolating_backend,
    tries,
)
from gymnast.sandboxes.worker.sandbox import WorkerSandbox

pytestmark = on_every_isolating_backend


def addresses() -> list[str]:
    """Those of this machine."""
    shown = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    return ["127.0.0.1", *(address for address in shown if ":" not in address)]


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    """Listens on every address; nobody may be there afterwards."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        for address in addresses():
            socket.create_connection((address, listener.getsockname()[1]), 5).close()
            listener.accept()[0].close()  # it can be reached from the host
        yield listener
        listener.settimeout(0.3)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_tcp(victim: WorkerSandbox, tcp: socket.socket) -> None:
    """TCP to the host's own addresses"""
    port = tcp.getsockname()[1]
    connect = "__import__('socket').create_connection(({!r}, {}), 2)"
    targets = [*addresses(), "localhost", socket.gethostname(), "1.1.1.1", "169.254.169.254"]
    outcome = tries(victim, {target: connect.format(target, port) for target in targets})
    assert all("Error" in found or found == "gaierror" for found in outcome.values()), outcome


def test_tcp_with_data_first(victim: WorkerSandbox, tcp: socket.socket) -> None:
    """TCP fast open, which connects without connect()"""
    port = tcp.getsockname()[1]
    code = f"""
import socket
for address in {addresses()!r}:
    for flags in (0x20000000, 0x20000000 | socket.MSG_DONTWAIT):
        try:
            socket.socket().sendto(b"x", flags, (address, {port}))
        except OSError:
            pass
"""
    tried = victim.python(code)
    assert tried.verdict == "ok", tried


def test_ipv6(victim: WorkerSandbox) -> None:
    """TCP over IPv6"""
    with socket.create_server(("::", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("::1", port), 5).close()
        listener.accept()[0].close()
        connect = f"__import__('socket').create_connection(('::1', {port}), 2)"
        assert "Error" in tries(victim, {"::1": connect})["::1"]
        listener.settimeout(0.3)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_udp(victim: WorkerSandbox) -> None:
    """UDP to the host's own addresses"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("0.0.0.0", 0))
        port = listener.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for address in addresses():
                sender.sendto(b"here", (address, port))
                assert listener.recv(9) == b"here"
        code = f"""
import socket
for address in {[*addresses(), "255.255.255.255", "224.0.0.1"]!r}:
    try:
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.sendto(b"x", (address, {port}))
    except OSError:
        pass
"""
        victim.python(code)
        listener.settimeout(0.3)
        with pytest.raises(TimeoutError):
            listener.recv(9)


def test_names(victim: WorkerSandbox) -> None:
    """DNS"""
    names = ("example.com", "_secret.example.com", "host.docker.internal")
    look = "__import__('socket').getaddrinfo({!r}, 80)"
    outcome = tries(victim, {name: look.format(name) for name in names})
    assert set(outcome.values()) == {"gaierror"}


def test_loopback(victim: WorkerSandbox) -> None:
    """TCP and UDP over the box's own loopback, whose buffers no limit of memory counts"""
    families = [socket.AF_INET, socket.AF_INET6]
    kinds = [socket.SOCK_STREAM, socket.SOCK_DGRAM]
    make = "__import__('socket').socket({}, {})"
    wanted = {f"{family} {kind}": (family, kind) for family in families for kind in kinds}
    outcome = tries(victim, {name: make.format(*map(int, of)) for name, of in wanted.items()})
    assert set(outcome.values()) == {"PermissionError"}


def test_sockets_of_other_kinds(victim: WorkerSandbox) -> None:
    """Sockets of other families: vsock, netlink, packet, Bluetooth, crypto, raw IP"""
    code = (
        SYSCALL
        + """
import json
wanted = {"vsock": (40, 1, 0), "netlink": (16, 3, 0), "netlink audit": (16, 3, 9),
          "packet": (17, 3, 0), "bluetooth": (31, 3, 0), "alg": (38, 5, 0), "raw": (2, 3, 1),
          "raw 6": (10, 3, 58), "xdp": (44, 3, 0), "smc": (43, 1, 0), "tipc": (30, 5, 0),
          "rds": (21, 5, 0), "qipcrtr": (42, 2, 0), "key": (15, 3, 2)}
print(json.dumps({name: call(41, *kind)[0] for name, kind in wanted.items()}))
"""
    )
    opened = json.loads(victim.python(code).stdout)
    assert set(opened.values()) == {-1}, opened


def test_abstract_sockets(victim: WorkerSandbox) -> None:
    """A local socket of the host in the abstract namespace"""
    name = "\0gymnast-" + secrets.token_hex(8)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as listener:
            listener.bind(name)
            if kind == socket.SOCK_STREAM:
                listener.listen()
            with socket.socket(socket.AF_UNIX, kind) as here:
                here.connect(name)
            connect = f"__import__('socket').socket(1, {int(kind)}).connect({name!r})"
            refused = tries(victim, {"connect": connect})["connect"]
            assert refused in ("PermissionError", "ConnectionRefusedError")


def test_sockets_in_the_file_system(victim: WorkerSandbox, tmp_path: Path) -> None:
    """A local socket of the host by its path, Docker's and D-Bus' among them"""
    path = f"/var/tmp/gymnast-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        try:
            os.chmod(path, 0o777)
            listener.listen()
            with socket.socket(socket.AF_UNIX) as here:
                here.connect(path)
            targets = [path, "/var/run/docker.sock", "/run/docker.sock",
                       "/run/dbus/system_bus_socket", "/run/containerd/containerd.sock",
                       f"/run/user/{os.getuid()}/bus", "/run/systemd/private"]  # fmt: skip
            connect = "__import__('socket').socket(1).connect({!r})"
            outcome = tries(victim, {target: connect.format(target) for target in targets})
        finally:
            os.unlink(path)
    assert all("Error" in found for found in outcome.values()), outcome


def test_listening(victim: WorkerSandbox) -> None:
    """A server in the box that the host's addresses lead to"""
    assert not addresses_of_a_server_in(victim, addresses())
