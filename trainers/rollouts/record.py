"""What an episode in tokens leaves behind: the record that grows turn by turn, and its trajectory.

`one_episode.py` plays the episode.
"""

from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import gymnasium
import numpy as np

from gymnast.envs import Environment
from gymnast.errors import ConfigError
from gymnast.trainers.base.token_ids import shared_ids
from gymnast.types import Completion, Span, StopReason, Trajectory, VersionSpan

T = TypeVar("T")


@dataclass
class Record:
    """The growing trajectory. Mask, logprobs and rewards by token are written out at its end."""

    ids: list[int] = field(default_factory=list)
    turns: list[Span] = field(default_factory=list)
    turn_logprobs: list["array[float]"] = field(default_factory=list)
    turn_rewards: list[float] = field(default_factory=list)
    divided: dict[int, list[float]] = field(default_factory=dict)  # rewards by token, by turn
    states: list[Hashable] = field(default_factory=list)
    stated: bool = False  # whether an info says what a turn acts in
    versions: list[VersionSpan] = field(default_factory=list)
    experts: list[np.ndarray] = field(default_factory=list)  # as they were chosen first
    reward_parts: dict[str, float] = field(default_factory=dict)
    no_reward: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()  # those offered at first
    teacher_prompt_ids: list[int] = field(default_factory=list)

    def append_given(self, ids: np.ndarray) -> int:
        """Append tokens that the policy did not sample; returns how many."""
        self.ids += shared_ids(ids)
        return len(ids)

    def append_action(self, action: Completion, seconds: float) -> None:
        """Append an action; `seconds` is how long the agent took, waiting included."""
        start = len(self.ids)
        self.turns.append(Span(start, start + len(action.ids)))
        self.versions += [VersionSpan(start + a, start + b, v) for a, b, v in action.versions]
        if action.experts is not None:
            self.experts.append(action.experts[sum(map(len, self.experts)) :])
        self.ids += shared_ids(action.ids)
        self.turn_logprobs.append(array("d", action.logprobs))
        waited = min(max(action.waited_s, 0.0), seconds)
        self.add("time/waiting_s", waited)
        self.add("time/model_s", seconds - waited)

    def by_token(self, turns: Sequence[Sequence[T]], otherwise: T) -> list[T]:
        """What each turn has for its tokens, by token; the others get one value."""
        whole = [otherwise] * len(self.ids)
        for (start, end), values in zip(self.turns, turns, strict=True):
            whole[start:end] = values
        return whole

    def token_rewards(self) -> list[float]:
        """How rewards are divided among tokens; [] where no info says so.

        What an info leaves of the reward of its turn is the last token's.
        """
        if not self.divided:
            return []
        turns = []
        for turn, ((start, end), reward) in enumerate(
            zip(self.turns, self.turn_rewards, strict=True)
        ):
            values = self.divided.get(turn, [0.0] * (end - start))
            if values:
                values[-1] += reward - sum(values)
            turns.append(values)
        return self.by_token(turns, 0.0)

    def all_experts(self) -> np.ndarray | None:
        """Of every token, -1 for those that no action was sampled after; None where none are kept.

        Those of a token are those of the turn that computed it first: they made the keys and values
        that later turns go on with.
        """
        if not self.experts:
            return None
        known = np.concatenate(self.experts)
        rest = np.full((len(self.ids) - len(known), *known.shape[1:]), -1, dtype=known.dtype)
        return np.concatenate([known, rest])

    def keep(self, info: Mapping[str, Any], seconds: float) -> None:
        """Keep the info of a call of the environment, and how long the call took."""
        self.add("time/environment_s", seconds)
        for kind, part_s in info.get("timings", {}).items():
            name = kind if kind.startswith("tool/") else f"environment/{kind}"
            self.add(f"time/{name}_s", part_s)
        self.metrics |= info.get("metrics", {})
        self.reward_parts |= info.get("reward_parts", {})
        self.no_reward = self.no_reward or bool(info.get("no_reward"))

    def enter(self, info: Mapping[str, Any]) -> None:
        """Keep what the next turn acts in, where the info says it; see `Trajectory.states`.

        Raises:
            ConfigError: It cannot be hashed.
        """
        self.stated = self.stated or "state" in info
        state = info.get("state")
        try:
            hash(state)
        except TypeError as error:
            raise ConfigError(
                f"environment: info['state'] is {state!r:.100}, which cannot be hashed, so it "
                "cannot be compared; give a string, a number or a tuple of these"
            ) from error
        self.states.append(state)

    def pay(self, reward: float, info: Mapping[str, Any]) -> None:
        """Keep the reward of the turn, and how it is divided among the tokens of its action.

        Raises:
            ConfigError: `info["token_rewards"]` does not have one finite number a token.
        """
        given = info.get("token_rewards")
        if given is not None:
            start, end = self.turns[-1]
            self.divided[len(self.turn_rewards)] = _numbers(given, end - start)
        self.turn_rewards.append(reward)

    def add(self, name: str, value: float) -> None:
        """Add to a metric."""
        self.metrics[name] = self.metrics.get(name, 0.0) + value


def _numbers(given: Any, tokens: int) -> list[float]:
    """The rewards of the tokens of an action, from the info of an environment.

    Raises:
        ConfigError: It does not have one finite number a token.
    """
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.full(0, np.nan)
    if values.shape != (tokens,) or not np.isfinite(values).all():
        raise ConfigError(
            f"environment: info['token_rewards'] must have one finite number for each of the "
            f"{tokens} tokens of the action, got {given!r:.100}"
        )
    numbers: list[float] = values.tolist()
    return numbers


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
    prompt_length: int,
    over: Over,
    env: gymnasium.Env[Any, Any],
    row: Mapping[str, Any] | None,
    seed: int | None,
) -> Trajectory:
    """The trajectory of an episode that is over.

    Args:
        record: What was kept of it.
        prompt_length: Tokens before the first action.
        over: How it ended.
        env: The environment without its wrappers.
        row: The row that it was reset with, for an environment that keeps none itself.
        seed: The seed that it was reset with.
    """
    return Trajectory(
        ids=record.ids,
        action_mask=record.by_token([[1] * (end - start) for start, end in record.turns], 0),
        logprobs=record.by_token(record.turn_logprobs, 0.0),
        prompt_length=prompt_length,
        turns=record.turns,
        turn_rewards=record.turn_rewards,
        stop_reason=over.stop_reason,
        terminated=over.terminated,
        truncated=over.truncated,
        messages=env.messages if isinstance(env, Environment) else [],
        tools=record.tools,
        versions=record.versions,
        token_rewards=record.token_rewards(),
        states=record.states if record.stated else (),
        reward_parts=record.reward_parts,
        no_reward=record.no_reward,
        metrics=record.metrics,
        row=dict(env.row if isinstance(env, Environment) else row or {}),
        seed=seed,
        teacher_prompt_ids=record.teacher_prompt_ids,
        experts=record.all_experts(),
    )
