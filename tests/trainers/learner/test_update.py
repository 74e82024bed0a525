"""One optimisation step, held against a loss computed by hand on separate sequences."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.algorithms.advantages import grpo, rloo
from gymnast.trainers.algorithms.aggregations import AGGREGATIONS
from gymnast.trainers.algorithms.algorithm import make_algorithm
from gymnast.trainers.algorithms.kl import Kl
from gymnast.trainers.algorithms.losses import LOSSES
from gymnast.trainers.learner.kl_in_reward import penalised
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.types import StopReason, Trajectory
from sampled_groups import Groups, KeepsGradients, forward_logprobs, random_groups

# Ratios to what the episodes say, which is another policy's: every bound of a loss is reached.
SETTINGS = UpdateSettings(
    algorithm=make_algorithm("rloo", old_logprobs="engine", clip_low=0.2, clip_high=0.3),
    max_grad_norm=math.inf,
    tokens_per_microbatch=2048,
)


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator()


def run(
    accelerator: Accelerator, model: Any, groups: Groups, settings: UpdateSettings = SETTINGS
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Take one step; returns its metrics and the gradients it took."""
    optimizer = KeepsGradients(model.parameters(), learning_rate=0.1)
    optimizer.gradients = []
    metrics = update(Policy(model), optimizer, groups, settings, accelerator).metrics
    return metrics, optimizer.gradients


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
    ratios = [ratio.exp() for group in groups for ratio in differences(model, group)]
    metrics, ours = run(accelerator, model, groups)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-4)
    assert_equal(ours, gradients)
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["tokens/trained"] == sum(t.action_tokens for g in groups for t in g)
    assert metrics["updates/skipped"] == 0.0
    assert 0 < metrics["clipped"] < 1
    assert metrics["clipped/low"] > 0 and metrics["clipped/high"] > 0
    both = metrics["clipped/low"] + metrics["clipped/high"]
    assert both == pytest.approx(metrics["clipped"], rel=1e-5)
    for name, extreme in (("min", min(map(min, ratios))), ("max", max(map(max, ratios)))):
        assert metrics[f"engine/importance_ratio_{name}"] == pytest.approx(float(extreme), rel=1e-4)
        assert metrics[f"ratio/{name}"] == pytest.approx(float(extreme), rel=1e-4)
    beyond = sum(((ratio > 2) | (ratio < 0.5)).sum().item() for ratio in ratios)
    assert metrics["engine/importance_ratio_far"] == pytest.approx(
        beyond / metrics["tokens/trained"]
    )
    assert metrics["engine/logprob_difference"] == pytest.approx(
        0.3 * (2 / math.pi) ** 0.5, rel=0.2
    )


def differences(model: Any, group: Sequence[Trajectory]) -> list[torch.Tensor]:
    """The trainer's less the engine's log-probabilities of the action tokens, by trajectory."""
    found = []
    for trajectory in group:
        mask = torch.tensor(trajectory.action_mask, dtype=torch.bool)
        engine = torch.tensor(trajectory.logprobs, dtype=torch.float64)
        found.append((forward_logprobs(model, trajectory.ids).detach() - engine)[mask])
    return found


def test_another_estimator_gives_another_loss(accelerator: Accelerator) -> None:
    groups = random_groups(tiny_model(), [[0.0, 1.0, 1.0], [0.5, 0.0, 2.0]])
    for name, kernel in (("grpo", grpo), ("rloo", rloo)):
        model = tiny_model()
        algorithm = make_algorithm(name, old_logprobs="engine", clip_low=0.2, clip_high=0.3)
        settings = replace(SETTINGS, algorithm=algorithm)
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
    optimizer = MasterOptimizer(model.parameters(), learning_rate=1e-4)
    metrics = update(Policy(model), optimizer, [[worse, better]], SETTINGS, accelerator).metrics
    assert metrics["clipped"] == 0.0
    assert metrics["engine/logprob_difference"] < 1e-5

    def change(trajectory: Trajectory) -> float:
        now = forward_logprobs(model, trajectory.ids) * torch.tensor(trajectory.action_mask)
        return (now - torch.tensor(trajectory.logprobs)).sum().item()

    assert change(better) > 0 > change(worse)


