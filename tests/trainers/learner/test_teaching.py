"""A teacher's part in one optimisation step, held against plain forwards of separate sequences."""

import math
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers import Kl, Teacher, make_algorithm
from gymnast.trainers.learner.credit import with_advantages
from gymnast.trainers.learner.memory.trace import AllocationTrace, live_bytes
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.teaching import Teaching, taught
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.types import Trajectory
from sampled_groups import Groups, KeepsGradients, random_groups

TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator()


def sharp(seed: int) -> Any:
    """A model that is sure of what it says."""
    model = tiny_model(seed=seed)
    with torch.no_grad():
        model.model.norm.weight.mul_(6.0)
    return model


def hinted_groups() -> Groups:
    """The first group has a hint for its teacher, in front of all it had."""
    groups = random_groups(tiny_model(), [[0.0, 1.0, 0.5], [1.0, 0.0]])
    hint = list(range(300, 330))
    first = [replace(t, teacher_prompt_ids=[*hint, *t.ids[: t.prompt_length]]) for t in groups[0]]
    return [first, groups[1]]


def scaled(model: Any, ids: list[int]) -> torch.Tensor:
    """Log-probabilities of all tokens after each one, in a plain forward, [T, V]."""
    logits = model(torch.tensor(ids)[None]).logits[0]
    return torch.log_softmax(logits.double() / TEMPERATURE, dim=-1)


def sources(trajectory: Trajectory) -> torch.Tensor:
    """The tokens that predict the action tokens."""
    return torch.tensor(trajectory.action_mask).nonzero()[:, 0] - 1


def teachers_ids(trajectory: Trajectory) -> list[int]:
    prompt = list(trajectory.teacher_prompt_ids) or trajectory.ids[: trajectory.prompt_length]
    return prompt + trajectory.ids[trajectory.prompt_length :]


def teaching_of(teacher: Teacher, policy: Any, other: Any = None) -> Teaching:
    return Teaching.of(teacher, policy, other, temperature=TEMPERATURE)


