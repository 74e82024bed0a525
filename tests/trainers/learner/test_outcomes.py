"""What the rewards of groups say: rows too hard or solved, and how long the best ones are."""

from typing import Any

import pytest

from gymnast.trainers.learner.outcomes import Outcomes
from gymnast.types import Span, StopReason, Trajectory

ALIKE = "advantage/groups_alike"


def episode(reward: float, *tokens: int) -> Trajectory:
    """An episode with one turn of each number of tokens."""
    ends = [sum(tokens[: number + 1]) for number in range(len(tokens))]
    return Trajectory(
        ids=[1, *range(sum(tokens))],
        action_mask=[0] + [1] * sum(tokens),
        logprobs=[0.0] * (1 + sum(tokens)),
        prompt_length=1,
        turns=[Span(1 + end - count, 1 + end) for end, count in zip(ends, tokens, strict=True)],
        turn_rewards=[0.0] * (len(tokens) - 1) + [reward],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )


def groups(*rewards: list[float]) -> list[list[Trajectory]]:
    return [[episode(reward, 2) for reward in group] for group in rewards]


def alike(found: dict[str, float]) -> tuple[float, float]:
    return found[f"{ALIKE}/lowest"], found[f"{ALIKE}/highest"]


def test_groups_at_the_lowest_and_at_the_highest_reward_of_a_batch_are_counted_apart() -> None:
    found = Outcomes().metrics(groups([0, 0], [0, 1], [0.5, 0.5], [1, 1], [0, 0], [1.0]))
    assert alike(found) == (2 / 5, 1 / 5), "a group of one is not compared"


def test_what_is_lowest_and_highest_is_remembered() -> None:
    outcomes = Outcomes()
    assert alike(outcomes.metrics(groups([0.2, 0.2]))) == (1, 1), "one reward is both"
    outcomes.metrics(groups([0.0, 1.0]))
    assert alike(outcomes.metrics(groups([0.2, 0.2]))) == (0, 0)
    continued = Outcomes()
    continued.load_state_dict(outcomes.state_dict())
    assert alike(continued.metrics(groups([1, 1], [0, 0], [0, 0]))) == (2 / 3, 1 / 3)


def test_rewards_of_groups_that_were_replaced_are_seen_and_not_counted() -> None:
    learned = groups([0.2, 0.2], [0.2, 0.5])
    outcomes = Outcomes()
    found = outcomes.metrics(learned, [*learned, *groups([0.0, 0.0], [1.0, 1.0])])
    assert alike(found) == (0, 0)
    assert (outcomes.lowest, outcomes.highest) == (0.0, 1.0)


def test_lengths_compare_the_best_of_a_group_with_its_others() -> None:
    hopeless = [episode(0, 50), episode(0, 70)]
    learnt = [episode(1, 3, 4), episode(1, 5), episode(0, 10, 10, 10), episode(0.5, 2)]
    found = Outcomes().metrics([hopeless, learnt])
    lengths = {name: value for name, value in found.items() if name.startswith("episodes/")}
    assert lengths == {
        "episodes/best/tokens": 6.0,
        "episodes/best/turns": 1.5,
        "episodes/rest/tokens": 16.0,
        "episodes/rest/turns": 2.0,
    }


@pytest.mark.parametrize("batch", [[], [[]], [[episode(1.0, 2)]]])
def test_nothing_to_compare_says_nothing(batch: Any) -> None:
    assert Outcomes().metrics(batch) == {}
