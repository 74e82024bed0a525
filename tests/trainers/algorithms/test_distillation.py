"""Divergences from a teacher by hand, and what a teacher's settings must be."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gymnast.errors import ConfigError
from gymnast.trainers import Teacher, make_algorithm
from gymnast.trainers.algorithms.distillation import DIVERGENCES, forward_kl, jsd, reverse_kl

TWO = math.log(2)


def test_the_divergences_by_hand() -> None:
    p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    reverse = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    forward = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert reverse_kl(p, q).item() == pytest.approx(reverse, abs=1e-6)
    assert forward_kl(p, q).item() == pytest.approx(forward, abs=1e-6)
    middle = torch.tensor([[0.375, 0.625]]).log()
    halves = (reverse_kl(p, middle) + reverse_kl(q, middle)).item() / 2
    assert jsd(p, q).item() == pytest.approx(halves, abs=1e-6)


logits = st.lists(st.floats(-30, 30), min_size=6, max_size=6)


@given(logits, logits)
def test_no_divergence_is_negative_and_that_from_itself_is_zero(
    first: list[float], second: list[float]
) -> None:
    p, q = (torch.tensor([values]).double().log_softmax(-1) for values in (first, second))
    for divergence in DIVERGENCES.values():
        assert divergence(p, q).item() >= -1e-9
        assert divergence(p, p).item() == pytest.approx(0.0, abs=1e-9)
    assert jsd(p, q).item() <= TWO + 1e-9


def test_tokens_of_no_probability_leave_numbers_finite() -> None:
    p = torch.tensor([[0.0, -torch.inf, 3.0]]).log_softmax(-1).requires_grad_()
    q = torch.tensor([[2.0, 1.0, -torch.inf]]).log_softmax(-1)
    for divergence in DIVERGENCES.values():
        value = divergence(p, q).sum()
        (gradient,) = torch.autograd.grad(value, p)
        assert value.isfinite() and gradient.isfinite().all()


def test_the_policy_gradient_of_the_sampled_advantages_is_that_of_the_divergence_on_average() -> (
    None
):
    generator = torch.Generator().manual_seed(0)
    policy, teacher = torch.randn(2, 50, generator=generator).double()
    policy.requires_grad_()
    p, q = policy.log_softmax(0), teacher.log_softmax(0)
    (exact,) = torch.autograd.grad(reverse_kl(p, q), policy, retain_graph=True)
    advantages = Teacher("x").advantages(p.detach(), q)  # of each token of the vocabulary
    (sampled,) = torch.autograd.grad((p.exp().detach() * -advantages * p).sum(), policy)
    torch.testing.assert_close(sampled, exact)


def test_only_the_forward_divergence_pulls_a_token_up_that_is_never_sampled() -> None:
    """The opening of a tool call, say: likely for the teacher, and for the policy e^-20."""
    policy = torch.tensor([0.0, -20.0, -1.0], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([0.0, 3.0, -1.0], dtype=torch.float64).log_softmax(0)
    pulls = {}
    for name, divergence in DIVERGENCES.items():
        (gradient,) = torch.autograd.grad(divergence(policy.log_softmax(0), teacher), policy)
        pulls[name] = -gradient[1].item()
    assert pulls["forward_kl"] > 0.9
    assert 0 < pulls["reverse_kl"] < 1e-6 and 0 < pulls["jsd"] < 1e-6


def test_the_weight_and_the_clip_act_on_the_sampled_difference() -> None:
    teacher = Teacher("x", weight=0.5, clip=1.0)
    ours, theirs = torch.tensor([-5.0, -1.0, -1.5]), torch.tensor([-1.0, -4.0, -1.0])
    assert teacher.advantages(ours, theirs).tolist() == [0.5, -0.5, 0.25]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": 0}, "teacher.weight: must be > 0, got 0"),
        ({"divergence": "kl"}, "teacher.divergence: must be one of reverse_kl, forward_kl, jsd"),
        ({"estimator": "full"}, "teacher.estimator: must be one of sampled, exact, got 'full'"),
        ({"divergence": "jsd"}, "must be reverse_kl with the estimator sampled, got jsd"),
        ({"estimator": "exact", "clip": 2.0}, "teacher.clip: is 2, which bounds sampled tokens"),
        ({"clip": -1.0}, "teacher.clip: must be > 0"),
        (
            {"model": "policy", "hints": False},
            "teacher.hints: must be true where algorithm.teacher.model",
        ),
        ({"model": "base", "dtype": "bfloat16"}, "teacher.dtype: is bfloat16, and the teacher"),
    ],
)
def test_settings_that_cannot_hold_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Teacher(**({"model": "tiny:"} | settings))


def test_hints_are_for_the_policy_and_the_base_unless_it_is_said() -> None:
    assert Teacher("policy").uses_hints and Teacher("base").uses_hints
    assert not Teacher("tiny:").uses_hints and Teacher("tiny:", hints=True).uses_hints


def test_distillation_needs_a_teacher() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.teacher: is required by distillation"):
        make_algorithm("distillation")
    make_algorithm("distillation", teacher=Teacher("tiny:")).check_group_size(1)


def test_an_exact_teacher_that_changes_between_steps_of_a_batch_is_refused() -> None:
    exact = Teacher("policy", estimator="exact")
    with pytest.raises(ConfigError, match="make 4 optimisation steps of a batch"):
        make_algorithm("distillation", teacher=exact, epochs=2, minibatches=2)
    make_algorithm("distillation", teacher=Teacher("policy"), epochs=2)
    make_algorithm("distillation", teacher=Teacher("base", estimator="exact"), epochs=2)
