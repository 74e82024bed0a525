"""Servers that take turns with the trainer: real ones, whose requests are written down in order.

They run on a CPU, where a server that sleeps stops sampling and keeps its memory.
"""

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import torch

from gymnast.agents import PolicyWeights, VLLMAgent, load_model, make_agent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.vllm.weights.handover import CurrentWeights
from gymnast.agents.vllm.weights.start import write_start
from gymnast.envs import Environment
from gymnast.errors import ConfigError, UsageError
from gymnast.trainers import Trainer
from gymnast.types import Completion, Sampling, VersionSpan
from vllm_fixtures import ENVIRONMENT, OPTIONS, Recorded, recording, requests_running
from vllm_recording import BEGINS, ENDS, recorded

CONTEXT = list(range(5, 45))
GENERATE, LOAD_ADAPTERS = "/inference/v1/generate", "/v1/load_lora_adapter"
SLEEPS = {level: f"/sleep?level={level}&mode=abort" for level in (1, 2)}
WAKES = ["/wake_up?tags=weights", "/wake_up?tags=kv_cache"]
FROM_FOLDER = [
    WAKES[0],
    *("/pause?mode=wait", "/collective_rpc", "/reset_prefix_cache?reset_running_requests=true"),
    "/update_weight_version",
    WAKES[1],
    *("/resume", "/weight_info", GENERATE),  # the probe
]


def other_model(seed: int) -> Any:
    model = tiny_model()
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + torch.randn_like(weight))
    return model


def greedy(model: Any, tokens: int) -> list[int]:
    """The most likely tokens after the context, by the model's own forward pass."""
    ids = list(CONTEXT)
    with torch.no_grad():
        for _ in range(tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(CONTEXT) :]


def sample(agent: VLLMAgent, tokens: int = 6) -> Completion:
    sampling = Sampling(temperature=0.0, max_new_tokens=tokens)
    return asyncio.run(agent.generate(CONTEXT, sampling))


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def is_asleep(url: str) -> bool:
    return bool(ask(f"{url}/is_sleeping")["is_sleeping"])


def begun(record: list[tuple[str, str]]) -> list[str]:
    return [request for what, request in record if what == BEGINS]


def check_turns(record: list[tuple[str, str]]) -> None:
    """Nothing is sampled between the order to sleep and the end of waking, weights included."""
    sampling, asleep, loading = 0, False, False
    for what, request in record:
        if request == GENERATE:
            assert not (asleep or loading), record
            sampling += 1 if what == BEGINS else -1
        elif request in SLEEPS.values():
            assert sampling == 0
            asleep = True
        elif request == WAKES[1] and what == ENDS:
            asleep = False
        elif request in ("/collective_rpc", LOAD_ADAPTERS):
            loading = True
        elif request == "/update_weight_version" and what == ENDS:
            loading = False
    assert asleep


@pytest.fixture
def agent(sleeping_server: Recorded) -> Iterator[VLLMAgent]:
    agent = VLLMAgent([sleeping_server.url], share_device=True)
    yield agent
    agent.close()


@pytest.mark.vllm
def test_new_weights_wait_until_the_servers_wake(
    agent: VLLMAgent, sleeping_server: Recorded
) -> None:
    url, file = sleeping_server
    assert is_asleep(url)
    before = len(recorded(file))
    for version in (1, 2):
        agent.update_weights(PolicyWeights(other_model(version)), version)
        assert is_asleep(url)
    assert set(begun(recorded(file)[before:])) == {
        "/server_info?config_format=json",
        "/is_sleeping",
    }
    before = len(recorded(file))
    with agent.awake():
        found = sample(agent)
        assert found.ids == greedy(other_model(2), 6) != greedy(other_model(1), 6)
        assert [span.version for span in found.versions] == [2]
    record = recorded(file)[before:]
    check_turns(record)
    # The folder has the weights, so that the server need not keep them.
    after = [GENERATE, "/update_weight_version", SLEEPS[2]]
    assert begun(record) == [*FROM_FOLDER, *after]
    before = len(recorded(file))
    with agent.awake():  # again without new ones, as an evaluation does
        assert sample(agent).ids == found.ids
    assert begun(recorded(file)[before:]) == ["/weight_info", *FROM_FOLDER, *after]
    metrics = agent.metrics()
    assert metrics["servers/sleep_s"] > 0 < metrics["servers/wake_s"]


@pytest.mark.vllm
def test_a_request_under_way_is_sampled_anew_at_the_next_turn(
    agent: VLLMAgent, sleeping_server: Recorded
) -> None:
    tokens = 2000
    with ThreadPoolExecutor(1) as thread:
        for first in range(1, 40, 2):  # versions; again where the server answers before it sleeps
            agent.update_weights(PolicyWeights(other_model(1)), first)
            with agent.awake():
                asked = thread.submit(sample, agent, tokens)
                while not (asked.done() or requests_running(sleeping_server.url)):
                    time.sleep(0.01)
            if not asked.done():
                break
        assert not asked.done()
        agent.update_weights(PolicyWeights(other_model(2)), first + 1)
        with agent.awake():
            found = asked.result()
    assert list(found.versions) == [VersionSpan(0, tokens, first + 1)]


@pytest.mark.vllm
def test_asleep_they_are_asked_for_nothing(agent: VLLMAgent) -> None:
    with pytest.raises(UsageError, match="generate: the vLLM servers sleep outside of `awake`"):
        sample(agent)


