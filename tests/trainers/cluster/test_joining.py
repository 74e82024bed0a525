"""Joining a Ray cluster that asks for a token; what is refused before anything is started."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.errors import ConfigError
from gymnast.trainers import RayWorkers, Trainer

TOKEN = "0123456789abcdef" * 4
JOIN = """
import sys
from gymnast.errors import ConfigError
from gymnast.trainers import RayWorkers

try:
    with RayWorkers(2, address=sys.argv[1]) as workers:
        print("joined by", len(workers.all()))
except ConfigError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """The address of a cluster that asks for a token.

    Ray reads tokens once in a process, so the cluster is none of this one.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = ["start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"]
    sizes = ["--num-cpus=2", f"--object-store-memory={100 * 2**20}", "--include-dashboard=false"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *head, *sizes, "--disable-usage-stats"],
        env=os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert any("Ray runtime started." in line for line in process.stdout)
    yield f"127.0.0.1:{port}"
    process.terminate()  # and with it what it blocks for
    process.communicate(timeout=60)


def join(address: str, folder: Path, **environment: str) -> str:
    """What a program says that joins with these variables, and with no file of a token."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    program = [sys.executable, "-c", JOIN, address]
    done = subprocess.run(
        program,
        env=inherited | {"HOME": str(folder)} | environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    return done.stdout


@pytest.mark.ray
def test_a_cluster_that_asks_for_a_token_is_joined_with_it(guarded: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    path = str(tmp_path / "token")
    said = join(guarded, tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=path)
    assert said == "joined by 2\n"


@pytest.mark.ray
@pytest.mark.parametrize(
    "environment",
    [{}, {"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}],
)
def test_without_its_token_it_is_refused(
    guarded: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    said = join(guarded, tmp_path, **environment)
    assert said.startswith(f"rollouts.address: the Ray cluster at {guarded} does not let this")
    assert "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH" in said


@pytest.mark.ray
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", "rollouts.address: nothing answers at 127.0.0.1:9"),
        ("ray://head:10001", "must be host:port of the cluster's head, got 'ray://head:10001'"),
        ("head", "must be host:port of the cluster's head, got 'head'"),
    ],
)
def test_an_address_where_no_cluster_is(address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message), RayWorkers(address=address):
        pass


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install 'gymnast-rl\[ray\]'"), RayWorkers():
        pass


def test_a_trainer_without_ray_says_so_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gymnast.agents import load_model

    monkeypatch.setitem(sys.modules, "ray", None)
    model, tokenizer = load_model("tiny:")
    given: Any = (model, tokenizer, "gymnast/Arithmetic-v0", [{"prompt": "?", "answer": 1}])
    with pytest.raises(ConfigError, match=r"rollouts.backend: ray: Ray is not installed"):
        Trainer(*given, rollouts_backend="ray")