@pytest.mark.parametrize("groups_of", [[], [[1.0, 1.0], [0.0, 0.0]], [[3.0]], [[0.3] * 6]])
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
    optimizer = MasterOptimizer(model.parameters(), learning_rate=1e-3)
    policy = Policy(model)
    metrics = update(policy, optimizer, [[broken, groups[0][1]]], SETTINGS, accelerator).metrics
    assert metrics["updates/skipped"] == 1.0
    assert unchanged(model, before) and optimizer.steps == 0
    metrics = update(policy, optimizer, groups, SETTINGS, accelerator).metrics
    assert metrics["updates/skipped"] == 0.0 and math.isfinite(metrics["loss"])
    assert not unchanged(model, before)
    assert all(torch.isfinite(weight).all() for weight in weights(model))


# --- What is told of a step


def test_the_engines_mismatch_by_hand(accelerator: Accelerator) -> None:
    model = tiny_model()
    groups = random_groups(model, [[0.0, 1.0], [0.5, 0.0], [1.0, 1.0]])
    first = groups[0][0]  # whose difference is the largest, and in the first micro-batch
    unlikely = [p - bit for p, bit in zip(first.logprobs, first.action_mask, strict=True)]
    groups[0][0] = replace(first, logprobs=unlikely)
    trained = [t for group in groups[:2] for t in group]  # the third has no gradient
    differences = torch.cat(
        [
            (forward_logprobs(model, t.ids) - torch.tensor(t.logprobs))[
                torch.tensor(t.action_mask, dtype=torch.bool)
            ]
            for t in trained
        ]
    ).detach()
    ratios = differences.exp()
    expected = {
        "engine/logprob_difference": differences.abs().mean(),
        "engine/logprob_difference_max": differences.abs().max(),
        "engine/importance_ratio": ratios.mean(),
        "engine/importance_ratio_max": ratios.max(),
        "engine/kl": (ratios - 1 - differences).mean(),
    }
    for tokens in (1, 2048):
        settings = replace(SETTINGS, tokens_per_microbatch=tokens)
        metrics, _ = run(accelerator, tiny_model(), groups, settings)
        told = {name: metrics[name] for name in expected}
        assert told == pytest.approx({n: v.item() for n, v in expected.items()}, rel=1e-3)
    assert expected["engine/logprob_difference_max"] > 1


def test_the_learning_rate_is_that_of_the_last_step_and_clipping_is_told(
    accelerator: Accelerator,
) -> None:
    groups = random_groups(tiny_model(), [[0.0, 1.0]])
    for max_grad_norm, clipped in ((1e-3, 1.0), (1e6, 0.0)):
        model = tiny_model()
        optimizer = MasterOptimizer(model.parameters(), learning_rate=1e-4, warmup_steps=3)
        settings = replace(SETTINGS, max_grad_norm=max_grad_norm)
        told = [
            update(Policy(model), optimizer, groups, settings, accelerator).metrics
            for _ in range(5)
        ]
        rates = [metrics["learning_rate"] for metrics in told]
        assert rates == pytest.approx([0.25e-4, 0.5e-4, 0.75e-4, 1e-4, 1e-4])
        assert [metrics["grad_clipped"] for metrics in told] == [clipped] * 5
        assert all(metrics["grad_norm"] > 1e-3 for metrics in told), "before clipping"
        assert all(metrics["updates/taken"] == 1 for metrics in told)


def test_advantages_by_hand(accelerator: Accelerator) -> None:
    """Leave-one-out advantages: -1, 1 / 0, 0 / 2, -1, -1, each for two turns."""
    groups = random_groups(tiny_model(), [[0.0, 1.0], [0.5, 0.5], [2.0, 0.0, 0.0], []])
    metrics, _ = run(accelerator, tiny_model(), groups)
    told = {name: value for name, value in metrics.items() if name.startswith("advantage/")}
    assert told == pytest.approx(
        {
            "advantage/mean_abs": 6 / 7,
            "advantage/std": math.sqrt(8 / 7),
            "advantage/groups_alike": 1 / 3,
            "advantage/episodes": 5 / 7,
        }
    )


