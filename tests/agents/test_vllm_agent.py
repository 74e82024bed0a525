"""VLLMAgent beside the trained model: what a server samples has the probabilities it says."""

import asyncio
from collections.abc import Iterator

import pytest
import torch

from gymnast.agents import PolicyWeights, VLLMAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Sampling, VersionSpan

pytestmark = [pytest.mark.vllm]


@pytest.fixture(scope="module")
def agent(vllm_url: str) -> Iterator[VLLMAgent]:
    agent = VLLMAgent([vllm_url])
    yield agent
    agent.close()


def test_new_weights_sample_with_the_probabilities_of_the_model(agent: VLLMAgent) -> None:
    model = tiny_model().to(torch.bfloat16)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.model.layers.parameters():
            weight.mul_(1 + torch.randn_like(weight))
    agent.update_weights(PolicyWeights(model), 7)
    context = [5, 6, 7, 8]
    theirs = asyncio.run(agent.generate(context, Sampling(seed=1, max_new_tokens=12)))
    with torch.no_grad():
        logits = model(torch.tensor([context + theirs.ids])).logits[0, len(context) - 1 : -1]
    ours = logits.float().log_softmax(-1)[range(12), theirs.ids].tolist()
    assert theirs.logprobs == pytest.approx(ours, abs=0.02)
    assert theirs.versions == [VersionSpan(0, 12, 7)]
