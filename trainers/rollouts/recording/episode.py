"""What an episode in tokens leaves behind: its contexts as they grow, and its trajectory.

An environment whose program has the loop may go on in another context: `info["branch"]` of `reset`
and `step` says to which context the returned ids belong, and in which the next action is sampled. A
new one begins with `info["prompt_ids"]`. Other environments say neither, and have one context. The
last info may name turns whose message the program has never read (`unreceived`), which are not
learned from.

`context.py` keeps one context; `../one_episode.py` plays the episode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from gymnast.envs import Environment
from gymnast.errors import ConfigError
from gymnast.trainers.rollouts.recording.context import ContextRecord
from gymnast.types import Branch, Completion, StopReason, Trajectory


@dataclass
class Record:
    """The growing episode."""

    contexts: list[ContextRecord] = field(default_factory=lambda: [ContextRecord()])
    branch: int = 0  # the context of the next action
    order: list[int] = field(default_factory=list)  # the context of each action
    reward_parts: dict[str, float] = field(default_factory=dict)
    no_reward: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()  # those offered at first
    teacher_prompt_ids: list[int] = field(default_factory=list)

    @property
    def current(self) -> ContextRecord:
        """The context in which the next action is sampled."""
        return self.contexts[self.branch]

    def begin(self, prompt: np.ndarray) -> None:
        """Begin the first context."""
        self.current.begin(prompt)

    def append_action(self, action: Completion, seconds: float) -> None:
        """Append an action; `seconds` is how long the agent took, waiting included."""
        self.order.append(self.branch)
        self.current.append_action(action)
        waited = min(max(action.waited_s, 0.0), seconds)
        self.add("time/waiting_s", waited)
        self.add("time/model_s", seconds - waited)

    def pay(self, reward: float, info: Mapping[str, Any]) -> None:
        """Keep the reward of the last action; see `ContextRecord.pay`."""
        self.current.pay(reward, info)

    def follow(self, observation: np.ndarray, info: Mapping[str, Any], *, over: bool) -> None:
        """Append what a step returned to the context that it is of, and go on in that one.

        Args:
            observation: The ids.
            info: Of the step.
            over: Whether the episode is; then no context begins, since nothing is sampled in it.

        Raises:
            ConfigError: `info["branch"]` is no context and not the next one; or a new one has no
                prompt, or an observation, or a known one has a prompt.
        """
        branch, known = info.get("branch", self.branch), len(self.contexts)
        if over and branch == known:
            branch = self.branch
        if over or "prompt_ids" not in info:
            if branch not in range(known):
                raise ConfigError(
                    f"environment: info['branch'] is {branch!r}, and the episode has {known} "
                    "contexts, counted from 0; a new one has the next number and info['prompt_ids']"
                )
            self.branch = int(branch)
            self.current.append_given(observation)
            return
        prompt = info["prompt_ids"]
        if branch != known or len(observation) or not len(prompt):
            raise ConfigError(
                f"environment: info['prompt_ids'] has {len(prompt)} ids, info['branch'] is "
                f"{branch!r} and the observation has {len(observation)} ids; a prompt begins the "
                f"next context of the episode, {known}, is not empty, and has an empty observation"
            )
        self.contexts.append(ContextRecord())
        self.branch = known
        self.current.begin(prompt)

    def leave_out(self, turns: Sequence[int]) -> None:
        """Make turns, counted in order of time, ones without action tokens (`unreceived`).

        Raises:
            ConfigError: There is no such turn.
        """
        for turn in turns:
            if turn not in range(len(self.order)):
                raise ConfigError(
                    f"environment: info['unreceived'] has turn {turn!r}, and the episode has "
                    f"{len(self.order)}, counted from 0"
                )
            context = self.order[turn]
            self.contexts[context].leave_out(self.order[:turn].count(context))

    def keep(self, info: Mapping[str, Any], seconds: float) -> None:
        """Keep the info of a call of the environment, and how long the call took."""
        self.add("time/environment_s", seconds)
        for kind, part_s in info.get("timings", {}).items():
            name = kind if kind.startswith("tool/") else f"environment/{kind}"
            self.add(f"time/{name}_s", part_s)
        self.metrics |= info.get("metrics", {})
        self.reward_parts |= info.get("reward_parts", {})
        self.no_reward = self.no_reward or bool(info.get("no_reward"))

    def add(self, name: str, value: float) -> None:
        """Add to a metric."""
        self.metrics[name] = self.metrics.get(name, 0.0) + value


@dataclass(frozen=True)
class Over:
    """How an episode ended: the last `info`, and what Gymnasium says."""

    info: Mapping[str, Any]
    terminated: bool
    truncated: bool

    @property
    def stop_reason(self) -> StopReason:
        """The reason that the environment gives; a wrapper that ended the episode gives none."""
        if self.info.get("stop_reason") is not None:
            return StopReason(self.info["stop_reason"])
        return StopReason.environment if self.terminated else StopReason.max_turns


def trajectory_of(
    record: Record,
    over: Over,
    env: gymnasium.Env[Any, Any],
    row: Mapping[str, Any] | None,
    seed: int | None,
) -> Trajectory:
    """The trajectory of an episode that is over.

    Args:
        record: What was kept of it.
        over: How it ended.
        env: The environment without its wrappers.
        row: The row that it was reset with, for an environment that keeps none itself.
        seed: The seed that it was reset with.
    """
    first, *others = record.contexts
    branches = [
        Branch(**context.fields(), **_said(env, number))
        for number, context in enumerate(others, start=1)
    ]
    return Trajectory(
        **first.fields(),
        stop_reason=over.stop_reason,
        terminated=over.terminated,
        truncated=over.truncated,
        messages=env.messages if isinstance(env, Environment) else [],
        tools=record.tools,
        reward_parts=record.reward_parts,
        no_reward=record.no_reward,
        metrics=record.metrics,
        row=dict(env.row if isinstance(env, Environment) else row or {}),
        seed=seed,
        teacher_prompt_ids=record.teacher_prompt_ids,
        branches=branches or (),
        order=record.order if branches else (),
    )


def _said(env: gymnasium.Env[Any, Any], branch: int) -> dict[str, Any]:
    """The messages and tools of a further context; none where the environment knows no messages."""
    if not isinstance(env, Environment):
        return {}
    return {"messages": env.messages_of(branch), "tools": env.tools_of(branch)}
