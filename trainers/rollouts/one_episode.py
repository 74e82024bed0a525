"""One episode: the only place where an agent meets an environment.

    ids = reset()                              mask 0
    until the environment ends it:
        action = agent.generate(ids)           mask 1
        ids += action
        ids += step(action)                    mask 0

What appends token ids here knows neither messages nor tools. Many episodes at once, retries and
groups are `trainers/rollouts/many_episodes.py`; what the metrics mean is told in
`trainers/rollouts/metrics.py`.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np

from gymnast.agents.base import Agent
from gymnast.envs import Environment
from gymnast.errors import ConfigError
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.data.inputs import check_sampling_kind
from gymnast.trainers.rollouts.drivers import Driver, driver_of
from gymnast.types import Completion, Sampling, Span, StopReason, Trajectory, VersionSpan
from gymnast.visible import visible_line, visible_logger

logger = visible_logger(__name__)


@dataclass
class _Record:
    """The growing trajectory: three lists that are only ever appended to together."""

    ids: list[int] = field(default_factory=list)
    action_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Span] = field(default_factory=list)
    turn_rewards: list[float] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    reward_parts: dict[str, float] = field(default_factory=dict)
    no_reward: bool = False
    metrics: dict[str, float] = field(default_factory=dict)

    def given(self, ids: np.ndarray) -> None:
        """Append tokens that the policy did not sample."""
        self.ids += ids.tolist()
        self.action_mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def sampled(self, said: Completion, seconds: float) -> None:
        """Append an action that took so long, waiting included."""
        place = len(self.ids)
        self.turns.append(Span(place, place + len(said.ids)))
        self.versions += [VersionSpan(place + a, place + b, v) for a, b, v in said.versions]
        self.ids += said.ids
        self.action_mask += [1] * len(said.ids)
        self.logprobs += said.logprobs
        waited = min(max(said.waited_s, 0.0), seconds)
        self.add("time/waiting_s", waited)
        self.add("time/model_s", seconds - waited)

    def note(self, info: Mapping[str, Any], seconds: float) -> None:
        """Keep what a call of the environment took and says of its parts and of the episode."""
        self.add("time/environment_s", seconds)
        for kind, part in info.get("timings", {}).items():
            name = kind if kind.startswith("tool/") else f"environment/{kind}"
            self.add(f"time/{name}_s", part)
        for name, value in info.get("metrics", {}).items():
            self.metrics[name] = value
        self.reward_parts |= info.get("reward_parts", {})
        self.no_reward = self.no_reward or bool(info.get("no_reward"))

    def add(self, name: str, value: float) -> None:
        """Add to a metric."""
        self.metrics[name] = self.metrics.get(name, 0.0) + value


async def rollout(
    env: gymnasium.Env[Any, Any],
    agent: Agent,
    row: Mapping[str, Any] | None,
    *,
    seed: int | None = None,
    sampling: Sampling | None = None,
) -> Trajectory:
    """Run one episode to its end.

    An `Environment` is awaited; any other `gymnasium.Env` (one inside wrappers, say) is driven by
    its `reset` and `step` on a thread of its own, so that wrappers count.

    Args:
        env: The environment. It is reset, and not closed.
        agent: Who acts.
        row: The dataset row, or None for one of the environment's own.
        seed: The environment's seed.
        sampling: How to sample. Its `stop_ids` and the cap of `max_new_tokens` come from the
            environment; its seed, if any, gives each turn a seed of its own.

    Raises:
        ConfigError: The environment has no renderer.
        PromptTooLong: The row's prompt leaves no room to act.
        UserCodeError: A hook of the environment's raised.
        InfrastructureError: The agent failed.
    """
    check_sampling_kind(sampling)
    driver = driver_of(env)
    try:
        return await drive(driver, agent, row, seed, sampling or Sampling())
    finally:
        driver.release()


async def drive(
    driver: Driver,
    agent: Agent,
    row: Mapping[str, Any] | None,
    seed: int | None,
    sampling: Sampling,
) -> Trajectory:
    """What `rollout` does, with a driver that its caller keeps for further episodes."""
    _check_renderer(driver.env.unwrapped)
    record = _Record()
    clock = time.perf_counter
    started = before = clock()
    prompt, info = await driver.reset(seed, None if row is None else {"row": row})
    record.given(prompt)
    record.note(info, clock() - before)
    terminated = truncated = False
    while not (terminated or truncated):
        _stop_if_cancelled()
        before = clock()
        said = await agent.generate(record.ids, _for_turn(sampling, info, len(record.turns)))
        record.sampled(said, clock() - before)
        before = clock()
        action = np.array(said.ids, dtype=np.int64)
        observation, reward, terminated, truncated, info = await driver.step(action)
        record.given(observation)
        record.turn_rewards.append(float(reward))
        record.note(info, clock() - before)
    if "failure" in info:
        why = visible_line(info["failure"])
        logger.warning("an episode broke under its environment: %s", why)
    record.metrics["time/episode_s"] = clock() - started
    inner = driver.env.unwrapped
    return Trajectory(
        ids=record.ids,
        action_mask=record.action_mask,
        logprobs=record.logprobs,
        prompt_length=len(prompt),
        turns=record.turns,
        turn_rewards=record.turn_rewards,
        stop_reason=_stop_reason(info, terminated),
        terminated=bool(terminated),
        truncated=bool(truncated),
        messages=inner.messages if isinstance(inner, Environment) else [],
        versions=record.versions,
        reward_parts=record.reward_parts,
        no_reward=record.no_reward,
        metrics=record.metrics,
        row=dict(inner.row if isinstance(inner, Environment) else row or {}),
        seed=seed,
    )


def _check_renderer(env: gymnasium.Env[Any, Any]) -> None:
    if isinstance(env, Environment) and env.renderer is None:
        name = type(env).__name__
        raise ConfigError(
            f"{name} has no renderer, so its prompt has no token ids for an agent to continue. "
            f"Make it with one: make({name}, tokenizer), or {name}(renderer=Renderer(tokenizer))."
        )


def _stop_if_cancelled() -> None:
    """A tool may have swallowed the cancellation of the episode."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _for_turn(sampling: Sampling, info: Mapping[str, Any], turn: int) -> Sampling:
    """The environment's stop ids and budget, and this turn's own seed."""
    left = info.get("tokens_left")
    most = sampling.max_new_tokens
    return replace(
        sampling,
        stop_ids=tuple(info.get("stop_ids", sampling.stop_ids)),
        max_new_tokens=most if left is None else min(most, left),
        seed=None if sampling.seed is None else derive(sampling.seed, "turn", turn),
    )


def _stop_reason(info: Mapping[str, Any], terminated: bool) -> StopReason:
    """The environment's own reason; a wrapper that ended the episode gives none."""
    if info.get("stop_reason") is not None:
        return StopReason(info["stop_reason"])
    return StopReason.environment if terminated else StopReason.max_turns
