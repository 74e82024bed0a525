"""Episodes with several contexts: loss and gradient are those of the contexts computed by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st

from branching import Drawn, drawn_episode, drawn_groups, numbered
from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers import CreditedTrajectory, Kl, RewardBatch, Teacher, make_algorithm
from gymnast.trainers import micro_batch as packed_batch
from gymnast.trainers.ahead.bound import token_versions, within
from gymnast.trainers.algorithms.losses import gspo
from gymnast.trainers.base.contexts import alone, together
from gymnast.trainers.learner.credit import by_token, reward_batch, with_advantages
from gymnast.trainers.learner.kl_in_reward import KL_PART, penalised
from gymnast.trainers.learner.policy.in_time import divided, merged, turn_lengths
from gymnast.trainers.learner.policy.micro_batches import split
from gymnast.trainers.learner.policy.packing import WORTH_SHARING
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.teaching import Teaching, taught
from gymnast.trainers.learner.update import UpdateSettings, imitate, update
from gymnast.types import Trajectory, VersionSpan
from model_families import tiny
from sampled_groups import KeepsGradients, forward_logprobs

CPU = torch.device("cpu")
MODEL = tiny_model()


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator()


def trajectories(groups: Sequence[Sequence[Drawn]]) -> list[list[Trajectory]]:
    return [[drawn.trajectory for drawn in group] for group in groups]


# --- The loss and its gradient


def surrogate(now: torch.Tensor, before: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """PPO's clipped loss of the tokens of one context."""
    ratio = torch.exp(now - before)
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def of_sequence(now: torch.Tensor, before: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """GSPO's loss, of which the ratio is that of one context."""
    sequence = torch.zeros(len(now), dtype=torch.long)
    return gspo(now, before, advantages, sequence, clip_low=0.1, clip_high=0.1).losses


ALGORITHMS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "grpo": ({"aggregation": "sequence_mean"}, surrogate, "sequence_mean"),
    "grpo, all tokens alike": ({"aggregation": "token_mean"}, surrogate, "token_mean"),
    "dr_grpo": ({"tokens_per_sequence": 100}, surrogate, "constant"),
    "gspo": ({"clip_low": 0.1, "clip_high": 0.1}, of_sequence, "sequence_mean"),
    "turn_level": ({"gamma": 0.9, "aggregation": "sequence_mean"}, surrogate, "sequence_mean"),
}


def loss_by_hand(model: Any, groups: Sequence[Sequence[Drawn]], name: str) -> torch.Tensor:
    """Each context in a forward pass of its own; lengths are those of whole episodes."""
    options, token_losses, aggregation = ALGORITHMS[name]
    algorithm = make_algorithm(name.partition(",")[0], old_logprobs="engine", **options)
    episodes = [drawn for group in groups for drawn in group]
    in_time = [rewards_in_time(drawn) for drawn in episodes]
    advantages = algorithm.estimator(
        RewardBatch(
            rewards=torch.tensor([sum(rewards) for rewards in in_time]),
            group=torch.tensor([n for n, group in enumerate(groups) for _ in group]),
            turn_rewards=in_time,
            action_tokens=[[end - start for _, (start, end) in d.places] for d in episodes],
        )
    )
    sampled = [sum(end - start for _, (start, end) in drawn.places) for drawn in episodes]
    total = torch.zeros((), dtype=torch.float64)
    for drawn, of_turns, tokens in zip(episodes, advantages, sampled, strict=True):
        weight = 1.0 / tokens if aggregation == "sequence_mean" else 1.0
        for number, context in enumerate(drawn.trajectory.contexts):
            spans = [(*span, turn) for turn, (n, span) in enumerate(drawn.places) if n == number]
            places = [place for start, end, _ in spans for place in range(start, end)]
            credit = [
                of_turns[turn].item() for start, end, turn in spans for _ in range(start, end)
            ]
            now = forward_logprobs(model, context.ids)[places]
            before = torch.tensor(context.logprobs, dtype=torch.float64)[places]
            losses = token_losses(now, before, torch.tensor(credit, dtype=torch.float64))
            total = total + weight * losses.sum()
    normaliser = {"sequence_mean": len(episodes), "constant": 100 * len(episodes)}
    return total / normaliser.get(aggregation, sum(sampled))


