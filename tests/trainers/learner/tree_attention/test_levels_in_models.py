"""Models that attend level by level, as on a GPU: logits and gradients, in one process and two."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.learner.policy.micro_batches import (
    CreditedTrajectory,
    MicroBatch,
    micro_batch,
)
from gymnast.trainers.learner.policy.policy import Policy
from level_processes import conversations, gradients_of
from process_runs import in_two_processes
from varlen_reference import levels_everywhere

WINDOWED = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 3}
CPU = torch.device("cpu")
SCRIPT = Path(__file__).parents[2] / "level_processes.py"


def batch_of(groups: int) -> tuple[list[CreditedTrajectory], MicroBatch]:
    samples = [
        CreditedTrajectory(trajectory, torch.ones(len(trajectory.turns)))
        for trajectory in conversations(groups)
    ]
    return samples, micro_batch(samples, CPU)


def outcome(policy: Policy, batch: MicroBatch) -> list[torch.Tensor]:
    """Log-probabilities and the gradients of all weights."""
    policy.zero_grad()
    policy.train()
    logprobs = policy(batch)
    weights = torch.linspace(-1, 1, len(logprobs), dtype=logprobs.dtype)
    (logprobs * weights).sum().backward()
    return [logprobs.detach(), *(p.grad for p in policy.parameters() if p.grad is not None)]


def separate_logprobs(model: Any, sample: CreditedTrajectory) -> torch.Tensor:
    ids = torch.tensor(sample.trajectory.ids)
    logprobs = torch.log_softmax(model(ids[None]).logits[0], dim=-1)
    actions = torch.tensor(sample.trajectory.action_mask).nonzero()[:, 0]
    return logprobs[actions - 1, ids[actions]]


@pytest.mark.parametrize("overrides", [{}, WINDOWED], ids=["full", "a window in a layer"])
def test_a_model_computes_what_it_does_of_separate_sequences(overrides: dict[str, Any]) -> None:
    model = tiny_model(**overrides).double()
    samples, batch = batch_of(3)
    with levels_everywhere() as used:
        ours = outcome(Policy(model), batch)
    assert len(used) == len(model.model.layers) - bool(overrides)
    assert all(len(varlen.forwards) == len(varlen.backwards) == 3 for varlen in used)
    model.zero_grad()
    separate = torch.cat([separate_logprobs(model, sample) for sample in samples])
    weights = torch.linspace(-1, 1, len(separate), dtype=separate.dtype)
    (separate * weights).sum().backward()
    theirs = [separate.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    # The head computes in float32.
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activations", ["keep", "recompute", "offload"])
def test_levels_change_nothing_in_a_model(activations: Any) -> None:
    model = tiny_model()
    _, batch = batch_of(2)
    usual = outcome(Policy(model), batch)
    with levels_everywhere() as used:
        ours = outcome(Policy(model, activations=activations), batch)
    passes = 1 if activations == "keep" else 2
    assert len(used) == passes * len(model.model.layers)
    for mine, other in zip(ours, usual, strict=True):
        assert (mine - other).norm() <= 1e-5 * other.norm()


@pytest.mark.processes
def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    found = in_two_processes(SCRIPT, tmp_path, longest_s=300)
    for process in found:
        assert set(process["levels"]["calls"]) <= {2, 3}
        assert process["levels"]["calls"]
    ours, theirs = (torch.load(tmp_path / f"gradients_{process}.pt") for process in (0, 1))
    assert torch.equal(ours, theirs)
    alone = gradients_of(conversations(4))
    assert (ours - alone).norm() < 1e-5 * alone.norm()
