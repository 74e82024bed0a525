"""What the numbers of the optimisation say of a run that does not learn."""

import math

from gymnast.trainers.reporting.advice.history import (
    A_FEW,
    MANY,
    History,
    mean,
    reward_error,
    rises,
    values,
)
from gymnast.trainers.reporting.advice.words import percent

# Entropy below a tenth of its beginning leaves the members of a group nearly copies of each other;
# one that has trebled is on the way to noise.
COLLAPSED, EXPLODED = 0.1, 3.0
# A nat is what a choice among e equally likely tokens has: below it, text is not yet noise.
NOISE_NATS = 1.0
# bfloat16 alone gives 1e-3 (SmolLM2-135M); a tenth of a nat a token is another policy.
MISMATCH, MISMATCH_RISES, MISMATCH_FROM = 0.1, 5.0, 0.01
# Most of the optimisation steps, or of the tokens.
MOST = 0.5
# So many skipped steps are no accident; each is warned of by itself.
SOME = 3
# Adam forgives gradients that are always clipped; such a factor is more than an uneven batch.
MUCH_LONGER = 10.0
# A fall is more than so many standard errors, and than half the standard deviation of a reward.
ERRORS, FALL = 3.0, 0.5
# Where the mean reward is this near to passing, there is little left to explore.
NEARLY = 0.9


def optimisation(history: History, max_grad_norm: float) -> list[tuple[str, str]]:
    """Skipped and clipped updates, and an engine that computes another policy."""
    found = []
    last = history.recent[-A_FEW:]
    skipped = sum(values("updates/skipped", last))
    taken = sum(values("updates/taken", last))
    if skipped >= SOME and skipped > MOST * (skipped + taken):
        found.append(
            (
                "skipped updates",
                f"{skipped:.0f} of the last {skipped + taken:.0f} optimisation steps were skipped, "
                "as their loss or gradient was not finite: lower trainer.learning_rate, or set "
                "model.dtype: float32",
            )
        )
    if (clipped := mean("clipped", last)) > MOST and not rises(history):
        found.append(
            (
                "clipped tokens",
                f"the loss clipped {percent(clipped)} of the tokens of the last {A_FEW} steps, "
                "which taught nothing, and the reward does not rise: lower "
                "trainer.learning_rate, algorithm.epochs or algorithm.minibatches",
            )
        )
    norms = values("grad_norm", history.recent)
    if len(norms) == MANY and min(norms) > MUCH_LONGER * max_grad_norm and not rises(history):
        found.append(
            (
                "long gradients",
                f"every gradient of the last {MANY} steps was more than {MUCH_LONGER:.0f} times "
                f"as long as trainer.max_grad_norm ({max_grad_norm:g}; the shortest was "
                f"{min(norms):.3g}), and the reward does not rise: lower trainer.learning_rate, "
                "or raise trainer.max_grad_norm",
            )
        )
    return found + _mismatch(history)


def _mismatch(history: History) -> list[tuple[str, str]]:
    now, began = mean("engine/kl", history.latest), mean("engine/kl", history.beginning)
    rising = bool(history.few) and now > max(MISMATCH_FROM, MISMATCH_RISES * began)
    if not (now > MISMATCH or rising):
        return []
    how = f", from {began:.2g} in the first {len(history.beginning)}" if rising else ""
    return [
        (
            "engine mismatch",
            f"what samples and what is trained have become different policies: engine/kl is "
            f"{now:.2g} a token in {history.span}{how}: set "
            "model.float32_head: true, algorithm.importance_cap: 2.0 or model.dtype: float32; for "
            "mixtures of experts trainer.replay_routing: true",
        )
    ]


def falls(history: History, pass_reward: float) -> list[tuple[str, str]]:
    """A reward that fell below the start, and entropy that collapsed or exploded."""
    found = []
    few = history.few
    began, now = mean("reward/mean", history.beginning), mean("reward/mean", few)
    error = math.hypot(reward_error(history.beginning), reward_error(few))
    spread = mean("reward/std", history.beginning)
    if began - now > max(ERRORS * error, FALL * spread):
        found.append(
            (
                "falling reward",
                f"the reward fell from {began:.3f} in the first {A_FEW} steps to {now:.3f} in the "
                f"last {A_FEW}: lower trainer.learning_rate, or hold the policy near its beginning "
                "(algorithm.kl: {coefficient: 0.01})",
            )
        )
    entropy, first = mean("entropy", history.latest), mean("entropy", history.beginning[:1])
    stalled = not rises(history)
    if entropy < COLLAPSED * first and stalled and now < NEARLY * pass_reward:
        found.append(
            (
                "entropy collapsed",
                f"the entropy of a token fell from {first:.3g} to {entropy:.3g} nats, and the "
                f"reward stopped rising at {now:.3f}: the episodes of a row are nearly copies of "
                "each other; begin again with a lower trainer.learning_rate, a higher "
                "algorithm.clip_high or an algorithm.entropy_bonus (0.001, say)",
            )
        )
    if entropy > max(EXPLODED * first, NOISE_NATS) and stalled:
        found.append(
            (
                "entropy exploded",
                f"the entropy of a token rose from {first:.3g} to {entropy:.3g} nats, and the "
                f"reward does not rise ({now:.3f}): the policy is on the way to noise; begin again "
                "with a lower trainer.learning_rate or algorithm.entropy_bonus",
            )
        )
    return found