def rewards_in_time(drawn: Drawn) -> list[float]:
    of_span = {
        (number, span): reward
        for number, context in enumerate(drawn.trajectory.contexts)
        for span, reward in zip(context.turns, context.turn_rewards, strict=True)
    }
    return [of_span[place] for place in drawn.places]


@pytest.mark.parametrize("shares", [False, True], ids=["own prefixes", "shared prefixes"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_loss_and_gradient_are_those_of_the_contexts_by_hand(
    name: str, shares: bool, accelerator: Accelerator
) -> None:
    model = tiny_model().double()
    groups = drawn_groups(model, shares=shares)
    expected = loss_by_hand(model, groups, name)
    expected.backward()
    by_hand = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    algorithm = make_algorithm(name.partition(",")[0], old_logprobs="engine", **ALGORITHMS[name][0])
    for tokens in (100_000, 60):  # in one micro-batch; a context or two in each
        trained = tiny_model().double()
        optimizer = KeepsGradients(trained.parameters(), learning_rate=0.1)
        given = UpdateSettings(algorithm, math.inf, tokens)
        found = update(Policy(trained), optimizer, trajectories(groups), given, accelerator).metrics
        assert found["loss"] == pytest.approx(expected.item(), rel=1e-4)
        assert found["tokens/trained"] == sum(
            end - start for group in groups for d in group for _, (start, end) in d.places
        )
        assert found["episodes/with_gradient"] == 5
        for ours, theirs in zip(optimizer.gradients, by_hand, strict=True):
            torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-6)


def test_what_contexts_share_is_packed_once() -> None:
    (first, *_), _ = drawn_groups(MODEL, shares=True)
    episode = first.trajectory
    batch = packed_batch([CreditedTrajectory(episode, torch.ones(episode.steps))], CPU)
    begun = sum(c.prompt_length for c in episode.branches)
    own = episode.tokens - len(batch.packed.ids)
    assert 0.7 * begun < own < begun
    for index, context in zip(batch.packed.index, episode.contexts, strict=True):
        assert batch.packed.ids[index].tolist() == context.ids


def test_contexts_of_a_group_fill_micro_batches_to_their_size() -> None:
    groups = trajectories(drawn_groups(MODEL, shares=True))
    credited = [[CreditedTrajectory(t, torch.ones(t.steps)) for t in group] for group in groups]
    for tokens in (1, 100, 200, 100_000):
        batches = split(credited, tokens)
        assert sum(map(len, batches)) == sum(len(t.contexts) for group in groups for t in group)
        for batch in batches:
            most = tokens + WORTH_SHARING * len(batch)  # what is shared may be too short to pack
            assert len(batch) == 1 or len(packed_batch(batch, CPU).packed.ids) <= most
    assert len(split(credited, 100_000)) == 1


# --- In order of time

contexts_of_actions = st.lists(st.integers(0, 4), min_size=1, max_size=8).map(numbered)


def drawn(order: list[int], seed: int) -> Drawn:
    random = np.random.default_rng(seed)
    rewards = [float(reward) for reward in random.normal(size=len(order))]
    return drawn_episode(MODEL, order, [1, 2, 3], rewards, random, shares=bool(seed % 2))


@settings(max_examples=30, deadline=None)
@given(contexts_of_actions, st.integers(0, 99))
def test_an_episode_is_its_contexts_put_together(order: list[int], seed: int) -> None:
    episode = drawn(order, seed).trajectory
    contexts = alone(episode)
    assert together(episode, contexts) == episode
    assert [c.ids for c in contexts] == [c.ids for c in episode.contexts]
    assert not any(context.branches or context.order for context in contexts)
    assert sum(context.action_tokens for context in contexts) == episode.action_tokens
    assert sum(context.reward for context in contexts) == pytest.approx(episode.reward)


@settings(max_examples=30, deadline=None)
@given(contexts_of_actions, st.integers(0, 99))
def test_tokens_are_divided_among_contexts_and_put_back(order: list[int], seed: int) -> None:
    one = drawn(order, seed)
    episode, tokens = one.trajectory, torch.arange(one.trajectory.action_tokens)
    parts = divided(tokens, episode)
    assert merged(parts, episode).tolist() == tokens.tolist()
    lengths = [end - start for _, (start, end) in one.places]
    assert turn_lengths(episode) == lengths
    for number, part in enumerate(parts):
        turns = tokens.split(lengths)
        own = [
            t for turn, (n, _) in zip(turns, one.places, strict=True) if n == number for t in turn
        ]
        assert part.tolist() == own


@settings(max_examples=30, deadline=None)
@given(contexts_of_actions, st.integers(0, 99))
def test_estimators_see_turns_in_order_of_time(order: list[int], seed: int) -> None:
    one = drawn(order, seed)
    batch = reward_batch([[one.trajectory]])
    rewards = rewards_in_time(one)
    assert batch.turn_rewards == [rewards]
    assert batch.rewards.tolist() == pytest.approx([sum(rewards)])
    parts = batch.token_rewards[0].split(list(batch.action_tokens[0]))
    assert [part.sum().item() for part in parts] == pytest.approx(rewards)


def test_the_advantages_of_tokens_are_told_context_by_context() -> None:
    group = [d.trajectory for d in drawn_groups(MODEL, shares=False)[0]]
    learned = with_advantages([group], make_algorithm("turn_level").estimator)
    (told,) = by_token(learned, [group], [group])
    assert told is not None
    for trajectory, credited, values in zip(group, learned[0], told, strict=True):
        mask = [bit for context in trajectory.contexts for bit in context.action_mask]
        assert [bool(bit) for bit in mask] == [value != 0 for value in values]
        turns = credited.advantages.tolist()
        left = iter([v for v in values if v])
        for number in range(len(trajectory.contexts)):
            own = [turn for turn, context in enumerate(trajectory.order) if context == number]
            for turn in own:
                for _ in range(turn_lengths(trajectory)[turn]):
                    assert next(left) == pytest.approx(turns[turn])


# --- Beside the loss


def test_the_divergence_in_the_reward_is_that_of_each_context(accelerator: Accelerator) -> None:
    groups = trajectories(drawn_groups(MODEL, shares=True))
    groups = [[replace(t, reward_parts={"own": t.reward}) for t in group] for group in groups]
    kl = Kl(coefficient=0.3, place="reward")
    how: dict[str, Any] = {"tokens_per_microbatch": 200}
    ours, mean = penalised(groups, kl, Reference(tiny_model(seed=1)), accelerator, **how)
    apart = [[context for t in group for context in alone(t)] for group in groups]
    theirs, other = penalised(apart, kl, Reference(tiny_model(seed=1)), accelerator, **how)
    assert mean == pytest.approx(other, rel=1e-5)
    for group, others, before in zip(ours, theirs, groups, strict=True):
        left = iter(others)
        for trajectory, was in zip(group, before, strict=True):
            assert trajectory.order == was.order
            cost = (was.reward - trajectory.reward) / 0.3
            assert trajectory.reward_parts[KL_PART] == pytest.approx(-cost, rel=1e-4)
            for context in trajectory.contexts:
                expected = next(left)
                assert context.turn_rewards == pytest.approx(expected.turn_rewards, abs=1e-5)
                assert context.token_rewards == pytest.approx(expected.token_rewards, abs=1e-5)


@pytest.mark.parametrize("own", [False, True], ids=["another model", "the policy with a hint"])
def test_a_teacher_reads_each_context_and_has_a_hint_in_the_first(
    own: bool, accelerator: Accelerator
) -> None:
    groups = trajectories(drawn_groups(MODEL, shares=True))
    groups = [
        [replace(t, teacher_prompt_ids=[7, 8, *t.ids[: t.prompt_length]]) for t in group]
        for group in groups
    ]
    other = tiny_model(seed=2)
    teacher = Teacher("policy" if own else other, weight=0.5, hints=True)
    teaching = Teaching.of(teacher, MODEL, other, temperature=1.0)
    credited = [[CreditedTrajectory(t, torch.ones(t.steps)) for t in group] for group in groups]
    ours, told = taught(credited, teaching, accelerator, tokens_per_microbatch=150)
    apart = [[context for e in group for context in e.contexts] for group in credited]
    theirs, _ = taught(apart, teaching, accelerator, tokens_per_microbatch=150)
    assert told["teacher/episodes"] == told["teacher/hinted"] == 1.0
    for group, others in zip(ours, theirs, strict=True):
        found = [context.token_advantages for episode in group for context in episode.contexts]
        for part, context in zip(found, others, strict=True):
            torch.testing.assert_close(part, context.token_advantages)
            first = bool(context.trajectory.teacher_prompt_ids)
            assert (part != 1.0).any().item() == (first or not own)


def test_a_bound_on_staleness_holds_in_each_context() -> None:
    one = drawn([0, 1, 0, 1], 3)
    contexts = [
        replace(c, versions=[VersionSpan(*span, number + n) for n, span in enumerate(c.turns)])
        for number, c in enumerate(alone(one.trajectory))
    ]
    episode = together(one.trajectory, contexts)  # versions 0, 1, 1, 2 in order of time
    assert sorted(set(token_versions(episode).tolist())) == [0, 1, 2]
    bounded = within(episode, 1)
    assert set(token_versions(bounded).tolist()) == {1, 2}
    assert bounded.order == episode.order and bounded.all_turn_rewards == episode.all_turn_rewards
    assert bounded.branches == episode.branches
    assert bounded.action_mask[: episode.turns[0].end] == [0] * episode.turns[0].end
    assert set(token_versions(within(episode, 2)).tolist()) == {2}


def test_experts_are_those_of_each_context() -> None:
    one = drawn([0, 1, 0], 1)
    contexts = [
        replace(c, experts=np.full((len(c.ids), 2, 1), number, dtype=np.int16))
        for number, c in enumerate(alone(one.trajectory))
    ]
    episode = together(one.trajectory, contexts)
    batch = packed_batch([CreditedTrajectory(episode, torch.ones(3))], CPU)
    assert batch.experts is not None
    for number, (index, context) in enumerate(
        zip(batch.packed.index, episode.contexts, strict=True)
    ):
        sampled = index[np.flatnonzero(context.action_mask)]
        assert batch.experts[sampled].unique().tolist() == [number]


def small(family: str, scale: float) -> Any:
    return tiny(family, vocab_size=1024, initializer_range=scale)


@pytest.mark.parametrize("family", ["llama", "lfm2"], ids=["packed", "padded"])
def test_what_is_in_the_loss_beside_rewards_is_that_of_each_context(
    family: str, accelerator: Accelerator
) -> None:
    """With all tokens alike, the contexts of an episode are as good as episodes of their own."""
    groups = trajectories(drawn_groups(MODEL, shares=True))
    apart = [[context for t in group for context in alone(t)] for group in groups]
    teacher = Teacher(small(family, 0.13), estimator="exact")
    algorithm = make_algorithm(
        "distillation",
        teacher=teacher,
        kl=Kl(0.2, place="loss"),
        entropy_bonus=0.1,
        importance_level="sequence",
        importance_cap=1.5,
    )
    found = []
    for each in (groups, apart):
        model = small(family, 0.1)
        optimizer = KeepsGradients(model.parameters(), learning_rate=0.1)
        metrics = update(
            Policy(model),
            optimizer,
            each,
            UpdateSettings(algorithm, math.inf, 120),
            accelerator,
            Reference(small(family, 0.12)),
            Teaching.of(teacher, model, teacher.model, temperature=1.0),
        ).metrics
        found.append((metrics, optimizer.gradients))
    (ours, gradients), (theirs, others) = found
    for name in ("loss", "kl", "entropy", "teacher/kl", "engine/capped", "tokens/trained"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-3), name
    assert ours["episodes/with_gradient"] == 5 and 0 < ours["engine/capped"] < 1
    for mine, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


def test_demonstrations_are_learned_in_all_contexts(accelerator: Accelerator) -> None:
    episodes = [each.trajectory for group in drawn_groups(MODEL, shares=True) for each in group]
    likelihoods = [
        forward_logprobs(MODEL, context.ids)[torch.tensor(context.action_mask).bool()]
        for episode in episodes
        for context in episode.contexts
    ]
    model = tiny_model()
    optimizer = KeepsGradients(model.parameters(), learning_rate=0.1)
    given = UpdateSettings(make_algorithm("rejection"), math.inf, 150)
    told = imitate(Policy(model), optimizer, episodes, given, accelerator)
    assert told["loss"] == pytest.approx(-torch.cat(likelihoods).mean().item(), rel=1e-4)
    assert told["tokens/trained"] == sum(map(len, likelihoods))
