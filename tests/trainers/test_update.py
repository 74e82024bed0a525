"""One optimisation step, held against a loss computed by hand on separate sequences."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from gymnast.agents.tiny import tiny_model
from gymnast.trainers.advantages import ESTIMATORS, grpo, rloo
from gymnast.trainers.optimizer import MasterAdamW
from gymnast.trainers.policy import Policy
from gymnast.trainers.update import UpdateSettings, update
from gymnast.types import Span, StopReason, Trajectory

SETTINGS = UpdateSettings(
    estimator=ESTIMATORS["rloo"],
    clip_low=0.2,
    clip_high=0.3,
    max_grad_norm=math.inf,
    tokens_per_microbatch=2048,
)
Groups = list[list[Trajectory]]


class KeepsGradients(MasterAdamW):
    """An AdamW whose last gradients can be looked at."""

    def step(self, norm: torch.Tensor, max_norm: float) -> None:
        self.gradients = [master.grad for master in self.master if master.grad is not None]
        super().step(norm, max_norm)


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator()


def run(
    accelerator: Accelerator, model: Any, groups: Groups, settings: UpdateSettings = SETTINGS
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Take one step; returns its metrics and the gradients it took."""
    optimizer = KeepsGradients(model.parameters(), learning_rate=0.1)
    optimizer.gradients = []
    metrics = update(Policy(model), optimizer, groups, settings, accelerator)
    return metrics, optimizer.gradients


