"""Episodes without a single action token: they are compared with others, and teach nothing."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers import Kl, make_algorithm
from gymnast.trainers.algorithms.algorithm import names
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.types import Span, Trajectory
from sampled_groups import Groups, KeepsGradients, random_groups

TAUGHT = "distillation"  # which learns from a teacher alone
NAMES = [name for name in names() if name != TAUGHT]
ALGORITHMS: dict[str, dict[str, Any]] = {name: {"name": name} for name in NAMES} | {
    "kl in the loss": {"kl": Kl(0.1)},
    "kl in the reward": {"kl": Kl(0.1, "k1", "reward")},
    "entropy": {"entropy_bonus": 0.1},
    "importance": {"importance_cap": 2.0},
    "sequence mean": {"aggregation": "sequence_mean"},
    "minibatches": {"epochs": 2, "minibatches": 3},
    "gspo and all": {
        "name": "gspo",
        "minibatches": 2,
        "kl": Kl(0.1, "k2"),
        "entropy_bonus": 0.1,
    },
}


def small(seed: int = 0) -> Any:
    return tiny_model(seed=seed, num_hidden_layers=1, hidden_size=32, intermediate_size=32)


def silent(trajectory: Trajectory, *, turns: int = 2) -> Trajectory:
    """The same without what was sampled, but for its turns' places and reward."""
    start = trajectory.prompt_length
    rewards = [0.0] * (turns - 1) + [trajectory.reward] if turns else []
    return replace(
        trajectory,
        ids=[*trajectory.ids[:start], 7, 8],
        action_mask=[0] * (start + 2),
        logprobs=[0.0] * (start + 2),
        turns=[Span(start, start)] * turns,
        turn_rewards=rewards,
        reward_parts={"own": trajectory.reward},
    )


def places(pattern: str) -> Groups:
    """Groups of which x speaks, o samples nothing in two turns, and - has no turn."""
    words = pattern.split()
    groups = random_groups(small(), [[float(n % 3) for n in range(len(w))] for w in words])
    turns = {"o": 2, "-": 0}
    played = [
        [
            t if kind == "x" else silent(t, turns=turns[kind])
            for kind, t in zip(word, group, strict=True)
        ]
        for word, group in zip(words, groups, strict=True)
    ]
    return [[replace(t, states=range(len(t.turns))) for t in group] for group in played]


def learned(algorithm: dict[str, Any], groups: Groups, tokens: int) -> tuple[Any, Any]:
    model = small()
    optimizer = KeepsGradients(model.parameters(), learning_rate=1e-3)
    optimizer.gradients = []
    settings = UpdateSettings(make_algorithm(**algorithm), math.inf, tokens)
    reference = Reference(small(seed=1))
    metrics = update(Policy(model), optimizer, groups, settings, Accelerator(), reference).metrics
    return metrics, optimizer


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=list(ALGORITHMS))
@pytest.mark.parametrize(
    ("pattern", "tokens", "learns"),
    [
        ("xxo oox ooo -x- --", 1, True),
        ("xxo oox ooo -x- --", 2048, True),
        ("oo o- --", 2048, False),
    ],
)
def test_empty_completions_break_no_step(
    algorithm: dict[str, Any], pattern: str, tokens: int, learns: bool
) -> None:
    groups = places(pattern)
    metrics, optimizer = learned(algorithm, groups, tokens)
    assert all(math.isfinite(value) for value in metrics.values()), metrics
    assert metrics["updates/skipped"] == 0
    assert metrics["tokens/trained"] == sum(t.action_tokens for g in groups for t in g)
    assert (optimizer.steps > 0) == learns


def test_other_episodes_learn_as_if_an_empty_one_had_said_something_that_does_not_count() -> None:
    """Its reward is in the group's mean; the tokens of the others have the gradient of that."""
    groups = places("xox")
    _, ours = learned({"name": "rloo"}, groups, 2048)
    one, three = groups[0][0], groups[0][2]
    rewards = [t.reward for t in groups[0]]
    wanted = [rewards[n] - (sum(rewards) - rewards[n]) / 2 for n in (0, 2)]

    def fixed(batch: Any) -> list[torch.Tensor]:
        return [torch.full((2,), value) for value in wanted]

    _, theirs = learned({"name": "rloo", "estimator": fixed}, [[one, three]], 2048)
    for mine, other in zip(ours.gradients, theirs.gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_a_divergence_in_the_reward_costs_empty_completions_nothing() -> None:
    metrics, _ = learned(ALGORITHMS["kl in the reward"], places("xox"), 2048)
    alone, _ = learned(ALGORITHMS["kl in the reward"], places("xox"), 1)
    assert metrics["kl"] == pytest.approx(alone["kl"], rel=1e-4) and metrics["kl"] != 0
