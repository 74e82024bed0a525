"""Models that cannot be packed: padded rows give the gradients of the model's own forward."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model

from gymnast.errors import ModelError
from gymnast.trainers.algorithms.distillation import Teacher
from gymnast.trainers.algorithms.kl import Kl
from gymnast.trainers.learner.kl_in_reward import penalised
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.policy.shares import Scored, Share
from gymnast.trainers.learner.teaching import Teaching, taught, with_teacher
from gymnast.types import Span, StopReason, Trajectory
from model_families import FAMILIES, VOCABULARY, tiny
from model_gradients import TOLERANCE, difference, distance, episodes, of_policy

# Linear attention, a state-space layer, short convolutions, chunks of attention, experts, and
# frequencies that change with the length.
KINDS = ["qwen3_5_text", "mamba2", "lfm2", "llama4_text", "granitemoehybrid", "phi3 (longrope)"]
# Heads that are more than a matrix, a factor and a known bound.
HEADS = ["inkling_text", "modernbert-decoder", "recurrent_gemma"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_warnings_of_other_peoples_code() -> None:
    # Models warn of kernels they do without and of settings they no longer use.
    warnings.simplefilter("ignore")


@pytest.mark.parametrize("family", KINDS)
def test_gradients_are_those_of_the_models_own_forward(family: str) -> None:
    model = tiny(family)
    policy = Policy(model)
    assert policy.path == "padded" and policy.not_packed
    assert difference(model, policy) < TOLERANCE


@pytest.mark.parametrize("family", HEADS)
def test_heads_of_every_form_give_the_models_own_logits(family: str) -> None:
    model = tiny(family)
    assert difference(model, Policy(model)) < TOLERANCE


def test_layers_computed_a_second_time_give_the_same_gradients() -> None:
    model = tiny("qwen3_next")
    assert difference(model, Policy(model, activations="recompute")) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_same_gradients_with_layers_computed_a_second_time(
    family: str,
) -> None:
    model = tiny(family)
    policy = Policy(model).train()
    plain = of_policy(model, policy)
    try:
        policy.activations = "recompute"
    except ModelError as error:
        assert "does not support activation checkpointing" in str(error)
    else:
        assert distance(of_policy(model, policy.train()), plain) < TOLERANCE


def adapted(family: str, **settings: Any) -> Any:
    """With adapters that change what the model computes."""
    torch.manual_seed(0)
    model = get_peft_model(
        tiny(family), LoraConfig(r=4, target_modules="all-linear", **settings)
    ).eval()
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    return model


def test_adapters_train_and_the_reference_is_the_model_beneath() -> None:
    model = adapted("lfm2")
    assert difference(model, Policy(model)) < TOLERANCE
    batch = micro_batch(episodes(), CPU)
    beneath = Policy(tiny("lfm2"))(batch)
    torch.testing.assert_close(Reference(model).logprobs(batch), beneath.detach())


def test_dropout_of_adapters_acts_while_training_alone() -> None:
    policy = Policy(adapted("lfm2", lora_dropout=0.5))
    batch = micro_batch(episodes(), CPU)
    assert policy.has_dropout
    torch.testing.assert_close(policy(batch), policy(batch))
    assert not torch.equal(policy.train()(batch), policy(batch))


def test_entropies_stand_below_the_logprobs() -> None:
    policy = Policy(tiny("lfm2"), temperature=0.7)
    batch = micro_batch(episodes(), CPU)
    logprobs, entropies = policy(batch, entropy="trained")
    torch.testing.assert_close(logprobs, policy(batch), rtol=1e-4, atol=1e-4)
    assert (entropies > 0).all()


def test_a_divergence_in_the_reward_reaches_its_own_trajectory() -> None:
    """Rows are sorted by length, and rewards stay where they are."""
    model = tiny("lfm2")
    trajectories = [episode.trajectory for episode in episodes()]
    reference = Reference(model)
    kl = Kl(0.1, place="reward", estimator="k1")
    groups = [trajectories[:2], trajectories[2:]]
    changed, _ = penalised(groups, kl, reference, Accelerator(), tokens_per_microbatch=80)
    for before, after in zip(trajectories, (t for group in changed for t in group), strict=True):
        alone = micro_batch([CreditedTrajectory(before, torch.ones(2))], CPU)
        cost = -(reference.logprobs(alone)).sum().item()  # sampled at 0.0, says the trajectory
        assert after.ids == before.ids
        assert after.reward == pytest.approx(-0.1 * cost, rel=1e-4)


@pytest.mark.parametrize("estimator", ["sampled", "exact"])
def test_a_teacher_says_of_each_row_what_it_says_of_it_alone(estimator: Any) -> None:
    """The teacher's own prompts differ in length, so it sorts rows in another order."""
    model, teacher = tiny("lfm2"), Teacher("base", estimator=estimator)
    teaching = Teaching.of(teacher, tiny("mamba2"), None, temperature=1.0)
    groups = [
        [replace(e, trajectory=replace(e.trajectory, teacher_prompt_ids=[3, 5, 7] * (1 + n)))]
        for n, e in enumerate(episodes())
    ]
    policy, accelerator = Policy(model), Accelerator()

    def said(groups: list[list[CreditedTrajectory]], tokens: int) -> torch.Tensor:
        if estimator == "sampled":
            found, _ = taught(groups, teaching, accelerator, tokens_per_microbatch=tokens)
            return torch.cat([e.token_advantages for group in found for e in group])
        batch = micro_batch([e for group in groups for e in group], CPU)
        trajectories = [e.trajectory for group in groups for e in group]
        share = Share([Scored(batch, torch.ones(0), trajectories=trajectories)], 1.0, 1.0, [])
        read = with_teacher(share, teaching).batches[0].teacher
        assert read is not None
        divergences: torch.Tensor = policy(batch, teacher=read())[2]
        return divergences.detach()

    alone = torch.cat([said([group], 2048) for group in groups])
    for tokens in (1, 2048):
        torch.testing.assert_close(said(groups, tokens), alone, rtol=1e-3, atol=1e-4)


def trajectory(length: int, advantage: float) -> CreditedTrajectory:
    made = Trajectory(
        ids=[1 + at % (VOCABULARY - 1) for at in range(length)],
        action_mask=[0] * (length - 1) + [1],
        logprobs=[0.0] * length,
        prompt_length=length - 1,
        turns=[Span(length - 1, length)],
        turn_rewards=[0.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )
    return CreditedTrajectory(made, torch.tensor([advantage]))


@pytest.fixture(scope="module")
def longrope() -> Policy:
    """Its frequencies change beyond 32 tokens."""
    return Policy(tiny("phi3 (longrope)"))


@given(
    lengths=st.lists(st.tuples(st.integers(2, 60), st.booleans()), max_size=20),
    tokens=st.integers(1, 200),
)
def test_micro_batches_hold_every_row_once_and_no_more_tokens_than_asked(
    longrope: Policy, lengths: list[tuple[int, bool]], tokens: int
) -> None:
    group = [trajectory(length, float(trains)) for length, trains in lengths]
    batches = longrope.split([group[:3], group[3:]], tokens)
    taken = [id(episode) for batch in batches for episode in batch]
    assert sorted(taken) == sorted(id(episode) for episode in group if episode.trains)
    for batch in batches:
        rows = [len(episode.trajectory.ids) for episode in batch]
        assert len(rows) == 1 or len(rows) * max(rows) <= tokens
        assert len({row > 32 for row in rows}) == 1
    longest = [len(batch[0].trajectory.ids) for batch in batches]
    assert longest == sorted(longest, reverse=True)
