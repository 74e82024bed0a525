"""Gradients and weights do not depend on the size of micro-batches, whoever chooses it."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import NotEnoughMemory
from gymnast.trainers import make_algorithm
from gymnast.trainers.learner.credit import with_advantages
from gymnast.trainers.learner.learner import Learner
from gymnast.trainers.learner.optimizers.by_name import named_optimizer
from gymnast.trainers.learner.policy.micro_batches import split
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.shares import make_share
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.types import Span, StopReason, Trajectory
from model_families import VOCABULARY, tiny
from sampled_groups import Groups, KeepsGradients

# Its updates do not jump where a gradient is about zero, as AdamW's first ones do.
SMOOTH = {"name": "adamw", "eps": 1e-2}
SIZES = (1, 200, 10**6)
MODELS: dict[str, Callable[[], Any]] = {
    "packed": lambda: tiny_model(num_hidden_layers=2),
    "padded": lambda: tiny("lfm2"),
}


def some_groups(count: int = 6, size: int = 3) -> Groups:
    """Groups of episodes with a shared prompt, of different lengths and rewards."""
    numbers = np.random.default_rng(0)

    def tokens(low: int, high: int) -> list[int]:
        return [int(t) for t in numbers.integers(1, VOCABULARY, numbers.integers(low, high))]

    def episode(prompt: list[int], reward: float) -> Trajectory:
        answer = tokens(5, 40)
        start, length = len(prompt), len(answer)
        return Trajectory(
            ids=prompt + answer,
            action_mask=[0] * start + [1] * length,
            logprobs=[0.0] * start + [-5.0] * length,
            prompt_length=start,
            turns=[Span(start, start + length)],
            turn_rewards=[reward],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )

    prompts = [tokens(20, 50) for _ in range(count)]
    return [[episode(prompt, float(n)) for n in range(size)] for prompt in prompts]


def learned(
    model: Any, groups: Groups, tokens_per_microbatch: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The gradients of a step, and the weights after it."""
    named = named_optimizer(SMOOTH)
    optimizer = KeepsGradients(model.parameters(), learning_rate=1e-3, named=named)
    algorithm = make_algorithm("dr_grpo", loss="reinforce")
    settings = UpdateSettings(algorithm, math.inf, tokens_per_microbatch)
    metrics = update(Policy(model), optimizer, groups, settings, Accelerator()).metrics
    assert metrics["updates/taken"] == 1
    return optimizer.gradients, [master.detach() for master in optimizer.master]


