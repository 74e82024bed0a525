"""Weights that no gradient reaches, or that several layers share, in data parallelism."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from gymnast.agents.models.fused import use_fused_modules
from gymnast.trainers.distributed.reached_weights import ReachedWeights
from gymnast.trainers.distributed.sharding import shard, whole
from gymnast.trainers.learner.policy.micro_batches import micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from model_families import tiny
from model_gradients import episodes
from plain_kernels import plain_kernels


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    warnings.simplefilter("ignore")
    meeting = f"file://{tmp_path}/processes"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class HalfUsed(nn.Module):
    """One expert of two computes."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, given: torch.Tensor, expert: int) -> torch.Tensor:
        result: torch.Tensor = self.experts[expert](given)
        return result


def test_passes_that_leave_weights_out_follow_one_another() -> None:
    model = HalfUsed()
    joined = DistributedDataParallel(ReachedWeights(model))
    for expert in (0, 0, 1):
        model.zero_grad()
        joined(torch.ones(1, 2), expert).sum().backward()
        of_used, of_other = (
            each.weight.grad for each in (*model.experts, *model.experts)[expert:][:2]
        )
        assert torch.equal(of_used, torch.ones(2, 2))
        assert of_other is None or not of_other.any()


@pytest.mark.parametrize("family", ["mamba", "zamba2"])
def test_layers_within_or_beside_one_another_are_divided_once(family: str) -> None:
    """Mamba names its mixers as well as the blocks around them; Zamba's layers share blocks."""
    batch = micro_batch(episodes(), torch.device("cpu"))
    model = tiny(family)
    policy = Policy(model)
    expected = policy(batch).detach()
    shard(policy, model, Accelerator())
    logprobs = policy(batch)
    torch.testing.assert_close(logprobs.detach(), expected)
    logprobs.sum().backward()


def test_fused_modules_have_the_gradients_of_whole_weights() -> None:
    batch = micro_batch(episodes(), torch.device("cpu"))
    whole_model = tiny("qwen3")
    expected = Policy(whole_model)(batch)
    expected.sum().backward()
    model = tiny("qwen3")
    use_fused_modules(model, plain_kernels())
    policy = shard(Policy(model), model, Accelerator())
    logprobs = policy(batch)
    torch.testing.assert_close(logprobs, expected, rtol=1e-4, atol=1e-4)
    logprobs.sum().backward()
    named = dict(whole_model.named_parameters())
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(whole(weight.grad), named[name].grad, rtol=1e-3, atol=1e-4)
