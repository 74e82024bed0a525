"""What is remembered of a step, so that it can be said why a run does not learn.

Plain numbers and short texts: a run's state keeps them, so that a resumed run says what the whole
run says.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, variance
from typing import Any

from gymnast.trainers.reporting.advice.failed_calls import (
    FailedCall,
    failed_calls,
    offered_tools,
)
from gymnast.trainers.reporting.shown_episodes import first_action
from gymnast.types import StopReason, Trajectory

Groups = Sequence[Sequence[Trajectory]]

# The ways that a call fails before its tool runs, as docs/metrics.md names them.
KINDS = ("malformed", "unknown_tool", "bad_arguments")
KEPT = (
    "reward/mean",
    "reward/std",
    "episodes/calling",
    "advantage/episodes",
    "advantage/groups_alike",
    "advantage/groups_alike/lowest",
    "advantage/groups_alike/highest",
    "entropy",
    "engine/kl",
    "engine/importance_ratio_far",
    "clipped",
    "grad_norm",
    "updates/taken",
    "updates/skipped",
    "tokens/trained",
    "perf/training_share",
    "perf/waiting_share",
)
_LONGEST = 400  # characters of a text that is kept; what is shown is shorter


@dataclass(frozen=True)
class Failures:
    """Calls that failed in one way.

    Attributes:
        count: How many.
        written: One of the commonest form, as the policy wrote it.
        answer: What it was told.
    """

    count: int
    written: str
    answer: str


@dataclass(frozen=True)
class SeenStep:
    """A step.

    Attributes:
        number: The first is 1.
        metrics: Those of `KEPT` that were measured.
        tools: The names of the tools that were offered.
        calls: How many calls there were.
        worked: Whether prompts showed a call that somebody made.
        failures: Calls that no tool ran, by kind. What a limit cut off is none of them.
        cut: How many episodes a limit cut, by the setting that sets it.
        episodes: How many there were.
        best: The highest reward of an episode; None where none has one.
        group_rewards: The mean reward of each row.
        group_noise: The variance of such a mean that the episodes of a row explain.
    """

    number: int
    metrics: Mapping[str, float]
    tools: Sequence[str] = ()
    calls: int = 0
    worked: bool = False
    failures: Mapping[str, Failures] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)
    episodes: int = 0
    best: float | None = None
    group_rewards: Sequence[float] = ()
    group_noise: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the step as a run's state keeps it.

        Times are left out, so that a resumed run has the state of one that was not stopped.
        """
        metrics = {k: value for k, value in self.metrics.items() if not k.startswith("perf/")}
        return asdict(replace(self, metrics=metrics))

    @staticmethod
    def from_dict(kept: Mapping[str, Any]) -> "SeenStep":
        """What `to_dict` returned, as it was."""
        failures = {kind: Failures(**failure) for kind, failure in kept["failures"].items()}
        return SeenStep(**{**kept, "failures": failures})


def see(number: int, metrics: Mapping[str, float], groups: Groups, max_new_tokens: int) -> SeenStep:
    """What is worth remembering of a step.

    Args:
        number: The step's.
        metrics: The step's.
        groups: Its episodes. Those without messages or tools are counted, and say nothing of calls.
        max_new_tokens: Of a turn.
    """
    episodes = [trajectory for group in groups for trajectory in group]
    rewards = [[each.reward for each in group if not each.no_reward] for group in groups]
    rewards = [group for group in rewards if group]
    failed: dict[str, list[FailedCall]] = {}
    for episode in episodes:
        for call in failed_calls(episode):
            if call.kind in KINDS:
                failed.setdefault(call.kind, []).append(call)
    limits = Counter(limit for e in episodes if (limit := _limit(e, max_new_tokens)) is not None)
    return SeenStep(
        number,
        {name: float(metrics[name]) for name in KEPT if math.isfinite(metrics.get(name, math.nan))},
        tools=sorted({name for episode in episodes for name in offered_tools(episode)}),
        calls=int(sum(episode.metrics.get("tools/calls", 0) for episode in episodes)),
        worked=any(_shows_a_call(episode) for episode in episodes),
        failures={kind: _commonest(failures) for kind, failures in failed.items()},
        cut=dict(limits),
        episodes=len(episodes),
        best=max((each.reward for each in episodes if not each.no_reward), default=None),
        group_rewards=[fmean(group) for group in rewards],
        group_noise=_noise(rewards),
    )


def _noise(rewards: Sequence[Sequence[float]]) -> float:
    """The variance of a group's mean reward if its episodes were all that differed."""
    found = [variance(group) / len(group) for group in rewards if len(group) > 1]
    return fmean(found) if found else 0.0


def _commonest(failed: Sequence[FailedCall]) -> Failures:
    form = Counter(call.form for call in failed).most_common(1)[0][0]
    first = next(call for call in failed if call.form == form)
    return Failures(len(failed), first.written[:_LONGEST], first.answer[:_LONGEST])


def _shows_a_call(episode: Trajectory) -> bool:
    before = episode.messages[: first_action(episode)]
    return any(m["role"] == "assistant" and m.get("tool_calls") for m in before)


def _limit(episode: Trajectory, max_new_tokens: int) -> str | None:
    """The setting whose limit cut an episode, if one did."""
    match episode.stop_reason:
        case StopReason.max_tokens:
            turns = episode.in_time([context.turns for context in episode.contexts])
            start, end = turns[-1] if turns else (0, 0)
            whole = end - start >= max_new_tokens
            return "sampling.max_new_tokens" if whole else "environment.max_tokens"
        case StopReason.context:
            return "environment.context_length"
        case StopReason.max_turns:
            return "environment.max_turns"
        case StopReason.timeout:
            return "environment.episode_timeout_s"
    return None
