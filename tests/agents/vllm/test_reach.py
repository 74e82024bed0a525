"""Who may reach a server: one that is started, and one behind the proxy of docs/vllm_servers.md."""

import asyncio
import http.client
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from gymnast.agents import PolicyWeights, VLLMAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Sampling, VersionSpan

pytestmark = [pytest.mark.vllm]
PAGE = Path(__file__).parents[3] / "docs/vllm_servers.md"
MAIN = """
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {config}
}}
"""
TRAINER, WORKER, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3"


@pytest.fixture(scope="module")
def proxy(vllm_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the proxy; addresses of this machine stand for those of the page."""
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/bin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    folder = tmp_path_factory.mktemp("nginx")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    (config,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for old, new in {
        "10.0.0.5:8080": f"127.0.0.1:{port}",
        "127.0.0.1:8000": vllm_url.removeprefix("http://"),
        "10.0.0.0/24": f"{WORKER}/32; allow {TRAINER}",
        "10.0.0.2": TRAINER,
    }.items():
        assert old in config
        config = config.replace(old, new)
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, config=config))
    process = subprocess.Popen([nginx, "-e", "stderr", "-c", folder / "nginx.conf"])
    until = time.monotonic() + 20
    while not listens(port):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    yield port
    process.terminate()
    process.wait()


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def status(port: int, client: str, method: str, path: str, body: str | None = None) -> int:
    """The status that a client at an address of this machine gets."""
    connection = http.client.HTTPConnection("127.0.0.1", port, source_address=(client, 0))
    connection.request(method, path, body, {"Content-Type": "application/json"})
    found = connection.getresponse().status
    connection.close()
    return found


GENERATE = '{"token_ids": [5, 6], "sampling_params": {"max_tokens": 1}, "model": "policy"}'
CONTROL = [
    ("POST", "/collective_rpc"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/update_weights"),
    ("POST", "/update_weight_version"),
    ("POST", "/sleep"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/v1/load_lora_adapter"),
    ("GET", "/server_info"),
    ("GET", "/inference/v1/generate/../../../server_info"),
    ("GET", "/health/../server_info"),
    ("POST", "//pause"),
    ("POST", "/%70ause"),
]


def test_who_plays_episodes_may_sample_and_nothing_else(proxy: int) -> None:
    assert status(proxy, WORKER, "POST", "/inference/v1/generate", GENERATE) == 200
    assert status(proxy, WORKER, "GET", "/health") == 200
    assert status(proxy, WORKER, "GET", "/v1/models") == 200
    refused = {path: status(proxy, WORKER, method, path, "{}") for method, path in CONTROL}
    assert set(refused.values()) == {403}, refused


def test_a_stranger_may_nothing(proxy: int) -> None:
    assert status(proxy, STRANGER, "POST", "/inference/v1/generate", GENERATE) == 403
    refused = {path: status(proxy, STRANGER, method, path, "{}") for method, path in CONTROL}
    assert set(refused.values()) == {403}, refused


def test_the_trainer_hands_weights_over_through_the_proxy(proxy: int) -> None:
    agent = VLLMAgent([f"http://127.0.0.1:{proxy}"])
    agent.update_weights(PolicyWeights(tiny_model().to(torch.bfloat16)), 4)
    found = asyncio.run(agent.generate([5, 6, 7], Sampling(max_new_tokens=3)))
    assert found.versions == [VersionSpan(0, 3, 4)]
    agent.close()


def test_a_server_that_is_started_listens_on_this_machine_alone(vllm_url: str) -> None:
    port = int(vllm_url.rpartition(":")[2])
    listening = [each for each in psutil.net_connections("inet") if each.status == "LISTEN"]
    (server,) = {each.pid for each in listening if each.laddr.port == port}
    assert server is not None
    process = psutil.Process(server)
    pids = {server, *(child.pid for child in process.children(recursive=True))}
    hosts = {each.laddr.ip for each in listening if each.pid in pids}
    assert len(pids) > 1
    assert hosts == {"127.0.0.1"}