@pytest.mark.vllm
def test_closing_leaves_servers_awake_with_their_weights(sleeping_server: Recorded) -> None:
    agent = VLLMAgent([sleeping_server.url], share_device=True)
    agent.update_weights(PolicyWeights(other_model(3)), 3)
    with agent.awake():
        sample(agent)
    agent.close()
    assert not is_asleep(sleeping_server.url)
    assert ask(f"{sleeping_server.url}/weight_info")["weight_version"].endswith(":3")


@pytest.mark.vllm
@pytest.mark.slow
def test_a_server_that_was_restarted_sleeps_until_its_turn(
    agent: VLLMAgent, sleeping_server: Recorded
) -> None:
    url, file = sleeping_server
    agent.update_weights(PolicyWeights(other_model(1)), 1)
    with agent.awake():
        sample(agent)
    before = len(recorded(file))
    port = int(url.rpartition(":")[2])
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(port) in words and not any(word.endswith("keeper.py") for word in words):
            process.kill()
    until = time.monotonic() + 400
    while SLEEPS[2] not in begun(recorded(file)[before:]):
        assert time.monotonic() < until
        time.sleep(0.5)
    assert is_asleep(url)
    with agent.awake():
        assert sample(agent).ids == greedy(other_model(1), 6)
    check_turns(recorded(file)[before:])


@pytest.mark.vllm
def test_episodes_are_not_played_beside_training(agent: VLLMAgent, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="it sleeps meanwhile"):
        Trainer(tiny_model(), tokenizer, Plain, ROWS, agent=agent, max_staleness=1)


@pytest.mark.vllm
def test_a_server_that_cannot_sleep_is_refused(vllm_url: str) -> None:
    said = "share_device: .* cannot give its memory back; start it with --enable-sleep-mode"
    with pytest.raises(ConfigError, match=said):
        VLLMAgent([vllm_url], share_device=True)


@pytest.mark.vllm
def test_a_vllm_for_cpus_is_not_started_to_sleep(vllm_command: str, tokenizer: Any) -> None:
    launch = {"command": [vllm_command], "options": OPTIONS, "environment": ENVIRONMENT}
    said = r"agent.share_device: is true, and this vLLM does not start with --enable-sleep-mode: "
    with pytest.raises(ConfigError, match=f"{said}.*Leave share_device out") as raised:
        make_agent(tiny_model(), tokenizer, backend="vllm", launch=launch, share_device=True)
    assert "Sleep mode is not supported on current platform" in str(raised.value)


@pytest.mark.parametrize("take", ["servers", "agent"])
def test_nccl_is_refused(take: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent.weights: nccl does not join two processes on"):
        if take == "servers":
            write_start(tiny_model(), tmp_path / "model", way="nccl", shares_device=True)
        else:
            CurrentWeights(way="nccl", shares_device=True)


class Plain(Environment):
    """Nothing to do but answer."""

    def reward(self, episode: Any) -> float:
        return float(len(episode.answer) % 2)


ROWS = [{"prompt": f"Count to {number}."} for number in range(3)]


class Looks:
    """Whether the server sleeps when a step has been learned from."""

    url = ""

    def __init__(self) -> None:
        self.asleep: list[bool] = []
        self.metrics: list[Any] = []

    def on_step(self, step: int, metrics: Any, rollouts: Any) -> None:
        self.asleep.append(is_asleep(self.url))
        self.metrics.append(metrics)


@pytest.fixture
def command(vllm_command: str, tmp_path: Path) -> Path:
    """The vLLM for CPUs, which is not told the option that it refuses."""
    script = tmp_path / "vllm"
    script.write_text(
        "#!/bin/sh\nfor word do\n    shift\n"
        '    [ "$word" = --enable-sleep-mode ] || set -- "$@" "$word"\ndone\n'
        f'exec {vllm_command} "$@"\n'
    )
    script.chmod(0o755)
    return script


@pytest.mark.vllm
def test_a_run_takes_turns_with_its_server(command: Path, tmp_path: Path, tokenizer: Any) -> None:
    file, looks = tmp_path / "requests", Looks()
    options, environment = recording(file)
    model, _ = load_model("tiny:", dtype="bfloat16", lora={"rank": 4}, tokenizer=tokenizer)
    trainer = Trainer(
        *(model, tokenizer, Plain, ROWS),
        agent={
            "backend": "vllm",
            "launch": {
                "command": [str(command)],
                "options": [*OPTIONS, *options],
                "environment": ENVIRONMENT | environment,
            },
            "share_device": True,
        },
        sampling=Sampling(max_new_tokens=16),
        group_size=2,
        rows_per_step=3,
        steps=2,
        learning_rate=1e-2,
        eval_rows=ROWS[:2],
        eval_every_steps=1,
        observer=cast(Any, looks),
    )
    agent = cast(VLLMAgent, trainer.agent)
    looks.url = agent.urls[0]
    trainer.train()
    assert looks.asleep == [True, True]
    assert all(each["servers/sleep_s"] > 0 < each["servers/wake_s"] for each in looks.metrics)
    record = recorded(file)
    check_turns(record)
    # The base stays with the server: three evaluations have new adapters, two steps those before.
    turns = [request for request in begun(record) if request in (*SLEEPS.values(), LOAD_ADAPTERS)]
    new, same = [LOAD_ADAPTERS, SLEEPS[1]], [SLEEPS[1]]
    assert turns == [*same, *new, *same, *new, *same, *new]
    agent.close()
