"""The numbers of a collection: counts made on the way, and means over its trajectories.

`Trajectory.metrics` of one episode (`one_episode.py`):

    time/episode_s              from `reset` to the end; about the sum of the next three
    time/model_s                the agent computing
    time/waiting_s              queued in the agent, as `Completion.waited_s` reports it
    time/environment_s          `reset` and every `step`; the parts of it that occurred:
    time/environment/<part>_s   setup, parse, tools, render, reward, cleanup
    time/tool/<tool>_s          the calls of one tool, also those that failed
    tools/calls/<tool>          how many of them there were
    tools/failures/<tool>       how many of them failed, for their arguments or in the tool
    tools/calls, tools/errors, tools/errors/<kind>, tools/abandoned_threads
    chat/requests, chat/retries, chat/prompt_tokens, chat/completion_tokens, chat/cost
                                what a `ChatAgent` took
    sandbox/broken              1 if the policy broke its box, which means reward 0
    sandbox/unusable            1 if a hook that scores could not use what the policy left
    rubrics/<name>              what a part of a rubric found (`gymnast.envs.rubrics`)
    anything else               what the environment's `metrics` returned

Everything measured by a clock begins with `time/`; the rest repeats when a run does. The wait
before an episode begins is in no metric. `Rollouts.metrics` has the mean of each of these over
episodes (the environment's own begin with `environment/`), but the sum of those that begin with
`tools/` or `chat/`; besides

    reward/mean, reward/std, tokens/sampled, tokens/observed
    reward_parts/<name>         the mean of a part of the reward (`Trajectory.reward_parts`)
    time/tool_call/<tool>_s     the mean over all calls of a tool
    episodes/finished           those with a trajectory
    episodes/turns              the mean
    episodes/contexts           the mean, where an episode has more than one (`Trajectory.branches`)
    episodes/stop/<reason>      the share of each `StopReason`
    episodes/calling            the share of episodes with a call, of those that are offered tools
    episodes/only_malformed     the share with calls none of which could be read, of the same
    episodes/retried            attempts that the infrastructure broke and that were repeated
    episodes/left_out           without a trajectory, for any of these reasons:
    episodes/left_out/deadline        not finished, or not begun, when `deadline_s` was over
    episodes/left_out/infrastructure  broken, and broken again in the second attempt
    episodes/left_out/user_code       a hook of the environment raised, or returned a wrong value
    episodes/left_out/no_request      a program ended before its first request
    episodes/left_out/reward          a reward function raised, or gave no finite number
    episodes/left_out/no_reward       `reward`, or a reward function, returned None
    episodes/left_out/stale           older than `max_staleness` (`trainers/ahead/bound.py`)
    episodes/rows_skipped       rows whose prompt is too long; their episodes are not left out

and, of a mixture, for each environment

    environments/<name>/episodes/finished, episodes/turns, reward/mean, reward/std, tokens/sampled
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import pstdev
from typing import Literal, get_args

from gymnast.envs.mixture import COUNTED, EPISODES
from gymnast.errors import TooManyFailures, UserCodeError
from gymnast.numbers import mean, standard_deviation
from gymnast.types import Trajectory

LeftOut = Literal[
    "deadline", "infrastructure", "user_code", "no_request", "reward", "no_reward", "stale"
]


@dataclass
class Counts:
    """What happened besides the trajectories; `stream` adds to the one it is given.

    Attributes:
        retried: Attempts that the infrastructure broke and that were repeated.
        left_out_for: Episodes without a trajectory, by reason; too long a prompt is not one.
        user_errors: What the user's code raised, and `NoRequest`; each left one episode out.
        rows_skipped: The row indices of prompts that are too long.
        finished: Episodes that are over, with a trajectory or without.
    """

    retried: int = 0
    left_out_for: Counter[LeftOut] = field(default_factory=Counter)
    user_errors: list[UserCodeError] = field(default_factory=list)
    rows_skipped: set[int] = field(default_factory=set)
    finished: int = 0

    @property
    def left_out(self) -> int:
        """Episodes without a trajectory, for any reason but a prompt that is too long."""
        return self.left_out_for.total()

    def handed_over(self) -> "Counts":
        """What was counted so far; this object counts anew."""
        counted = replace(self)
        vars(self).update(vars(Counts()))
        return counted


def summarise(trajectories: Sequence[Trajectory], counts: Counts) -> dict[str, float]:
    """Means and counts over episodes, named by area; see the top of this file."""
    metrics: dict[str, float] = {
        "episodes/finished": len(trajectories),
        "episodes/retried": counts.retried,
        "episodes/left_out": counts.left_out,
        "episodes/rows_skipped": len(counts.rows_skipped),
    }
    for reason in get_args(LeftOut):
        metrics[f"episodes/left_out/{reason}"] = counts.left_out_for[reason]
    if not trajectories:
        return metrics
    total = len(trajectories)
    rewards = [trajectory.reward for trajectory in trajectories]
    metrics["reward/mean"] = mean(rewards)
    metrics["reward/std"] = standard_deviation(rewards)
    metrics["episodes/turns"] = sum(t.steps for t in trajectories) / total
    if any(t.branches for t in trajectories):
        metrics["episodes/contexts"] = sum(len(t.contexts) for t in trajectories) / total
    metrics["tokens/sampled"] = sum(t.action_tokens for t in trajectories)
    metrics |= _by_environment(trajectories)
    metrics["tokens/observed"] = sum(
        t.tokens - sum(c.prompt_length for c in t.contexts) - t.action_tokens for t in trajectories
    )
    for reason, number in Counter(t.stop_reason for t in trajectories).items():
        metrics[f"episodes/stop/{reason}"] = number / total
    metrics |= _calling(trajectories)
    episodes = [_numbers(trajectory) for trajectory in trajectories]
    for name in sorted({name for numbers in episodes for name in numbers}):
        if name.startswith(COUNTED):
            continue
        values = [numbers.get(name, 0.0) for numbers in episodes]
        if name.startswith(("tools/", "chat/")):
            metrics[name] = sum(values)
        else:
            area = "" if "/" in name else "environment/"  # the environment's own
            metrics[area + name] = mean(values)
    return metrics | _latencies(metrics, total)


def of_mixture(metrics: Mapping[str, float]) -> bool:
    """Whether `summarise` found the environments of a mixture."""
    return any(name.startswith(COUNTED) for name in metrics)


def by_environment(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    """The episodes of each environment of a mixture, by its name; {} where there is none."""
    found: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        for name in trajectory.metrics:
            if name.startswith(COUNTED):
                own = name.removeprefix(COUNTED).removesuffix(f"/{EPISODES}")
                found.setdefault(own, []).append(trajectory)
    return found


def _by_environment(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The rewards of each environment of a mixture, and how much it was played."""
    metrics: dict[str, float] = {}
    for name, own in sorted(by_environment(trajectories).items()):
        rewards = [trajectory.reward for trajectory in own]
        numbers = {
            "episodes/finished": len(own),
            "episodes/turns": sum(t.steps for t in own) / len(own),
            "reward/mean": mean(rewards),
            "reward/std": pstdev(rewards),
            "tokens/sampled": sum(t.action_tokens for t in own),
        }
        metrics |= {f"{COUNTED}{name}/{each}": value for each, value in numbers.items()}
    return metrics


