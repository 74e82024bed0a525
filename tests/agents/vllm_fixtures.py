"""Real vLLM servers for the tests marked `vllm`, of the tiny model, on this machine's CPU.

`vllm_url` is one server that all tests share: each agent names the weights that it hands over by a
run of its own, so tests do not see each other. Tests that break servers start theirs by `serve`.
Where GYMNAST_TEST_VLLM_URL names such a server that runs, it is used, which spares its start; so is
GYMNAST_TEST_VLLM_FLOAT32_URL for that in float32. `sleeping_server` takes turns with a trainer.
"""

import asyncio
import os
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from gymnast.agents import VLLMAgent
from gymnast.agents.backends import agent_for
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.agents.vllm.launch import Launch, Launched
from gymnast.agents.vllm.weights.start import write_start
from gymnast.types import Completion, Sampling
from model_families import tiny
from triton_interpreter import interpreted

Serve = Callable[..., Launched]
# A CPU's random generator has no offset, which vLLM 0.32 sets back where it splits the prompt of a
# request with a seed, or computes a request anew without `chunked prefill`: the engine dies. So
# prompts may be split, and have room not to be.
WHOLE_PROMPTS = ("--max-num-batched-tokens", "8192")
OPTIONS = ("--max-model-len", "1024", "--enforce-eager", *WHOLE_PROMPTS)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every server computes on the first core
    "HF_HUB_OFFLINE": "1",
    "VLLM_API_KEY": "",  # none, so that a test need not know it
}


@pytest.fixture(scope="session")
def vllm_command() -> str:
    """The path of a vLLM, which is installed where there is none yet."""
    script = Path(__file__).parent / "install_vllm.sh"
    ended = subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True)
    return ended.stdout.splitlines()[-1]


@contextmanager
def servers_of(vllm_command: str) -> Iterator[Serve]:
    """Starts servers of a model, the tiny one by default, and ends them."""
    started: list[Launched] = []

    def serve(
        model: Any = None,
        tokenizer: Any = None,
        *,
        servers: int = 1,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Launched:
        launch = Launch(
            command=[vllm_command],
            servers=servers,
            options=[*OPTIONS, *options],
            environment=ENVIRONMENT | dict(environment or {}),
        )
        started.append(
            Launched(
                launch,
                tiny_model().to(torch.bfloat16) if model is None else model,
                tokenizer or tiny_tokenizer(),
                "policy",
                write=write_start,
            )
        )
        return started[-1]

    try:
        yield serve
    finally:
        for each in started:
            each.end()


@pytest.fixture(scope="module")
def serve(vllm_command: str) -> Iterator[Serve]:
    """Starts servers that end with the module: each takes almost 3 GB."""
    with servers_of(vllm_command) as serve:
        yield serve


@pytest.fixture(scope="session")
def serve_all(vllm_command: str) -> Iterator[Serve]:
    """Starts servers that modules share; they end with the session."""
    with servers_of(vllm_command) as serve:
        yield serve


def requests_running(url: str) -> int:
    """How many requests a server computes for now."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    running = [line for line in lines if line.startswith("vllm:num_requests_running")]
    return int(float(running[0].rpartition(" ")[2]))


async def under_way(
    url: str, agent: VLLMAgent, context: list[int], sampling: Sampling
) -> asyncio.Task[Completion]:
    """A request that a server computes for now; where one is over before that is seen, another."""
    for _ in range(20):
        task = asyncio.create_task(agent.generate(context, sampling))
        while not task.done():
            if await asyncio.to_thread(requests_running, url) and not task.done():
                return task
    raise AssertionError(f"{url} answers before it says that it computes")


def computed_tokens(url: str) -> int:
    """How many tokens a server has read and sampled."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    counts = re.findall(
        r"^vllm:(?:prompt|generation)_tokens_total\{.*\} (\S+)$", text, re.MULTILINE
    )
    return int(sum(map(float, counts)))


@pytest.fixture(scope="session")
def vllm_float32_url(serve_all: Serve) -> str:
    """One server of the tiny model in float32, in which greedy tokens are equal to the last."""
    if url := os.environ.get("GYMNAST_TEST_VLLM_FLOAT32_URL"):
        return url
    (url,) = serve_all(tiny_model(), options=["--max-model-len", "2048"]).urls
    return url


class Recorded(NamedTuple):
    """A server that writes its requests down; see `vllm_recording.py`."""

    url: str
    file: Path


def recording(file: Path) -> tuple[list[str], dict[str, str]]:
    """Options and environment of such a server."""
    return ["--middleware", "vllm_recording.Recording"], {
        "PYTHONPATH": str(Path(__file__).parent),
        "RECORD": str(file),
    }


@pytest.fixture(scope="session")
def sleeping_server(serve_all: Serve, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """One server of the tiny model in float32, which says that it can sleep."""
    file = tmp_path_factory.mktemp("record") / "requests"
    options, environment = recording(file)
    options += ["--max-model-len", "2048"]
    (url,) = serve_all(tiny_model(), options=options, environment=environment).urls
    return Recorded(url, file)


def mixture() -> Any:
    """In float32, with experts in all layers but the second."""
    return tiny(
        "qwen3_moe",
        vocab_size=1030,
        head_dim=32,
        num_experts=8,
        num_local_experts=8,
        mlp_only_layers=[1],
        sliding_window=None,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    )


@pytest.fixture(scope="module")
def vllm_experts(
    vllm_command: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VLLMAgent]:
    """An agent that started a server of `mixture`, and says which experts were chosen."""
    launch = {
        "command": [vllm_command],
        "options": OPTIONS,
        "environment": ENVIRONMENT | interpreted(tmp_path_factory.mktemp("triton")),
    }
    settings = {"backend": "vllm", "launch": launch}
    agent = agent_for(mixture(), tiny_tokenizer(), settings, 8, None, keep_experts=True)
    assert isinstance(agent, VLLMAgent)
    yield agent
    agent.close()


@pytest.fixture(scope="session")
def vllm_url(serve_all: Serve) -> str:
    """One server of the tiny model in bfloat16, under the name "policy"."""
    if url := os.environ.get("GYMNAST_TEST_VLLM_URL"):
        return url
    (url,) = serve_all().urls
    return url