# --- Any algorithm


def by_hand(
    model: Any, groups: Groups, loss: str, aggregation: str, *, constant: int = 512
) -> torch.Tensor:
    """The loss of leave-one-out advantages, on separate sequences in float64."""
    total, sequences, tokens = torch.zeros((), dtype=torch.float64), 0, 0
    for group in groups:
        for trajectory, advantage in zip(
            group, rloo(torch.tensor([t.reward for t in group])).double(), strict=True
        ):
            mask = torch.tensor(trajectory.action_mask, dtype=torch.bool)
            now = forward_logprobs(model, trajectory.ids)[mask]
            sampled = torch.tensor(trajectory.logprobs, dtype=torch.float64)[mask]
            losses = losses_by_hand(loss, now, sampled, advantage)
            total = total + (losses.mean() if aggregation == "sequence_mean" else losses.sum())
            sequences, tokens = sequences + 1, tokens + int(mask.sum())
    counts = {"token_mean": tokens, "sequence_mean": sequences, "constant": sequences * constant}
    return total / counts[aggregation]


def losses_by_hand(
    loss: str, now: torch.Tensor, sampled: torch.Tensor, advantage: torch.Tensor
) -> torch.Tensor:
    ratio = torch.exp(now - sampled)
    if loss in ("reinforce", "likelihood"):
        return -advantage * now
    if loss == "cispo":
        return -ratio.detach().clamp(max=5.0) * advantage * now
    if loss == "gspo":
        ratio = torch.exp((now - sampled).mean()).expand(len(now))
    low, high = (3e-4, 4e-4) if loss == "gspo" else (0.2, 0.2)
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    if loss == "two_sided" and advantage < 0:
        surrogate = torch.maximum(surrogate, 3.0 * advantage)
    return -surrogate


EVERY = [(loss, aggregation) for loss in sorted(LOSSES) for aggregation in sorted(AGGREGATIONS)]


@pytest.mark.parametrize(("loss", "aggregation"), EVERY)
def test_every_loss_and_aggregation_by_hand_and_in_micro_batches_of_any_size(
    loss: str, aggregation: str, accelerator: Accelerator
) -> None:
    groups = random_groups(tiny_model(), [[0.0, 1.0, 0.5], [1.0, 1.0], [0.0, 2.0]])
    groups[0][0] = replace(
        groups[0][0], logprobs=[p - 2.0 * bool(p) for p in groups[0][0].logprobs]
    )  # ratios that reach every bound
    model = tiny_model().double()
    expected = by_hand(model, groups, loss, aggregation)
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    algorithm = make_algorithm("rloo", loss=loss, aggregation=aggregation, old_logprobs="engine")
    for tokens in (1, 120, 2048):
        settings = replace(SETTINGS, algorithm=algorithm, tokens_per_microbatch=tokens)
        metrics, ours = run(accelerator, tiny_model().double(), groups, settings)
        assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
        assert_equal(ours, list(gradients))


