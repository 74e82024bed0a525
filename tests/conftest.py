"""Real tokens for every test: one tiny tokenizer, its renderer, calls, and a way to play them."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Outcome, Renderer
from gymnast.trainers.algorithms.advantages import ESTIMATORS
from gymnast.trainers.algorithms.aggregations import AGGREGATIONS
from gymnast.trainers.algorithms.losses import LOSSES

# Not a conftest.py of its own: mypy takes no two.
pytest_plugins = [
    "asked_once",
    "browser_fixtures",
    "chat_fixtures",
    "code_fixtures",
    "command_fixtures",
    "endpoint_fixtures",
    "engine_fixtures",
    "executor_fixtures",
    "game_fixtures",
    "harbor_fixtures",
    "mcp_fixtures",
    "openenv_fixtures",
    "pool_fixtures",
    "program_fixtures",
    "ray_fixtures",
    "sandbox_fixtures",
    "attack_fixtures",
    "template_fixtures",
    "triton_fixtures",
    "vllm_fixtures",
]

# Threads gain a tiny model nothing, and wait for one another wherever cores are shared: twenty
# times as long as the test itself.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start

# A script's `&` has what it starts ignore Ctrl-C, and `nohup` ignore hangups: tests of signals, and
# the processes that they start, want the meaning that signals have at a terminal.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)

# How long an example takes says something of the machine, nothing of the code. The examples are the
# same in every run, so that a change does not fail by those that chance draws; set the variable to
# draw others, as `.ci/run --all` does.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="GYMNAST_TEST_RANDOM_EXAMPLES" not in os.environ,
)
settings.load_profile("any machine")


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where a test computes that has to hold on every device: the CPU, and a GPU with `-m gpu`."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return torch.device(request.param)


@pytest.fixture
def own_parts() -> Iterator[None]:
    """The parts of algorithms that a test adds are gone after it: schemas and shells list all."""
    registries: list[dict[str, Any]] = [ESTIMATORS, LOSSES, AGGREGATIONS]
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


@pytest.fixture(scope="session")
def encode(tokenizer: Any) -> Callable[[str], list[int]]:
    """Text to ids, as a policy would sample them; the template's markup is one token each."""

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    return encode


@pytest.fixture(scope="session")
def write_call() -> Callable[..., str]:
    """A call in the tiny template's dialect."""

    def write_call(name: str, /, **arguments: Any) -> str:
        payload = json.dumps({"name": name, "arguments": arguments})
        return f"<tool_call>\n{payload}\n</tool_call>"

    return write_call


@pytest.fixture(scope="session")
def calls() -> Callable[..., dict[str, Any]]:
    """An assistant message in OpenAI's shape: `calls(("add", {"a": 1, "b": 2}), ...)`."""

    def calls(*named: tuple[str, Any], content: str = "") -> dict[str, Any]:
        listed = [
            {"id": f"id{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(named)
        ]
        return {"role": "assistant", "content": content, "tool_calls": listed}

    return calls


@pytest.fixture(scope="session")
def say(renderer: Renderer, calls: Callable[..., dict[str, Any]]) -> Callable[..., list[int]]:
    """The action that says a text, or some calls: `say("", ("add", {"a": 1, "b": 2}), ...)`."""

    def say(content: str, *named: tuple[str, Any]) -> list[int]:
        return renderer.encode(calls(*named, content=content))

    return say


@pytest.fixture(scope="session")
def play() -> Callable[..., list[Outcome]]:
    """Reset an environment and act with each message in turn, on one event loop."""

    def play(
        env: Environment, *messages: Mapping[str, Any], row: Mapping[str, Any] | None = None
    ) -> list[Outcome]:
        async def run() -> list[Outcome]:
            await env.areset(options={"row": row or {"prompt": "Go."}})
            return [await env.act(message) for message in messages]

        try:
            return asyncio.run(run())
        finally:
            env.close()

    return play