def step(
    model: Any, groups: Groups, algorithm: Any, teaching: Teaching, tokens: int = 2048
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Take one step; returns its metrics and gradients."""
    settings = UpdateSettings(algorithm, math.inf, tokens)
    optimizer = KeepsGradients(model.parameters(), learning_rate=0.1)
    policy = Policy(model, temperature=TEMPERATURE)
    found = update(policy, optimizer, groups, settings, Accelerator(), teaching=teaching)
    return found.metrics, optimizer.gradients


# --- What the teacher reads


@given(prompt=st.lists(st.integers(0, 999), min_size=1, max_size=80), seed=st.integers(0, 9))
def test_after_its_own_prompt_the_teacher_reads_what_the_policy_wrote(
    prompt: list[int], seed: int
) -> None:
    (given,), *_ = random_groups(MODEL, [[1.0]], seed)
    trajectory = replace(given, teacher_prompt_ids=prompt)
    teaching = replace(TEACHING, longest=None)
    read = teaching.reads(trajectory)
    assert read is not None and read.ids == teachers_ids(trajectory)
    ours, theirs = np.array(trajectory.action_mask) == 1, np.array(read.action_mask) == 1
    assert np.array(read.ids)[theirs].tolist() == np.array(trajectory.ids)[ours].tolist()
    assert np.array(read.logprobs)[theirs].tolist() == np.array(trajectory.logprobs)[ours].tolist()
    for mine, its in zip(trajectory.turns, read.turns, strict=True):
        assert read.ids[slice(*its)] == trajectory.ids[slice(*mine)]


MODEL = tiny_model()
TEACHING = teaching_of(Teacher("policy"), MODEL)


def test_an_episode_that_is_too_long_with_its_hint_has_no_teacher_and_is_counted(
    accelerator: Accelerator,
) -> None:
    groups = hinted_groups()
    longest = max(len(t.ids) for group in groups for t in group)
    teaching = replace(teaching_of(Teacher("policy"), tiny_model()), longest=longest)
    over = [len(teachers_ids(t)) > longest for t in groups[0]]
    credited = with_advantages(groups, make_algorithm("grpo").estimator)
    found, metrics = taught(credited, teaching, accelerator, tokens_per_microbatch=2048)
    assert sum(over) > 0 and metrics["teacher/too_long"] == sum(over) / 5
    assert metrics["teacher/hinted"] == 3 / 5  # without one, the policy tells itself nothing new
    assert metrics["teacher/episodes"] == (3 - sum(over)) / 5
    for before, after, alone in zip(credited[0], found[0], over, strict=True):
        assert torch.equal(before.token_advantages, after.token_advantages) == alone
    for before, after in zip(credited[1], found[1], strict=True):
        assert torch.equal(before.token_advantages, after.token_advantages)


# --- The sampled form


@pytest.mark.parametrize("model", ["other", "policy", "base"])
def test_a_sampling_teacher_adds_its_log_ratio_to_each_tokens_advantage(
    model: str, accelerator: Accelerator
) -> None:
    policy, groups = tiny_model(), hinted_groups()
    other = sharp(1) if model == "other" else None
    teacher = Teacher(other or model, weight=0.5, hints=True)
    teaching, scored = teaching_of(teacher, policy, other), other or policy
    credited = with_advantages(groups, make_algorithm("rloo").estimator)
    found, metrics = taught(credited, teaching, accelerator, tokens_per_microbatch=60)
    differences = []
    for before, after in zip(chain(*credited), chain(*found), strict=True):
        trajectory = before.trajectory
        expected = before.token_advantages.double()
        if model != "policy" or trajectory.teacher_prompt_ids:
            read = teaching.reads(trajectory)
            assert read is not None
            theirs = scaled(scored, read.ids)[sources(read)]
            mask = torch.tensor(trajectory.action_mask, dtype=torch.bool)
            theirs = theirs.gather(1, torch.tensor(trajectory.ids)[mask][:, None])[:, 0]
            difference = theirs - torch.tensor(trajectory.logprobs).double()[mask]
            expected = expected + 0.5 * difference
            differences.append(difference)
        torch.testing.assert_close(after.token_advantages.double(), expected, rtol=1e-4, atol=1e-4)
    mean = -torch.cat(differences).mean().item()
    assert metrics["teacher/kl"] == pytest.approx(mean, rel=1e-4)


def test_the_steps_gradient_is_that_of_the_added_advantages() -> None:
    """`distillation` has no advantages of its own, and needs no group."""
    groups = [[trajectory] for group in hinted_groups() for trajectory in group]
    other, model = sharp(1), tiny_model().double()
    teacher = Teacher(other)
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for (trajectory,) in groups:
        mask = torch.tensor(trajectory.action_mask, dtype=torch.bool)
        chosen = torch.tensor(trajectory.ids)[mask][:, None]
        now = scaled(model, trajectory.ids)[sources(trajectory)].gather(1, chosen)[:, 0]
        theirs = scaled(other, trajectory.ids)[sources(trajectory)].gather(1, chosen)[:, 0]
        ours = torch.tensor(trajectory.logprobs).double()[mask]
        total, tokens = total - ((theirs - ours).detach() * now).sum(), tokens + len(now)
    expected = torch.autograd.grad(total / tokens, list(model.parameters()))
    algorithm = make_algorithm("distillation", teacher=teacher)
    teaching = teaching_of(teacher, model, other)
    metrics, found = step(tiny_model().double(), groups, algorithm, teaching)
    for mine, by_hand in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), by_hand, rtol=1e-3, atol=1e-5)
    assert metrics["teacher/hinted"] == 0.0 and metrics["advantage/episodes"] == 1.0


# --- The exact form


def exact_by_hand(model: Any, teacher_of: Any, groups: Groups, name: str) -> torch.Tensor:
    """The mean divergence of a token, the teacher's logits being given."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for trajectory in chain(*groups):
        ours = scaled(model, trajectory.ids)[sources(trajectory)]
        read = teachers_ids(trajectory)
        mask = [0] * (len(read) - len(trajectory.ids) + trajectory.prompt_length)
        mask += trajectory.action_mask[trajectory.prompt_length :]
        places = torch.tensor(mask).nonzero()[:, 0] - 1
        theirs = scaled(teacher_of, read)[places].detach()
        if name == "forward_kl":
            values = (theirs.exp() * (theirs - ours)).sum()
        elif name == "reverse_kl":
            values = (ours.exp() * (ours - theirs)).sum()
        else:
            middle = ((ours.exp() + theirs.exp()) / 2).log()
            values = (ours.exp() * (ours - middle) + theirs.exp() * (theirs - middle)).sum() / 2
        total, tokens = total + values, tokens + len(places)
    return total / tokens


@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl", "jsd"])
@pytest.mark.parametrize("model", ["other", "base"])
def test_an_exact_teachers_loss_and_gradient_by_hand(model: str, name: Any) -> None:
    policy, groups = tiny_model().double(), hinted_groups()
    other = sharp(1).double() if model == "other" else None
    expected = exact_by_hand(policy, other or tiny_model().double(), groups, name)
    gradients = torch.autograd.grad(expected, list(policy.parameters()))
    teacher = Teacher(other or model, estimator="exact", divergence=name, weight=2.0, hints=True)
    algorithm = make_algorithm("distillation", teacher=teacher)
    for tokens in (1, 90, 2048):
        model_now = tiny_model().double()
        teaching = teaching_of(teacher, model_now, other)
        metrics, found = step(model_now, groups, algorithm, teaching, tokens)
        assert metrics["loss"] == pytest.approx(2 * expected.item(), rel=1e-4)
        assert metrics["teacher/kl"] == pytest.approx(expected.item(), rel=1e-4)
        for mine, by_hand in zip(found, gradients, strict=True):
            torch.testing.assert_close(mine.double(), 2 * by_hand, rtol=1e-3, atol=1e-6)


def test_a_teacher_adds_to_rewards_and_to_a_penalty() -> None:
    """The gradient of all is the sum of the gradients of each."""
    groups, other = hinted_groups(), sharp(1)

    def gradients(**parts: Any) -> list[torch.Tensor]:
        model = tiny_model().double()
        teacher = parts.get("teacher")
        algorithm = make_algorithm(parts.pop("name"), loss="reinforce", **parts)
        settings = UpdateSettings(algorithm, math.inf, 200)
        optimizer = KeepsGradients(model.parameters(), learning_rate=0.1)
        teaching = teaching_of(teacher, model, other) if teacher else None
        reference = Reference(sharp(2).double(), temperature=TEMPERATURE)
        policy = Policy(model, temperature=TEMPERATURE)
        update(policy, optimizer, groups, settings, Accelerator(), reference, teaching)
        return optimizer.gradients

    kl = Kl(0.3, estimator="k2")
    for teacher in (Teacher(other), Teacher(other, estimator="exact")):
        all_of_it = gradients(name="grpo", kl=kl, teacher=teacher)
        rewards = gradients(name="grpo", kl=kl)
        taught_alone = gradients(name="distillation", teacher=teacher)
        for whole, first, second in zip(all_of_it, rewards, taught_alone, strict=True):
            torch.testing.assert_close(whole, first + second, rtol=1e-3, atol=1e-5)


def test_an_exact_teachers_states_of_one_micro_batch_exist_at_a_time() -> None:
    """The peak of an update is no higher with four times the episodes."""
    other = tiny_model(hidden_size=4096, intermediate_size=64)
    teacher = Teacher(other, estimator="exact")
    algorithm = make_algorithm("distillation", teacher=teacher)

    def peak(groups: Groups) -> float:
        model = tiny_model()
        teaching = teaching_of(teacher, model, other)
        with AllocationTrace(torch.device("cpu")) as trace:
            step(model, groups, algorithm, teaching, tokens=1)
        return float(live_bytes(np.array(trace.sizes, dtype=np.float64), trace.events).max())

    groups = random_groups(tiny_model(), [[1.0, 0.0, 0.5]])
    states = 4 * 4096 * sum(t.action_tokens for t in groups[0])
    assert peak(groups * 4) - peak(groups) < 0.2 * states


@pytest.mark.parametrize("model", ["policy", "base"])
def test_an_exact_teacher_reads_each_micro_batch_without_the_dropout_of_adapters(
    model: str, tokenizer: Any
) -> None:
    """The policy's own passes have it."""
    groups, teacher = hinted_groups(), Teacher(model, estimator="exact")
    algorithm = make_algorithm("distillation", teacher=teacher)
    found = []
    for seed, tokens in ((0, 2048), (1, 60)):
        lora = {"rank": 4, "dropout": 0.5}
        adapted, _ = load_model("tiny:", lora=lora, tokenizer=tokenizer)
        with torch.no_grad():
            for weight in adapted.parameters():
                if weight.requires_grad:
                    weight.add_(torch.randn(weight.shape, generator=torch.manual_seed(0)))
        torch.manual_seed(seed)
        metrics, _ = step(adapted, groups, algorithm, teaching_of(teacher, adapted), tokens)
        found.append(metrics)
    first, second = found
    assert first["teacher/logprob"] == pytest.approx(second["teacher/logprob"], rel=1e-5)
    assert first["teacher/kl"] != pytest.approx(second["teacher/kl"], rel=1e-3)


@pytest.mark.parametrize("model", ["policy", "base"])
@pytest.mark.parametrize("estimator", ["sampled", "exact"])
def test_under_adapters_the_base_teaches_without_them_and_the_policy_with_them(
    model: str, estimator: Any, tokenizer: Any
) -> None:
    adapted, _ = load_model("tiny:", lora={"rank": 4}, tokenizer=tokenizer)
    teacher = Teacher(model, estimator=estimator)
    teaching, groups = teaching_of(teacher, adapted), hinted_groups()
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=torch.manual_seed(0)) * 0.1)
    algorithm = make_algorithm("distillation", teacher=teacher)
    scored = tiny_model() if model == "base" else adapted
    expected = []
    for t in groups[0] if model == "policy" else chain(*groups):
        read = teaching.reads(t)
        assert read is not None
        theirs = scaled(scored, read.ids)[sources(read)].detach()
        chosen = torch.tensor(read.ids)[torch.tensor(read.action_mask, dtype=torch.bool)]
        expected.append(theirs.gather(1, chosen[:, None])[:, 0])
    metrics, found = step(adapted, groups, algorithm, teaching)
    assert metrics["teacher/logprob"] == pytest.approx(torch.cat(expected).mean().item(), rel=1e-4)
    assert sum(gradient.abs().sum().item() for gradient in found) > 0