def learned(
    accelerator: Accelerator, groups: Groups, tokens: int = 2048, **settings: Any
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """One batch learned from by an algorithm around leave-one-out advantages."""
    model = tiny_model().double()
    optimizer = KeepsGradients(model.parameters(), learning_rate=1e-3)
    optimizer.gradients = []
    weighted = {"importance_cap", "importance_bounds"} & settings.keys()
    old = "trainer" if weighted else "engine"
    algorithm = make_algorithm("rloo", **({"old_logprobs": old} | settings))
    chosen = replace(SETTINGS, algorithm=algorithm, tokens_per_microbatch=tokens)
    other = tiny_model().double()
    with torch.no_grad():  # a reference that is not the policy
        for weight in other.parameters():
            weight.mul_(1.05)
    metrics = update(
        Policy(model), optimizer, groups, chosen, accelerator, Reference(other)
    ).metrics
    return metrics, optimizer.gradients


def two_groups() -> Groups:
    return random_groups(tiny_model(), [[0.0, 1.0, 0.5], [1.0, 1.0]])


def grads(loss: torch.Tensor, model: Any) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("tokens", [1, 2048])
@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_a_divergence_in_the_loss_is_of_every_action_token(
    name: Any, tokens: int, accelerator: Accelerator
) -> None:
    """Also of those without an advantage."""
    groups, model, other = two_groups(), tiny_model().double(), tiny_model().double()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.05)
    apart, count = torch.zeros((), dtype=torch.float64), 0
    for trajectory in (t for group in groups for t in group):
        mask = torch.tensor(trajectory.action_mask, dtype=torch.bool)
        both = (forward_logprobs(m, trajectory.ids)[mask] for m in (model, other))
        difference = torch.sub(*(logprobs.double() for logprobs in both))
        values = {
            "k1": difference,
            "k2": difference**2 / 2,
            "k3": torch.exp(-difference) - 1 + difference,
        }
        apart, count = apart + values[name].sum(), count + int(mask.sum())
    expected = by_hand(model, groups, "clipped", "token_mean") + 0.5 * apart / count
    metrics, ours = learned(accelerator, groups, tokens, kl=Kl(0.5, name))
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert metrics["kl"] == pytest.approx((apart / count).item(), rel=1e-4)
    assert_equal(ours, grads(expected, model))


def test_a_divergence_in_the_reward_changes_the_rewards_of_turns(accelerator: Accelerator) -> None:
    groups, other = two_groups(), tiny_model()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.05)
    kl = Kl(0.1, "k1", "reward")
    reference = Reference(other)
    changed, mean = penalised(groups, kl, reference, accelerator, tokens_per_microbatch=50)
    everything: list[torch.Tensor] = []
    for before, after in zip(groups, changed, strict=True):
        for old, new in zip(before, after, strict=True):
            difference = torch.tensor(old.logprobs) - forward_logprobs(other, old.ids).detach()
            costs = [0.1 * difference[a:b].sum().item() for a, b in old.turns]
            expected = [r - cost for r, cost in zip(old.turn_rewards, costs, strict=True)]
            assert new.turn_rewards == pytest.approx(expected, abs=1e-4)
            everything.append(difference * torch.tensor(old.action_mask))
    tokens = sum(t.action_tokens for group in groups for t in group)
    assert mean == pytest.approx(torch.cat(everything).sum().item() / tokens, rel=1e-3)
    plain, _ = learned(accelerator, groups)
    metrics, _ = learned(accelerator, groups, kl=kl)
    assert metrics["kl"] == pytest.approx(mean, rel=1e-3)
    assert metrics["loss"] != pytest.approx(plain["loss"], rel=1e-3)


def test_the_coefficient_of_a_divergence_in_the_reward_counts_where_parts_are_standardised(
    accelerator: Accelerator,
) -> None:
    """gdpo divides each part by its standard deviation, and with it what multiplies the part."""

    def with_parts(trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, reward_parts={"environment": trajectory.reward})

    groups = [[with_parts(t) for t in group] for group in two_groups()]
    other = tiny_model()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.05)

    def loss(coefficient: float | None) -> float:
        kl = Kl(coefficient, "k1", "reward") if coefficient is not None else None
        algorithm = make_algorithm("gdpo", kl=kl)
        settings = replace(SETTINGS, algorithm=algorithm)
        model = tiny_model()
        optimizer = KeepsGradients(model.parameters(), learning_rate=0.1)
        optimizer.gradients = []
        told = update(
            Policy(model), optimizer, groups, settings, accelerator, Reference(other)
        ).metrics
        return told["loss"]

    assert loss(1e-5) == pytest.approx(loss(None), rel=1e-2)
    assert loss(1.0) != pytest.approx(loss(None), rel=1e-1)


