"""What an agent returns from `send_weights` reaches its `update_weights`."""

from typing import Any

import pytest
from accelerate import Accelerator

from gymnast.agents import PolicyWeights, TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.rollouts.shared import SharedRollouts


class Sends(TransformersAgent):
    """Notes what it is called with."""

    calls: list[tuple[str, Any]]

    def send_weights(self, weights: PolicyWeights, version: int) -> str:
        if version == 3:
            raise ConnectionError("all servers are gone")
        self.calls.append(("send", weights.sent))
        return f"run:{version}"

    def update_weights(self, weights: PolicyWeights, version: int) -> None:
        self.calls.append(("update", weights.sent))
        super().update_weights(weights, version)


def test_what_was_sent_is_told_to_update_weights() -> None:
    model = tiny_model()
    agent = Sends(model)
    agent.calls = []
    make_env: Any = None  # nothing is played
    rollouts = SharedRollouts(Accelerator(cpu=True), agent, make_env)
    rollouts.hand_over(model, 2)
    assert agent.calls == [("send", None), ("update", "run:2")]
    with pytest.raises(ConnectionError, match="all servers are gone"):
        rollouts.hand_over(model, 3)
    assert len(agent.calls) == 2
