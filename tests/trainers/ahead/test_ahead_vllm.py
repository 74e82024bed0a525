"""A run that plays ahead on a real vLLM server, which takes new weights while it samples."""

import pytest
import torch

from gymnast.agents import VLLMAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Sampling
from runs_ahead import Keeps, make_trainer

pytestmark = [pytest.mark.vllm]


@pytest.mark.parametrize("on_stale", ["drop", "continue"])
def test_a_server_samples_while_the_model_is_trained(vllm_url: str, on_stale: str) -> None:
    agent, kept = VLLMAgent([vllm_url]), Keeps()
    try:
        make_trainer(
            model=tiny_model().to(torch.bfloat16),
            agent=agent,
            observer=kept,
            on_stale=on_stale,
            sampling=Sampling(max_new_tokens=24),
            max_staleness=2,
            learning_rate=1e-4,
            eval_rows=[{"prompt": "Say."}],
            eval_every_steps=2,
        ).train()
    finally:
        agent.close()
    assert [metrics["staleness/max"] <= 2 for metrics in kept.metrics] == [True] * 5
    assert max(metrics["staleness/max"] for metrics in kept.metrics) > 0
    assert kept.evaluated == [{0}, {2}, {4}, {5}]
    # The weights in between move log-probabilities by more than bfloat16 does; those of the last
    # version agree.
    assert kept.metrics[0]["engine/logprob_difference"] < 0.02
