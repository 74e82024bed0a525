"""LoRA adapters on a real server, which keeps the base that it was started with."""

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from gymnast.agents import PolicyWeights, VLLMAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import ConfigError
from gymnast.types import Completion, Sampling, VersionSpan
from vllm_fixtures import Serve, under_way

pytestmark = [pytest.mark.vllm]
CONTEXT = list(range(5, 205))


def base_model(seed: int) -> Any:
    """The model that the server was started with, or another one where the seed is not 0."""
    model = tiny_model().to(torch.bfloat16)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters() if seed else ():
            weight.mul_(1 + torch.randn_like(weight))
    return model


def adapted(seed: int, base: int = 0, **settings: Any) -> Any:
    """A model whose adapters change what it says by half a nat and more."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} | settings
    with warnings.catch_warnings(action="ignore"):  # peft's own business
        model = get_peft_model(base_model(base), LoraConfig(**settings))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def lora_url(serve: Serve) -> str:
    (url,) = serve(adapted(0)).urls
    return url


@pytest.fixture
def agent(lora_url: str) -> Iterator[VLLMAgent]:
    agent = VLLMAgent([lora_url])
    yield agent
    agent.close()


def sample(agent: VLLMAgent, tokens: int = 12) -> Completion:
    return asyncio.run(agent.generate(CONTEXT, Sampling(seed=1, max_new_tokens=tokens)))


def difference(model: Any, found: Completion) -> float:
    """Of log-probabilities from the model's, in nats, on average."""
    with torch.no_grad():
        logits = model(torch.tensor([CONTEXT + found.ids])).logits[0, len(CONTEXT) - 1 : -1]
    ours = logits.float().log_softmax(-1)[range(len(found.ids)), found.ids]
    return float((ours - torch.tensor(found.logprobs)).abs().mean())


def test_each_version_samples_with_its_adapters(
    agent: VLLMAgent, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        for version in range(1, 7):  # more than a server keeps
            model = adapted(version)
            agent.update_weights(PolicyWeights(model), version)
            found = sample(agent)
            assert found.versions == [VersionSpan(0, 12, version)]
            assert difference(model, found) < 0.05 < difference(adapted(version - 1), found)
            assert sample(agent) == found  # from the cache
    assert "new weights go to the vLLM servers by adapters" in caplog.text


def test_the_same_version_may_be_handed_over_again(agent: VLLMAgent) -> None:
    for seed in (1, 2):
        agent.update_weights(PolicyWeights(adapted(seed)), 1)
        assert difference(adapted(seed), sample(agent)) < 0.05


def test_a_request_under_way_ends_with_the_adapters_that_it_began_with(
    agent: VLLMAgent, lora_url: str
) -> None:
    models = {1: adapted(1), 2: adapted(2)}
    agent.update_weights(PolicyWeights(models[1]), 1)

    async def update_amid() -> list[Completion]:
        sampling = Sampling(seed=1, max_new_tokens=800)
        before = await under_way(lora_url, agent, CONTEXT, sampling)
        await asyncio.to_thread(agent.update_weights, PolicyWeights(models[2]), 2)
        return [await agent.generate(CONTEXT, sampling), await before]

    new, old = asyncio.run(update_amid())
    for found, version in ((old, 1), (new, 2)):
        assert found.versions == [VersionSpan(0, 800, version)]
        assert difference(models[version], found) < 0.05
    assert agent.kept_across_weights == 0


def test_a_copy_learns_of_new_adapters_by_the_answers(agent: VLLMAgent) -> None:
    agent.update_weights(PolicyWeights(adapted(1)), 1)
    copy = VLLMAgent.__new__(VLLMAgent)
    copy.__setstate__(agent.__getstate__())
    assert difference(adapted(1), sample(copy)) < 0.05
    agent.update_weights(PolicyWeights(adapted(2)), 2)
    found = sample(copy)
    assert found.versions == [VersionSpan(0, 12, 2)]
    assert difference(adapted(2), found) < 0.05
    copy.close()


def test_whole_weights_are_refused_where_the_head_would_stay(agent: VLLMAgent) -> None:
    with pytest.raises(ConfigError, match="does not take new weights for a head that shares"):
        agent.update_weights(PolicyWeights(tiny_model().to(torch.bfloat16)), 1)


# From here on the server's base is another one.


def test_what_vllm_cannot_serve_is_merged(
    agent: VLLMAgent, caplog: pytest.LogCaptureFixture
) -> None:
    model = adapted(3, use_dora=True, r=2)
    with caplog.at_level("INFO"):
        agent.update_weights(PolicyWeights(model), 1)
    assert "by folder: vLLM does not serve DoRA (lora.use_dora)" in caplog.text
    assert difference(model, sample(agent)) < 0.05


def test_adapters_that_the_server_refuses_are_merged(
    agent: VLLMAgent, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.agents.vllm.weights.choice.why_merged", lambda model: None)
    model = adapted(4, use_dora=True, r=2)
    agent.update_weights(PolicyWeights(model), 1)
    assert "merged: " in caplog.text and "vLLM does not yet support DoRA" in caplog.text
    assert difference(model, sample(agent)) < 0.05


def test_another_base_is_found_out(agent: VLLMAgent) -> None:
    with pytest.raises(ConfigError, match=r"samples with other weights .* nats on average"):
        agent.update_weights(PolicyWeights(adapted(1, base=3)), 1)
