"""What a spec can open, on every backend: an endpoint, a network, a writable root, a user."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from endpoint_fixtures import Echo
from gymnast.errors import SandboxUnavailable, UsageError
from gymnast.sandboxes import Sandbox
from sandbox_fixtures import OpenBox, without_namespaces

TALK = """
import socket, threading
def talk(data, port=PORT):
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        sending = threading.Thread(target=connection.sendall, args=[data])
        sending.start()
        received = bytearray()
        while len(received) < len(data):
            piece = connection.recv(1 << 16)
            if not piece: break
            received += piece
        sending.join()
        connection.shutdown(socket.SHUT_WR)
        return bytes(received) == data and connection.recv(1) == b""
"""


def test_code_reaches_the_endpoint_at_its_own_address(open_box: OpenBox, echo: Echo) -> None:
    box = open_box(network="endpoint", endpoint=echo.address)
    box.python(TALK.replace("PORT", str(echo.port)))
    assert box.python("talk(b'hello'), talk(b'')").stdout == "(True, True)\n"
    assert box.python("talk(b'0123456789' * 300_000)").stdout == "True\n"
    together = """
answers = []
threads = [threading.Thread(target=lambda: answers.append(talk(b"x" * 100_000))) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answers
"""
    assert box.python(together).stdout == f"{[True] * 8}\n"


def test_a_process_reaches_it_while_calls_are_answered(open_box: OpenBox, echo: Echo) -> None:
    box = open_box(network="endpoint", endpoint=echo.address)
    code = TALK.replace("PORT", str(echo.port)) + "input(); print(talk(b'x' * 1000))"
    with box.start(["python3", "-c", code]) as process:
        assert box.exec("echo call").stdout == "call\n"
        process.stdin.write("now\n")
        assert process.stdout.readline(timeout_s=30) == b"True\n"


def test_an_endpoint_that_is_gone_ends_the_connection(open_box: OpenBox, echo: Echo) -> None:
    box = open_box(network="endpoint", endpoint=echo.address)
    box.python(TALK.replace("PORT", str(echo.port)))
    echo.close()
    assert box.python("talk(b'hello')").stdout != "True\n"
    assert box.exec("echo call").stdout == "call\n"


def test_a_session_that_is_new_reaches_it_too(open_box: OpenBox, echo: Echo) -> None:
    box = open_box(network="endpoint", endpoint=echo.address)
    box.python("raise SystemExit")
    box.python(TALK.replace("PORT", str(echo.port)))
    assert box.python("talk(b'hello')").stdout == "True\n"


def refusal(open_box: OpenBox, **opened: Any) -> str:
    with pytest.raises(SandboxUnavailable) as refused:
        open_box(**opened)
    return str(refused.value)


def test_what_a_backend_cannot_open_it_refuses(open_box: OpenBox, backend: str) -> None:
    if backend == "docker":
        pytest.skip("it can open all of it")
    assert "user is 'root'; " in refusal(open_box, user="root")
    if backend != "local":  # whose code has the user's network and files anyway
        for opened in (
            {"network": "full"},
            {"root": "writable"},
            {"root": "image"},
            {"user": "1000"},
            {"capabilities": ("CHOWN",)},
        ):
            name, value = next(iter(opened.items()))
            said = refusal(open_box, **opened)
            assert said.startswith(f"{name} is {value!r}; a "), said
            assert said.endswith(f'use the backend "docker", or leave {name} out')


def test_landlock_without_namespaces_refuses_an_endpoint(echo: Echo) -> None:
    with pytest.raises(SandboxUnavailable, match="box without namespaces cannot have that"):
        without_namespaces(network="endpoint", endpoint=echo.address)


@pytest.fixture
def container(open_box: OpenBox, backend: str) -> Callable[..., Sandbox]:
    """Opens containers."""
    if backend != "docker":
        pytest.skip("only containers have that")
    return open_box


def test_a_writable_root_is_for_one_container(container: Callable[..., Sandbox]) -> None:
    wrote = "mkdir -p /opt/made && echo mine >/opt/new && cat /opt/new"
    box = container(root="writable", user="root")
    assert box.exec(wrote).stdout == "mine\n"
    box.write_file("/opt/file", "written")
    assert box.read_file("/opt/file") == b"written"
    assert container(root="writable", user="root").exec("ls /opt/new").exit_code == 2
    assert container(user="root").exec(wrote).exit_code != 0
    assert container(root="writable").exec(wrote).exit_code != 0


def test_a_root_of_the_image_covers_and_replaces_nothing(container: Callable[..., Sandbox]) -> None:
    box = container(root="image", disk_bytes=1 << 20, env={"OWN": "1"})
    assert box.exec('echo "$(id -u) $PWD $OWN $USER"').stdout == "0 / 1 \n"
    assert box.exec("df /tmp / | sort -u | wc -l").stdout == "2\n"  # a heading, and one file system
    script = "printf '#!/bin/sh\\necho ran\\n' >/tmp/run; chmod +x /tmp/run; /tmp/run"
    assert box.exec(script).stdout == "ran\n"
    assert box.exec("head -c 2000000 /dev/zero >/var/large").exit_code != 0
    assert box.exec("head -c 1000000 /dev/zero >/var/large").exit_code == 0
    assert box.exec("chown 9 /var").exit_code != 0


def test_capabilities_are_those_of_the_spec(container: Callable[..., Sandbox]) -> None:
    box = container(root="writable", user="root", capabilities=["CHOWN"])
    assert box.exec("chown 9 /var && stat -c %u /var").stdout == "9\n"
    assert "Error" in box.python("import os; os.setuid(9)").stderr
    with pytest.raises(UsageError, match=r"SYS_ADMIN.*CHOWN, DAC_OVERRIDE"):
        container(user="root", capabilities=["SYS_ADMIN"])


def test_a_user_is_the_one_of_the_spec(container: Callable[..., Sandbox]) -> None:
    for user, ids in {"root": "0 0", "1234": "1234 1234", "1234:55": "1234 55"}.items():
        box = container(user=user)
        assert box.exec('echo "$(id -u) $(id -g)"; echo >made; stat -c "%u %g" made').stdout == (
            f"{ids}\n{ids}\n"
        )
        assert box.python("import os; f'{os.getuid()} {os.getgid()}'").stdout == f"'{ids}'\n"


def test_a_full_network_reaches_the_machine(container: Callable[..., Sandbox]) -> None:
    box = container(network="full")
    code = "print([line.split()[2] for line in open('/proc/net/route')][1:])"
    gateways = eval(box.exec(["python3", "-c", code]).stdout)
    if not gateways:
        pytest.skip("the engine has no bridge")
    gateway = socket.inet_ntoa(bytes.fromhex(gateways[0])[::-1])
    with socket.create_server((gateway, 0)) as listener:
        port = listener.getsockname()[1]
        talk = f"import socket; socket.create_connection(({gateway!r}, {port}), 20).send(b'hello')"
        assert box.python(talk).stdout == "5\n"
        with listener.accept()[0] as connection:
            assert connection.recv(9) == b"hello"
