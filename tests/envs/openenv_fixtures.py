"""A real server of OpenEnv's for tests, and environments of what it serves.

Where GYMNAST_TEST_OPENENV_URL names such a server that runs (`openenv_server.py`), it is used.
"""

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import Environment, make

HERE = Path(__file__).parent
_START_S = 300.0  # to import what OpenEnv imports, on a busy machine


@pytest.fixture(scope="session")
def openenv_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL below which environments are served, all that `openenv_server.py` has."""
    if url := os.environ.get("GYMNAST_TEST_OPENENV_URL"):
        yield url
        return
    script = HERE / "install_openenv.sh"
    ended = subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True)
    python = ended.stdout.splitlines()[-1]
    folder = tmp_path_factory.mktemp("openenv")
    init = [f"{Path(python).parent}/openenv", "init", "echo_env", "-o", str(folder)]
    subprocess.run(init, capture_output=True, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "log").open("w") as log:
        command = [python, str(HERE / "openenv_server.py"), str(port), str(folder)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        ends = time.monotonic() + _START_S
        while not _answers(f"{url}/open"):
            assert server.poll() is None and time.monotonic() < ends, (folder / "log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    try:
        return bool(read(url))
    except OSError:
        return False


def read(url: str) -> str:
    """What is at an address of this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return str(answer.read().decode())


@pytest.fixture
def served(openenv_url: str) -> Iterator[Callable[..., Any]]:
    """Makes an environment of what is served at a path; it is closed at the end."""
    made: list[Environment] = []

    def served(path: str, *arguments: Any, **settings: Any) -> Environment:
        made.append(make(f"openenv:{openenv_url}/{path}", *arguments, **settings))
        return made[-1]

    yield served
    for env in made:
        env.close()