def test_an_entropy_bonus_is_of_every_action_token(accelerator: Accelerator) -> None:
    groups, model = two_groups(), tiny_model().double()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for trajectory in (t for group in groups for t in group):
        logits = model(torch.tensor(trajectory.ids)[None]).logits[0, :-1].double()
        logprobs = torch.log_softmax(logits, dim=-1)
        mask = torch.tensor(trajectory.action_mask[1:], dtype=torch.bool)
        total = total - (logprobs.exp() * logprobs).sum(dim=-1)[mask].sum()
        count += int(mask.sum())
    expected = by_hand(model, groups, "clipped", "token_mean") - 0.3 * total / count
    metrics, ours = learned(accelerator, groups, 90, entropy_bonus=0.3)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert metrics["entropy"] == pytest.approx((total / count).item(), rel=1e-4)
    assert_equal(ours, grads(expected, model))


WEIGHTS: dict[str, tuple[dict[str, Any], Any]] = {
    "token": ({"importance_cap": 1.1}, lambda d: d.exp().clamp(max=1.1)),
    "masked": (
        {"importance_bounds": [0.8, 1.3]},
        lambda d: d.exp() * ((d.exp() >= 0.8) & (d.exp() <= 1.3)),
    ),
    "sequence": (
        {"importance_cap": 0.5, "importance_level": "sequence"},
        lambda d: d.sum().exp().clamp(max=0.5).expand(len(d)),
    ),
    "sequence_mean": (
        {"importance_cap": 0.94, "importance_level": "sequence_mean"},
        lambda d: d.mean().exp().clamp(max=0.94).expand(len(d)),
    ),
}


@pytest.mark.parametrize(("settings", "weight"), WEIGHTS.values(), ids=list(WEIGHTS))
def test_importance_weights_make_up_for_an_engine_that_differs(
    settings: dict[str, Any], weight: Any, accelerator: Accelerator
) -> None:
    """On the first step the ratio is 1, and every token is weighted by trainer / engine."""
    groups, model = two_groups(), tiny_model().double()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for group in groups:
        values = rloo(torch.tensor([t.reward for t in group])).double()
        for trajectory, advantage in zip(group, values, strict=True):
            mask = torch.tensor(trajectory.action_mask, dtype=torch.bool)
            now = forward_logprobs(model, trajectory.ids)[mask]
            engine = torch.tensor(trajectory.logprobs)[mask]
            weights = weight(now.detach() - engine)
            total = total - (weights * torch.exp(now - now.detach()) * advantage).sum()
            count += int(mask.sum())
    gradients = grads(total / count, model)
    for tokens in (1, 2048):
        metrics, ours = learned(accelerator, groups, tokens, **settings)
        assert metrics["loss"] == pytest.approx((total / count).item(), rel=1e-4)
        assert_equal(ours, gradients)
    assert metrics["clipped"] == 0.0
    told = "engine/masked" if "importance_bounds" in settings else "engine/capped"
    assert 0 < metrics[told] < 1
    assert ("engine/masked" in metrics) == ("importance_bounds" in settings)


def test_several_epochs_keep_to_the_logprobs_before_the_first(accelerator: Accelerator) -> None:
    """In the second epoch the ratio to the trainer's own logprobs is no longer 1."""
    groups = two_groups()
    settings: dict[str, Any] = {"importance_cap": 5.0, "clip_low": 1e-6, "clip_high": 1e-6}
    once, _ = learned(accelerator, groups, **settings)
    twice, _ = learned(accelerator, groups, epochs=2, **settings)
    assert once["clipped"] == 0.0
    assert once["ratio/min"] == once["ratio/max"] == 1.0
    assert twice["clipped"] > 0.05
    assert twice["ratio/min"] < 1.0 < twice["ratio/max"], "of both epochs, not their mean"
    assert twice["entropy"] > 0.0
    assert twice["engine/logprob_difference"] == pytest.approx(once["engine/logprob_difference"])


