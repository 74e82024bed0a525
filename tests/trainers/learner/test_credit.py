"""Advantages by turn and by token: what an estimator sees, what it may return, what is trained."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import ConfigError
from gymnast.trainers import Kl, RewardBatch, advantages, make_algorithm
from gymnast.trainers.algorithms.advantages import ESTIMATORS
from gymnast.trainers.learner.credit import advantage_metrics, has_spread, with_advantages
from gymnast.trainers.learner.policy.micro_batches import micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.types import Span, StopReason, Trajectory
from sampled_groups import Groups, KeepsGradients, forward_logprobs, random_groups

CPU = torch.device("cpu")


def episode(*turns: tuple[int, float], prompt: int = 2, **more: Any) -> Trajectory:
    """An episode of turns of (action tokens, reward), with one observed token between them."""
    ids, mask, spans = [1] * prompt, [0] * prompt, []
    for tokens, _ in turns:
        spans.append(Span(len(ids), len(ids) + tokens))
        ids += [*range(10, 10 + tokens), 2]
        mask += [1] * tokens + [0]
    return Trajectory(
        ids=ids,
        action_mask=mask,
        logprobs=[0.0] * len(ids),
        prompt_length=prompt,
        turns=spans,
        turn_rewards=[reward for _, reward in turns],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        **more,
    )


@pytest.mark.parametrize(
    ("name", "rewards", "parts", "spread"),
    [
        ("grpo", [1.0, 1.0], [], False),
        ("grpo", [1.0, 0.0], [], True),
        ("grpo", [1.0], [], False),
        # The rewards are alike, and their parts are not.
        ("grpo", [1.0, 1.0], [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}], False),
        ("gdpo", [1.0, 1.0], [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 2.0}], True),
        ("gdpo", [1.0, 1.0], [{"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 0.0}], False),
    ],
)
def test_an_estimator_says_by_what_it_looks_at_whether_a_group_has_spread(
    name: str, rewards: list[float], parts: list[dict[str, float]], spread: bool
) -> None:
    given = parts or [{}] * len(rewards)
    group = [episode((2, r), reward_parts=p) for r, p in zip(rewards, given, strict=True)]
    assert has_spread(group, ESTIMATORS[name], {"b": 0.7}) is spread


def test_turns_that_differ_are_spread_to_an_estimator_of_turns() -> None:
    """Early in one episode, late in the other: the rewards of the whole are alike."""
    group = [episode((1, 1.0), (1, 0.0)), episode((1, 0.0), (1, 1.0))]
    assert has_spread(group, ESTIMATORS["turn_level"])
    assert not has_spread(group, ESTIMATORS["grpo"])


def seen(groups: Groups) -> RewardBatch:
    """What an estimator is given."""
    batches: list[RewardBatch] = []

    def watch(batch: RewardBatch) -> list[torch.Tensor]:
        batches.append(batch)
        return [torch.zeros(len(rewards)) for rewards in batch.turn_rewards]

    with_advantages(groups, watch)
    return batches[0]


def learned(
    algorithm: Any, groups: Groups, tokens: int = 2048
) -> tuple[dict[str, float], list[torch.Tensor]]:
    model = tiny_model()
    optimizer = KeepsGradients(model.parameters(), learning_rate=0.1)
    optimizer.gradients = []
    settings = UpdateSettings(algorithm, math.inf, tokens)
    reference = Reference(tiny_model(seed=1))
    metrics = update(Policy(model), optimizer, groups, settings, Accelerator(), reference).metrics
    return metrics, optimizer.gradients


# --- What an estimator sees


def test_an_entry_is_an_episode_with_its_turns_tokens_and_states() -> None:
    first, second = episode((3, 0.5), (0, 1.0), (2, 2.0)), episode((1, 1.0))
    batch = seen([[first], [second]])
    assert batch.rewards.tolist() == [3.5, 1.0]
    assert batch.group.tolist() == [0, 1]
    assert batch.turn_rewards == [[0.5, 1.0, 2.0], [1.0]]
    assert batch.action_tokens == [[3, 0, 2], [1]]
    assert batch.states is None
    known = replace(first, states=["start", "door", "door"])
    assert seen([[known, second]]).states is None, "comparing some with none is no comparison"
    assert seen([[known], [replace(second, states=["start"])]]).states == [
        ["start", "door", "door"],
        ["start"],
    ]


def test_rewards_by_token_are_the_episodes_own_or_those_of_its_turns() -> None:
    by_turn = episode((3, 0.5), (0, 1.0), (2, 2.0))
    by_token = episode((2, 3.0), (1, 4.0), token_rewards=[0.0, 0.0, 1.0, 2.0, 0.0, 4.0, 0.0])
    rewards = [values.tolist() for values in seen([[by_turn, by_token]]).token_rewards]
    assert rewards == [[0.0, 0.0, 0.5, 0.0, 2.0], [1.0, 2.0, 4.0]]


def test_a_divergence_in_the_reward_is_taken_from_each_token() -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    groups = random_groups(model, [[0.0, 1.0], [2.0, 0.5]])
    batches: list[RewardBatch] = []

    def watch(batch: RewardBatch) -> list[torch.Tensor]:
        batches.append(batch)
        return [torch.zeros(len(rewards)) for rewards in batch.turn_rewards]

    learned(make_algorithm(estimator=watch, kl=Kl(0.1, "k1", "reward")), groups)
    (batch,) = batches
    trajectories = [trajectory for group in groups for trajectory in group]
    for number, trajectory in enumerate(trajectories):
        reference = forward_logprobs(other, trajectory.ids).detach()
        costs = 0.1 * (torch.tensor(trajectory.logprobs) - reference)
        (a, b), (c, d) = trajectory.turns
        expected = -torch.cat([costs[a:b], costs[c:d]])
        expected[-1] += trajectory.reward
        torch.testing.assert_close(
            batch.token_rewards[number], expected.float(), atol=1e-4, rtol=1e-4
        )
        by_turn = [part.sum().item() for part in batch.token_rewards[number].split([b - a, d - c])]
        assert batch.turn_rewards[number] == pytest.approx(by_turn, abs=1e-4)


# --- What an estimator returns


turns = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0])), max_size=3)


@given(st.lists(st.lists(turns, max_size=3), max_size=3), st.randoms(use_true_random=False))
def test_an_advantage_by_turn_or_by_token_reaches_its_tokens(shapes: Any, random: Any) -> None:
    groups = [[episode(*shape) for shape in group] for group in shapes]

    @advantages.by_turn
    def by_turn(batch: RewardBatch) -> list[torch.Tensor]:
        return [
            torch.tensor([random.choice([0.0, 0.0, -1.5, 2.0]) for _ in rewards])
            for rewards in batch.turn_rewards
        ]

    given_by_turn: list[torch.Tensor] = []

    @advantages.by_token
    def spread(batch: RewardBatch) -> list[torch.Tensor]:
        return [
            values.repeat_interleave(torch.tensor(counts, dtype=torch.long))
            for values, counts in zip(given_by_turn, batch.action_tokens, strict=True)
        ]

    of_turns = [e for group in with_advantages(groups, by_turn) for e in group]
    given_by_turn += [e.advantages for e in of_turns]
    of_tokens = [e for group in with_advantages(groups, spread) for e in group]
    for one, other in zip(of_turns, of_tokens, strict=True):
        assert one.token_advantages.tolist() == other.token_advantages.tolist()
        assert len(one.token_advantages) == one.trajectory.action_tokens
        assert one.trains == other.trains == any(one.token_advantages.tolist())
    if of_turns:
        laid_out = [micro_batch(episodes, CPU).advantages for episodes in (of_turns, of_tokens)]
        assert laid_out[0].tolist() == laid_out[1].tolist()
        assert len(laid_out[0]) == sum(e.trajectory.action_tokens for e in of_turns)


# One group of one episode: turns of 0, 1 and 2 tokens, so that either kind has three numbers.
AS_MANY_TURNS_AS_TOKENS = [[episode((0, 0.0), (1, 0.0), (2, 0.0))]]


def test_an_estimator_by_token_is_read_by_token_where_there_are_as_many_turns() -> None:
    @advantages.by_token
    def tokens(batch: RewardBatch) -> list[torch.Tensor]:
        return [torch.tensor([1.0, 2.0, 3.0])]

    @advantages.by_turn
    def turns(batch: RewardBatch) -> list[torch.Tensor]:
        return [torch.tensor([1.0, 2.0, 3.0])]

    ((of_tokens,),) = with_advantages(AS_MANY_TURNS_AS_TOKENS, tokens)
    ((of_turns,),) = with_advantages(AS_MANY_TURNS_AS_TOKENS, turns)
    assert of_tokens.token_advantages.tolist() == [1.0, 2.0, 3.0]
    assert of_turns.token_advantages.tolist() == [2.0, 3.0, 3.0]
    ((of_part,),) = with_advantages(
        AS_MANY_TURNS_AS_TOKENS, make_algorithm(estimator=tokens).estimator
    )
    assert of_part.token_advantages.tolist() == [1.0, 2.0, 3.0]


def test_an_estimator_without_a_mark_is_refused_only_where_it_may_mean_either() -> None:
    def unmarked(batch: RewardBatch) -> list[torch.Tensor]:
        return [torch.ones(len(rewards)) for rewards in batch.turn_rewards]

    message = (
        r"algorithm.estimator: unmarked gave as many advantages as there are turns, and there are "
        r"as many action tokens in each trajectory of the batch; say which they are: mark it with "
        r"@advantages.by_turn or @advantages.by_token"
    )
    with pytest.raises(ConfigError, match=message):
        with_advantages(AS_MANY_TURNS_AS_TOKENS, unmarked)
    with_advantages([[episode((1, 0.0), (1, 1.0))]], unmarked)  # each turn is a token: either way
    with_advantages([[*AS_MANY_TURNS_AS_TOKENS[0], episode((2, 0.0))]], unmarked)
    for name, part in ESTIMATORS.items():
        own = part.function.__module__.startswith("gymnast.trainers")
        assert not own or part.mark("gives"), f"{name} says what it gives"


def test_a_marked_estimator_that_gives_the_other_kind_is_refused() -> None:
    @advantages.by_token
    def wrong(batch: RewardBatch) -> list[torch.Tensor]:
        return [torch.zeros(len(rewards)) for rewards in batch.turn_rewards]

    message = (
        r"wrong gave a tensor of shape \[1\] for trajectory 0 .* 3 action tokens; .* @by_token says"
    )
    with pytest.raises(ConfigError, match=message):
        with_advantages([[episode((3, 0.0))]], wrong)


@pytest.mark.parametrize(
    ("loss", "aggregation"), [("clipped", "token_mean"), ("gspo", "sequence_mean")]
)
def test_one_advantage_a_token_teaches_as_one_a_turn_does(loss: str, aggregation: str) -> None:
    """Bit for bit, with a trajectory that is skipped for having none."""
    groups = random_groups(tiny_model(), [[0.0, 1.0, 3.0], [0.0], [2.0, 0.0]])
    by_turn = make_algorithm("turn_level", gamma=0.5, loss=loss, aggregation=aggregation)

    def by_token(batch: RewardBatch) -> list[torch.Tensor]:
        pairs = zip(by_turn.estimator(batch), batch.action_tokens, strict=True)
        return [values.repeat_interleave(torch.tensor(counts)) for values, counts in pairs]

    algorithm = make_algorithm(estimator=by_token, loss=loss, aggregation=aggregation)
    metrics, gradients = learned(algorithm, groups, 90)
    expected, theirs = learned(by_turn, groups, 90)
    means = {"advantage/mean_abs", "advantage/std"}  # over tokens, and over turns
    for name in metrics.keys() - means:
        assert metrics[name] == expected[name], name
    assert metrics["episodes/with_gradient"] == 5
    assert all(map(torch.equal, gradients, theirs))


def test_metrics_are_over_what_the_estimator_gives_an_advantage() -> None:
    groups = [[episode((3, 0.0)), episode((1, 1.0), (1, 0.0))]]

    def by_token(batch: RewardBatch) -> list[torch.Tensor]:
        return [torch.tensor([1.0, 1.0, 4.0]), torch.tensor([0.0, 0.0])]

    metrics = advantage_metrics(with_advantages(groups, by_token))
    assert metrics["advantage/mean_abs"] == pytest.approx(6 / 5)
    assert metrics["advantage/episodes"] == 0.5


def test_other_lengths_are_errors_that_name_estimator_and_trajectory() -> None:
    groups = [[episode((3, 0.0)), episode((1, 1.0), (4, 0.0))]]
    results: list[tuple[Any, str]] = [
        (None, r"gave NoneType; it must give a list with one tensor a trajectory"),
        ([torch.zeros(1)], r"gave 1 advantages for 2 trajectories"),
        (
            [torch.zeros(1), torch.zeros(4)],
            r"shape \[4\] for trajectory 1 .* has 2 turns and 5 action tokens; .*one an action",
        ),
        (torch.zeros(2), r"shape \[\] for trajectory 0 .* has 1 turns and 3 action tokens"),
        ([torch.zeros(1, 1), torch.zeros(2, 1)], r"shape \[1, 1\] for trajectory 0"),
        (
            [torch.zeros(3), torch.zeros(2)],
            r"a turn for trajectory 1 .*an action token for trajectory 0 .*the same kind for all",
        ),
    ]
    for result, message in results:

        def mistaken(batch: RewardBatch, result: Any = result) -> Any:
            return result

        for estimator in (mistaken, make_algorithm(estimator=mistaken).estimator):
            with pytest.raises(ConfigError, match=rf"algorithm.estimator: mistaken .*{message}"):
                with_advantages(groups, estimator)


# --- An estimator of one's own


def gae(
    batch: RewardBatch, *, gamma: float = 1.0, lam: float = 1.0, value: float = 0.5
) -> list[torch.Tensor]:
    """Generalised advantages by token, for a critic that expects `value` everywhere."""
    results = []
    for rewards in batch.token_rewards:
        values = torch.cat([torch.full((len(rewards),), value), torch.zeros(1)])
        advantage, reversed_advantages = torch.tensor(0.0), []
        for t in reversed(range(len(rewards))):
            error = rewards[t] + gamma * values[t + 1] - values[t]
            advantage = error + gamma * lam * advantage
            reversed_advantages.append(advantage)
        results.append(torch.tensor(reversed_advantages[::-1]))
    return results


@pytest.mark.usefixtures("own_parts")
def test_an_estimator_by_token_is_one_function() -> None:
    """With a lambda of 1 it is what is earned from a token on, minus what was expected there."""
    advantages.estimator(gae)
    model = tiny_model()
    groups = random_groups(model, [[0.0, 2.0], [1.0, 1.0]])
    metrics, gradients = learned(make_algorithm("gae", gamma=0.9, loss="reinforce"), groups)
    ours = tiny_model()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for trajectory in (t for group in groups for t in group):
        now = forward_logprobs(ours, trajectory.ids)[torch.tensor(trajectory.action_mask) == 1]
        to_go = trajectory.reward * 0.9 ** torch.arange(len(now) - 1, -1, -1)
        total = total - ((to_go - 0.5) * now).sum()
        count += len(now)
    (total / count).backward()
    assert metrics["loss"] == pytest.approx((total / count).item(), rel=1e-4)
    for mine, weight in zip(gradients, ours.parameters(), strict=True):
        torch.testing.assert_close(mine, weight.grad, rtol=1e-3, atol=1e-5)


# --- Rewards that single precision cannot hold


@pytest.mark.parametrize("reward", [1e19, -1e39, 1e300])
@pytest.mark.parametrize("name", sorted({*ESTIMATORS} - {"gigpo", "state_baseline"}))
def test_rewards_out_of_range_are_not_learned_from(
    name: str, reward: float, caplog: pytest.LogCaptureFixture
) -> None:
    estimator = ESTIMATORS[name]
    large = episode((2, 0.0), (1, reward), row={"name": "large"})
    good, bad = episode((2, 1.0), (1, 0.0)), episode((1, 0.0), (2, 0.0))
    credited = with_advantages([[good, large, bad], [large]], estimator)
    alone = with_advantages([[good, bad]], estimator)
    assert [c.advantages.tolist() for c in (credited[0][0], credited[0][2])] == [
        c.advantages.tolist() for c in alone[0]
    ]
    assert not credited[0][1].trains and not credited[1][0].trains
    assert len(credited[0][1].token_advantages) == 3
    metrics = advantage_metrics(credited)
    assert metrics["advantage/out_of_range"] == 2 and all(map(math.isfinite, metrics.values()))
    assert "2 episodes are not learned from" in caplog.text and "'large'" in caplog.text
    assert has_spread([good, large, bad], estimator) == has_spread([good, bad], estimator)
    assert not has_spread([large], estimator)


def test_parts_and_tokens_out_of_range_are_not_learned_from() -> None:
    fine = episode((1, 1.0), reward_parts={"a": 1e18})
    parts = episode((1, 0.0), reward_parts={"a": 1e30, "b": -1e30})
    tokens = episode((2, 0.0), token_rewards=[0.0, 0.0, 1e30, -1e30, 0.0])
    metrics = advantage_metrics(with_advantages([[fine, parts, tokens]], ESTIMATORS["grpo"]))
    assert metrics["advantage/out_of_range"] == 2
    assert "advantage/out_of_range" not in advantage_metrics(
        with_advantages([[fine]], ESTIMATORS["grpo"])
    )
