"""Whole weights on a real server: what it samples has the probabilities of the trained model."""

import asyncio
import json
import os
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from full_disk import no_file_larger_than
from gymnast.agents import PolicyWeights, VLLMAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import ConfigError, DiskFull, UsageError
from gymnast.types import Completion, Sampling, VersionSpan
from vllm_fixtures import Serve, under_way

pytestmark = [pytest.mark.vllm]
CONTEXT = list(range(5, 205))  # several blocks of the server's cache


def other_model(seed: int) -> Any:
    """All weights are others than at the start, the embedding among them, which is the head."""
    model = tiny_model().to(torch.bfloat16)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + torch.randn_like(weight))
    return model


@pytest.fixture
def agent(vllm_url: str) -> Iterator[VLLMAgent]:
    agent = VLLMAgent([vllm_url])
    yield agent
    agent.close()


def ask(url: str, method: str = "GET", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(url, data, headers, method=method), timeout=60
    ) as answer:
        return json.loads(answer.read() or "null")


def sample(agent: VLLMAgent, tokens: int = 12) -> Completion:
    return asyncio.run(agent.generate(CONTEXT, Sampling(seed=1, max_new_tokens=tokens)))


def difference(model: Any, ids: Sequence[int], logprobs: Sequence[float]) -> float:
    """Of log-probabilities from the model's, in nats, on average."""
    with torch.no_grad():
        logits = model(torch.tensor([[*CONTEXT, *ids]])).logits[0, len(CONTEXT) - 1 : -1]
    ours = logits.float().log_softmax(-1)[range(len(ids)), list(ids)]
    return float((ours - torch.tensor(logprobs)).abs().mean())


def test_new_weights_reach_every_layer_and_nothing_old_is_reused(agent: VLLMAgent) -> None:
    for version in (1, 2):
        model = other_model(version)
        agent.update_weights(PolicyWeights(model), version)
        for _ in range(2):  # the second finds its context in the cache
            found = sample(agent)
            assert difference(model, found.ids, found.logprobs) < 0.02
            assert found.versions == [VersionSpan(0, 12, version)]


def test_the_same_version_may_be_handed_over_again(agent: VLLMAgent) -> None:
    for seed in (3, 4):
        model = other_model(seed)
        agent.update_weights(PolicyWeights(model), 7)
        found = sample(agent)
        assert difference(model, found.ids, found.logprobs) < 0.02


def test_a_request_under_way_says_which_weights_sampled_which_tokens(
    agent: VLLMAgent, vllm_url: str
) -> None:
    """A server on a CPU ends it with the old ones before it takes the new ones."""
    old, new = other_model(1), other_model(2)
    agent.update_weights(PolicyWeights(old), 1)

    async def update_amid() -> Completion:
        sampling = Sampling(seed=1, max_new_tokens=800)
        before = await under_way(vllm_url, agent, CONTEXT, sampling)
        await asyncio.to_thread(agent.update_weights, PolicyWeights(new), 2)
        return await before

    found = asyncio.run(update_amid())
    assert found.versions == [VersionSpan(0, 800, 1)]
    assert agent.kept_across_weights == 0
    assert difference(old, found.ids, found.logprobs) < 0.03
    again = sample(agent)
    assert again.versions == [VersionSpan(0, 12, 2)]
    assert difference(new, again.ids, again.logprobs) < 0.02


def test_weights_that_cannot_be_written_leave_the_server_as_it_was(
    agent: VLLMAgent, vllm_url: str
) -> None:
    model = other_model(1)
    agent.update_weights(PolicyWeights(model), 1)
    with (
        pytest.raises(DiskFull, match="The servers keep the weights they have"),
        no_file_larger_than(100_000),
    ):
        agent.update_weights(PolicyWeights(other_model(2)), 2)
    assert ask(f"{vllm_url}/is_paused") == {"is_paused": False}
    assert ask(f"{vllm_url}/weight_info")["weight_version"].endswith(":1")
    agent.update_weights(PolicyWeights(other_model(3)), 2)
    found = sample(agent)
    assert difference(other_model(3), found.ids, found.logprobs) < 0.02


def test_a_server_that_fails_amid_a_load_is_neither_paused_nor_sampled_from(
    vllm_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(model: Any, folder: Path) -> None:
        file = folder / "model.safetensors"
        os.truncate(file, file.stat().st_size // 2)

    agent = VLLMAgent([vllm_url], weights_folder=str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr("gymnast.agents.vllm.weights.handover.save_head", cut)
        with pytest.raises(ConfigError, match=rf"{vllm_url}: cannot load {tmp_path}.*; set agent"):
            agent.update_weights(PolicyWeights(other_model(1)), 1)
    assert ask(f"{vllm_url}/is_paused") == {"is_paused": False}
    assert ask(f"{vllm_url}/weight_info") == {"weight_version": "unknown"}
    agent.update_weights(PolicyWeights(other_model(2)), 2)
    found = sample(agent)
    assert difference(other_model(2), found.ids, found.logprobs) < 0.02
    agent.close()
    assert not list(tmp_path.iterdir())


def test_weights_that_do_not_arrive_are_found_out(
    agent: VLLMAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_another(model: Any, folder: Path) -> None:
        other_model(5).save_pretrained(folder)

    monkeypatch.setattr("gymnast.agents.vllm.weights.handover.save_merged", save_another)
    with pytest.raises(ConfigError, match=r"samples with other weights .* nats on average"):
        agent.update_weights(PolicyWeights(other_model(6)), 1)


def test_a_server_of_another_dtype_is_refused_at_the_first_hand_over(agent: VLLMAgent) -> None:
    with pytest.raises(ConfigError, match="weights of bfloat16, and the trained model is in float"):
        agent.update_weights(PolicyWeights(tiny_model()), 0)


def test_weights_of_another_shape_are_refused(serve: Serve) -> None:
    """A server on a CPU ends of them, so this one is the test's own."""
    agent = VLLMAgent(serve().urls)
    with pytest.raises((UsageError, RuntimeError)):
        agent.update_weights(PolicyWeights(tiny_model(vocab_size=99).to(torch.bfloat16)), 1)
    agent.close()


def test_another_process_follows(agent: VLLMAgent, vllm_url: str) -> None:
    follower = VLLMAgent([vllm_url])
    for version in (1, 2):
        sent = agent.send_weights(PolicyWeights(other_model(version)), version)
        for index, each in enumerate((agent, follower)):
            each.update_weights(PolicyWeights(other_model(version), index, sent), version)
        assert sample(follower) == sample(agent)
        assert sample(follower).versions == [VersionSpan(0, 12, version)]
    follower.close()