def random_groups(model: Any, rewards: list[list[float]], seed: int = 0) -> Groups:
    """Groups of episodes with two actions each, sampled by a policy near the model."""
    random = np.random.default_rng(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [int(t) for t in random.integers(0, 1000, random.integers(low, high))]

    groups = []
    for group_rewards in rewards:
        prompt = tokens(20, 40)
        group = []
        for reward in group_rewards:
            first, observed, second = tokens(1, 20), tokens(5, 40), tokens(1, 20)
            ids = prompt + first + observed + second
            mask = [0] * len(prompt) + [1] * len(first) + [0] * len(observed) + [1] * len(second)
            near = forward_logprobs(model, ids).detach() + torch.tensor(
                random.normal(scale=0.3, size=len(ids))
            )
            start = len(prompt)
            group.append(
                Trajectory(
                    ids=ids,
                    action_mask=mask,
                    logprobs=[p * bit for p, bit in zip(near.tolist(), mask, strict=True)],
                    prompt_length=start,
                    turns=[Span(start, start + len(first)), Span(len(ids) - len(second), len(ids))],
                    turn_rewards=[0.0, reward],
                    stop_reason=StopReason.answered,
                    terminated=True,
                    truncated=False,
                )
            )
        groups.append(group)
    return groups


def forward_logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    """The log-probability of every token but the first (which gets 0), in a plain forward."""
    tokens = torch.tensor(ids)
    logprobs = torch.log_softmax(model(tokens[None]).logits[0, :-1].double(), dim=-1)
    chosen = logprobs.gather(1, tokens[1:, None])[:, 0]
    return torch.cat([torch.zeros(1, dtype=chosen.dtype), chosen])


def loss_by_hand(model: Any, groups: Groups, kernel: Any = rloo) -> torch.Tensor:
    """The clipped loss, token by token, over the number of action tokens of all groups."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for group in groups:
        advantages = kernel(torch.tensor([t.reward for t in group]))
        for trajectory, advantage in zip(group, advantages.tolist(), strict=True):
            now = forward_logprobs(model, trajectory.ids)
            for i, bit in enumerate(trajectory.action_mask):
                if bit:
                    ratio = torch.exp(now[i] - trajectory.logprobs[i])
                    bounded = min(max(ratio.item(), 0.8), 1.3) * advantage
                    term = ratio * advantage
                    total = total - (term if term.item() <= bounded else torch.tensor(bounded))
                    count += 1
    return total / count


def gradients_by_hand(model: Any, groups: Groups) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    loss = loss_by_hand(model, groups)
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return loss.item(), gradients


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), other.double(), rtol=1e-4, atol=1e-6)


# --- The loss


def test_loss_and_gradients_are_those_computed_by_hand(accelerator: Accelerator) -> None:
    model = tiny_model().double()
    groups = random_groups(model, [[0.0, 1.0, 1.0], [0.5, 0.0, 2.0]])
    loss, gradients = gradients_by_hand(model, groups)
    metrics, ours = run(accelerator, model, groups)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-4)
    assert_equal(ours, gradients)
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["tokens/trained"] == sum(t.action_tokens for g in groups for t in g)
    assert metrics["updates/skipped"] == 0.0
    assert 0 < metrics["clipped"] < 1
    assert metrics["engine/logprob_difference"] == pytest.approx(
        0.3 * (2 / math.pi) ** 0.5, rel=0.2
    )


def test_another_estimator_gives_another_loss(accelerator: Accelerator) -> None:
    groups = random_groups(tiny_model(), [[0.0, 1.0, 1.0], [0.5, 0.0, 2.0]])
    for name, kernel in (("grpo", grpo), ("rloo", rloo)):
        model = tiny_model()
        settings = replace(SETTINGS, estimator=ESTIMATORS[name])
        metrics, _ = run(accelerator, model, groups, settings)
        expected = loss_by_hand(tiny_model(), groups, kernel).item()
        assert metrics["loss"] == pytest.approx(expected, rel=1e-4)


def test_groups_without_advantage_are_skipped_and_counted(accelerator: Accelerator) -> None:
    """Their tokens are in the number that the loss is divided by, as if they had been computed."""
    model = tiny_model().double()
    groups = random_groups(model, [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0]])
    _, gradients = gradients_by_hand(model, groups)
    metrics, ours = run(accelerator, model, groups)
    assert_equal(ours, gradients)
    assert metrics["episodes/with_gradient"] == 3
    assert metrics["tokens/trained"] == sum(t.action_tokens for g in groups for t in g)
    _, without = run(accelerator, tiny_model().double(), groups[:1])
    share = metrics["tokens/trained"] / sum(t.action_tokens for t in groups[0])
    assert_equal([gradient / share for gradient in without], gradients)


def test_observed_tokens_are_in_no_count(accelerator: Accelerator) -> None:
    """Observations after the last action change neither the loss nor what it is divided by."""
    groups = random_groups(tiny_model(), [[0.0, 1.0]])
    longer = [
        [
            replace(
                t,
                ids=t.ids + [7] * 50,
                action_mask=t.action_mask + [0] * 50,
                logprobs=t.logprobs + [0.0] * 50,
            )
            for t in group
        ]
        for group in groups
    ]
    metrics, gradients = run(accelerator, tiny_model(), groups)
    longer_metrics, longer_gradients = run(accelerator, tiny_model(), longer)
    assert longer_metrics["tokens/trained"] == metrics["tokens/trained"]
    assert longer_metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    assert_equal(longer_gradients, gradients)


@pytest.mark.parametrize("tokens", [1, 90, 200])
def test_gradients_do_not_depend_on_the_size_of_micro_batches(
    tokens: int, accelerator: Accelerator
) -> None:
    groups = random_groups(tiny_model(), [[0.0, 1.0, 0.5], [1.0, 0.0], [0.0, 2.0, 1.0]])
    whole, gradients = run(accelerator, tiny_model(), groups)
    settings = replace(SETTINGS, tokens_per_microbatch=tokens)
    parts, in_parts = run(accelerator, tiny_model(), groups, settings)
    assert_equal(in_parts, gradients)
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    assert parts["clipped"] == whole["clipped"]


# --- The step


def weights(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def unchanged(model: Any, before: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, weights(model), before))


def test_a_step_raises_what_was_better_than_the_rest(accelerator: Accelerator) -> None:
    model = tiny_model()
    groups = random_groups(model, [[0.0, 1.0]])
    # On policy: what was sampled has the model's own log-probabilities.
    worse, better = (
        replace(t, logprobs=[p * bit for p, bit in zip(own, t.action_mask, strict=True)])
        for t in groups[0]
        for own in [forward_logprobs(model, t.ids).tolist()]
    )
    optimizer = MasterAdamW(model.parameters(), learning_rate=1e-4)
    metrics = update(Policy(model), optimizer, [[worse, better]], SETTINGS, accelerator)
    assert metrics["clipped"] == 0.0
    assert metrics["engine/logprob_difference"] < 1e-5

    def change(trajectory: Trajectory) -> float:
        now = forward_logprobs(model, trajectory.ids) * torch.tensor(trajectory.action_mask)
        return (now - torch.tensor(trajectory.logprobs)).sum().item()

    assert change(better) > 0 > change(worse)


@pytest.mark.parametrize("groups_of", [[], [[1.0, 1.0], [0.0, 0.0]], [[3.0]]])
def test_where_nothing_is_better_than_the_rest_nothing_is_learned(
    groups_of: list[list[float]], accelerator: Accelerator
) -> None:
    model = tiny_model()
    before = weights(model)
    metrics, _ = run(accelerator, model, random_groups(model, groups_of))
    assert unchanged(model, before)
    assert metrics["loss"] == metrics["grad_norm"] == metrics["episodes/with_gradient"] == 0.0


def test_a_loss_that_is_no_number_skips_the_update_and_the_next_one_works(
    accelerator: Accelerator,
) -> None:
    model = tiny_model()
    before = weights(model)
    groups = random_groups(model, [[0.0, 1.0]])
    broken = replace(groups[0][0], logprobs=[math.nan] * len(groups[0][0].ids))
    optimizer = MasterAdamW(model.parameters(), learning_rate=1e-3)
    policy = Policy(model)
    metrics = update(policy, optimizer, [[broken, groups[0][1]]], SETTINGS, accelerator)
    assert metrics["updates/skipped"] == 1.0
    assert unchanged(model, before) and optimizer.steps == 0
    metrics = update(policy, optimizer, groups, SETTINGS, accelerator)
    assert metrics["updates/skipped"] == 0.0 and math.isfinite(metrics["loss"])
    assert not unchanged(model, before)
    assert all(torch.isfinite(weight).all() for weight in weights(model))
