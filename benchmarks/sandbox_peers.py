"""Other ways of running a piece of Python out of this process, timed beside the sandboxes.

Each is a context manager that gives a function: run `print(1 + 1)` once, and check what it printed.
Those on Docker take the same image and, where they let one, no network.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from gymnast.sandboxes.docker.engine import engine_client

CODE = "print(1 + 1)"
SAID = "2"

Once = Callable[[], None]


class WrongOutput(AssertionError):
    """What ran did not print what it must."""


def check(said: str) -> None:
    """Raise unless the code's output is this."""
    if said.strip() != SAID:
        raise WrongOutput(f"{CODE} printed {said!r}")


@contextmanager
def subprocesses(image: str | None) -> Iterator[Once]:
    """A fresh interpreter on the host: no isolation."""

    def once() -> None:
        argv = [sys.executable, "-c", CODE]
        check(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    yield once


@contextmanager
def docker_client() -> Iterator[Any]:
    """The SDK's own client, where an engine answers; the SDK leaves a socket open where none does.

    Raises:
        SandboxUnavailable: No engine answers.
    """
    import docker

    engine_client().ping()
    with closing(docker.from_env()) as client:
        yield client


@contextmanager
def docker_exec(image: str) -> Iterator[Once]:
    """The SDK's `exec_run` of an interpreter in a container that runs."""
    with docker_client() as client:
        container = client.containers.run(
            image, ["sleep", "3600"], entrypoint=[], network_mode="none", init=True, detach=True
        )

        def once() -> None:
            check(container.exec_run(["python3", "-c", CODE]).output.decode())

        try:
            yield once
        finally:
            container.remove(force=True)


@contextmanager
def container_per_call(image: str) -> Iterator[Once]:
    """A fresh container for each call: create, start, wait, read, remove."""
    with docker_client() as client:

        def once() -> None:
            said = client.containers.run(
                image, ["python3", "-c", CODE], entrypoint=[], network_mode="none", remove=True
            )
            check(said.decode())

        yield once


@contextmanager
def llm_sandbox(image: str) -> Iterator[Once]:
    """`llm-sandbox` from PyPI: one session on Docker, a call of `run` for each."""
    from llm_sandbox import SandboxSession

    with docker_client() as client:
        session: Any = SandboxSession(
            client=client,
            image=image,
            lang="python",
            skip_environment_setup=True,
            keep_template=True,
            runtime_configs={"network_mode": "none", "command": ["sleep", "3600"], "init": True},
        )

        def once() -> None:
            check(session.run(CODE).stdout)

        with session:
            yield once


PEERS = {
    "subprocess": subprocesses,
    "docker exec": docker_exec,
    "container a call": container_per_call,
    "llm-sandbox": llm_sandbox,
}