def apart(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest number."""
    differences = [(a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True)]
    return max(differences) / max(b.abs().max().item() for b in theirs)


@pytest.mark.parametrize("path", MODELS)
def test_in_float32_sizes_change_neither_gradients_nor_weights(path: str) -> None:
    groups, make = some_groups(), MODELS[path]
    assert Policy(make()).path == path
    gradients, weights = learned(make(), groups, 10**6)
    for tokens in SIZES[:-1]:
        ours, updated = learned(make(), groups, tokens)
        assert apart(ours, gradients) < 1e-6
        assert apart(updated, weights) < 1e-6


@pytest.mark.parametrize("path", MODELS)
def test_in_bfloat16_small_sizes_are_as_exact_as_one(path: str) -> None:
    """The distance of the whole gradient from that in float32."""
    groups, make = some_groups(), MODELS[path]
    rounded = make().to(torch.bfloat16)
    exact, _ = learned(make_like(rounded, torch.float32, make), groups, 10**6)
    whole = torch.cat([each.flatten() for each in exact])
    found = []
    for tokens in SIZES:
        ours, _ = learned(make_like(rounded, torch.bfloat16, make), groups, tokens)
        difference = torch.cat([each.flatten() for each in ours]) - whole
        found.append(float(difference.norm() / whole.norm()))
    *many, one = found
    assert 0 < one < 0.05
    assert max(many) < 1.05 * one


def make_like(model: Any, dtype: torch.dtype, make: Callable[[], Any]) -> Any:
    """A model with the weights of another one, in a dtype."""
    made = make().to(dtype)
    made.load_state_dict(model.state_dict())
    return made


def make_learner(model: Any, **settings: Any) -> Learner:
    return Learner(
        model,
        Accelerator(cpu=True),
        make_algorithm("grpo"),
        LearnerSettings(learning_rate=1e-3, optimizer=SMOOTH, **settings),
        reward_weights={},
        temperature=1.0,
        seed=0,
    )


def runs_out_above(model: Any, tokens: int) -> list[int]:
    """Let a model's device have no memory for longer passes; returns the lengths of all passes."""
    lengths: list[int] = []

    def check(module: Any, args: Any, kwargs: Any) -> None:
        lengths.append(kwargs["input_ids"].numel())
        if lengths[-1] > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    model.model.register_forward_pre_hook(check, with_kwargs=True)
    return lengths


@pytest.mark.parametrize("prepared", [True, False])
def test_a_step_that_runs_out_of_memory_is_made_again(
    prepared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    groups = some_groups()
    expected = tiny_model(num_hidden_layers=2)
    make_learner(expected).update(groups, 0)
    model = tiny_model(num_hidden_layers=2)
    learner = make_learner(model)
    if prepared:
        learner.prepare(100, 10**6)
    lengths = runs_out_above(model, 400)
    with caplog.at_level(logging.WARNING, logger="gymnast"):
        metrics = learner.update(groups, 0).metrics
    assert metrics["updates/taken"] == 1 and learner.optimizer.steps == 1
    assert apart(list(model.parameters()), list(expected.parameters())) < 1e-6
    lines = [line for line in caplog.messages if "ran out of memory" in line]
    assert lines and len(lines) == sum(length > 400 for length in lengths)
    caplog.clear()
    learner.update(groups, 1)
    assert not caplog.messages, "smaller micro-batches stay"


def test_demonstrations_are_learned_from_again_as_well() -> None:
    episodes = [each for group in some_groups() for each in group]
    model = tiny_model(num_hidden_layers=2)
    learner = make_learner(model)
    runs_out_above(model, 400)
    assert learner.imitate(episodes, 0)["updates/taken"] == 1


def test_a_size_that_is_set_is_not_changed() -> None:
    model = tiny_model(num_hidden_layers=2)
    learner = make_learner(model, tokens_per_microbatch=1000)
    runs_out_above(model, 400)
    before = [weight.detach().clone() for weight in model.parameters()]
    with pytest.raises(NotEnoughMemory, match=r"Set trainer.tokens_per_microbatch to 500\.") as e:
        learner.update(some_groups(), 0)
    assert isinstance(e.value.__cause__, torch.OutOfMemoryError)
    assert apart(list(model.parameters()), before) == 0


def test_an_episode_that_is_too_long_ends_the_run() -> None:
    groups = some_groups()
    longest = max(len(each.ids) for group in groups for each in group)
    model = tiny_model(num_hidden_layers=2)
    lengths = runs_out_above(model, longest - 1)
    with pytest.raises(NotEnoughMemory, match=r"tokens_per_microbatch|context_length"):
        make_learner(model).update(groups, 0)
    assert len(lengths) < 20


def test_an_update_that_has_changed_weights_is_not_made_again() -> None:
    """The second of its optimisation steps runs out of memory."""
    model = tiny_model(num_hidden_layers=2)
    learner = Learner(
        model,
        Accelerator(cpu=True),
        make_algorithm("grpo", epochs=2),
        LearnerSettings(learning_rate=1e-3),
        reward_weights={},
        temperature=1.0,
        seed=0,
    )

    def full_after_a_step(module: Any, args: Any) -> None:
        if learner.optimizer.steps:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    model.model.register_forward_pre_hook(full_after_a_step)
    with pytest.raises(NotEnoughMemory):
        learner.update(some_groups(), 0)
    assert learner.optimizer.steps == 1


@dataclass(frozen=True)
class OneOf:
    """One of several processes, as far as a share is made for it."""

    num_processes: int
    process_index: int = 0
    device = torch.device("cpu")


def tokens_of_shares(processes: int, tokens_per_microbatch: int) -> list[list[int]]:
    """The packed tokens of the micro-batches of each process."""
    credited = with_advantages(some_groups(), make_algorithm("grpo").estimator, {})
    aggregation = make_algorithm("grpo").aggregation
    found = []
    for number in range(processes):
        given: Any = OneOf(processes, number)
        size = {"tokens_per_microbatch": tokens_per_microbatch}
        share = make_share(credited, aggregation, given, divide=split, also_idle=False, **size)
        found.append([len(each.batch.packed.ids) for each in share.batches])
    return found


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("tokens", [10**6, 400, 150])
def test_processes_share_a_batch_evenly(processes: int, tokens: int) -> None:
    alone = len(tokens_of_shares(1, tokens)[0])
    shares = tokens_of_shares(processes, tokens)
    assert {len(each) for each in shares} == {math.ceil(alone / processes)}
    assert max(map(max, shares)) <= tokens
    longest, shortest = max(map(sum, shares)), min(map(sum, shares))
    assert shortest > 0.5 * longest


@pytest.mark.gpu
def test_on_a_gpu_a_step_stays_within_the_memory_it_may_take() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    model = tiny_model(num_hidden_layers=8).to("cuda", torch.bfloat16)
    settings = LearnerSettings(learning_rate=1e-3, memory=0.02)
    given: dict[str, Any] = {"reward_weights": {}, "temperature": 1.0, "seed": 0}
    learner = Learner(model, Accelerator(), make_algorithm("grpo"), settings, **given)
    groups = some_groups(400, 8)
    torch.cuda.reset_peak_memory_stats()
    for step in range(2):
        assert learner.prepare(0, 10**6).limit > 8192
        assert learner.update(groups, step).metrics["updates/taken"] == 1
    assert learner.memory.room is not None
    assert torch.cuda.max_memory_allocated() < 1.3 * 0.02 * learner.memory.room.nbytes
    assert 0.5 <= learner.memory.scale <= 2