def _calling(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Which share of the episodes that may call tools do, and which writes no call that is read."""
    able = [trajectory.metrics for trajectory in trajectories if trajectory.tools]
    if not able:
        return {}
    calling = [numbers for numbers in able if numbers.get("tools/calls")]
    unread = [n for n in calling if n.get("tools/errors/malformed") == n["tools/calls"]]
    return {
        "episodes/calling": len(calling) / len(able),
        "episodes/only_malformed": len(unread) / len(able),
    }


def _numbers(trajectory: Trajectory) -> dict[str, float]:
    """The metrics of an episode, and the parts of its reward."""
    parts = {f"reward_parts/{name}": value for name, value in trajectory.reward_parts.items()}
    return {**trajectory.metrics, **parts}


def _latencies(metrics: Mapping[str, float], episodes: int) -> dict[str, float]:
    """The mean seconds of a call, by tool."""
    latencies = {}
    for name, calls in metrics.items():
        tool = name.removeprefix("tools/calls/")
        seconds = metrics.get(f"time/tool/{tool}_s")
        if tool != name and calls and seconds is not None:
            latencies[f"time/tool_call/{tool}_s"] = seconds * episodes / calls
    return latencies


def nothing_finished(purpose: str, episodes: int, metrics: Mapping[str, float]) -> TooManyFailures:
    """The error that says why no episode has a trajectory.

    Args:
        purpose: What the episodes were for.
        episodes: How many there were.
        metrics: As `summarise` returns them.
    """
    reasons = {
        "deadline": (
            "were not finished when rollout_deadline_s was over; raise it, or sample less "
            "(max_new_tokens, max_turns, rows_per_step)"
        ),
        "infrastructure": "were broken by the infrastructure, in both attempts",
        "user_code": "ended when the environment's own code raised",
        "no_request": "have no action: their program ended before its first request",
        "reward": "have no reward: a function of `rewards` raised or gave no finite number",
        "no_reward": (
            "have no reward: the environment's `reward`, or a function of `rewards`, returned None "
            "(does it lack a `return`?)"
        ),
        "stale": (
            "outgrew max_staleness before they were learned from; raise it, or set on_stale to "
            "continue"
        ),
    }
    parts = [
        f"{metrics[name]:.0f} {text}"
        for reason, text in reasons.items()
        if metrics[name := f"episodes/left_out/{reason}"]
    ]
    if skipped := metrics["episodes/rows_skipped"]:
        parts.append(f"{skipped:.0f} rows have a prompt that leaves no room in context_length")
    return TooManyFailures(f"{purpose}: none of {episodes} episodes finished: {'; '.join(parts)}.")