def steps_of(accelerator: Accelerator, groups: Groups, **settings: Any) -> tuple[int, Any]:
    model = tiny_model()
    optimizer = MasterOptimizer(model.parameters(), learning_rate=1e-3)
    algorithm = make_algorithm("rloo", old_logprobs="engine", **settings)
    chosen = replace(SETTINGS, algorithm=algorithm)
    metrics = update(Policy(model), optimizer, groups, chosen, accelerator).metrics
    assert metrics["tokens/trained"] == sum(t.action_tokens for g in groups for t in g)
    return optimizer.steps, weights(model)


def test_epochs_and_minibatches_are_optimisation_steps(accelerator: Accelerator) -> None:
    groups = random_groups(tiny_model(), [[0.0, 1.0], [0.5, 0.0], [1.0, 0.0]])
    assert steps_of(accelerator, groups, epochs=2)[0] == 2
    assert steps_of(accelerator, groups, minibatches=3)[0] == 3
    assert steps_of(accelerator, groups, minibatches=5)[0] == 3  # two of them are empty
    assert steps_of(accelerator, groups, epochs=2, minibatches=2)[0] == 4


def test_two_minibatches_are_two_batches_one_after_the_other(accelerator: Accelerator) -> None:
    groups = random_groups(tiny_model(), [[0.0, 1.0], [0.5, 0.0]])
    _, ours = steps_of(accelerator, groups, minibatches=2)
    model = tiny_model()
    optimizer = MasterOptimizer(model.parameters(), learning_rate=1e-3)
    settings = replace(SETTINGS, algorithm=make_algorithm("rloo", old_logprobs="engine"))
    for group in groups:
        update(Policy(model), optimizer, [group], settings, accelerator)
    assert_equal(ours, weights(model))


def test_masked_episodes_are_compared_with_and_neither_learned_from_nor_counted(
    accelerator: Accelerator,
) -> None:
    groups, model = two_groups(), tiny_model().double()
    groups[0][1] = replace(groups[0][1], stop_reason=StopReason.max_tokens)
    total, count = torch.zeros((), dtype=torch.float64), 0
    values = rloo(torch.tensor([t.reward for t in groups[0]]))  # of all three
    for trajectory, advantage in ((groups[0][0], values[0]), (groups[0][2], values[2])):
        mask = torch.tensor(trajectory.action_mask, dtype=torch.bool)
        now = forward_logprobs(model, trajectory.ids)[mask]
        sampled = torch.tensor(trajectory.logprobs, dtype=torch.float64)[mask]
        total = total + losses_by_hand("clipped", now, sampled, advantage.double()).sum()
        count += int(mask.sum())
    count += sum(t.action_tokens for t in groups[1])
    masked = [StopReason.max_tokens]
    metrics, ours = learned(accelerator, groups, masked_stop_reasons=masked)
    assert metrics["loss"] == pytest.approx((total / count).item(), rel=1e-4)
    assert_equal(ours, grads(total / count, model))
    assert (metrics["episodes/masked"], metrics["tokens/trained"]) == (1, count)


def test_turns_have_advantages_of_their_own(accelerator: Accelerator) -> None:
    """Only the tokens of the turn that was better than the others become likelier."""
    model = tiny_model()
    one, other = random_groups(model, [[0.0, 0.0]])[0]
    better = replace(one, turn_rewards=[1.0, 0.0])
    optimizer = MasterOptimizer(model.parameters(), learning_rate=1e-4)
    algorithm = make_algorithm("turn_level", gamma=0.0, old_logprobs="engine")
    settings = replace(SETTINGS, algorithm=algorithm)

    def of_turn(turn: int) -> float:
        start, end = better.turns[turn]
        return forward_logprobs(model, better.ids)[start:end].sum().item()

    before = [of_turn(0), of_turn(1)]
    update(Policy(model), optimizer, [[better, other]], settings, accelerator)
    assert of_turn(0) > before[0]
    assert of_turn(1) < before[1]
