"""One episode: the only place where an agent meets an environment.

    ids = reset()                              mask 0
    until the environment ends it:
        action = agent.generate(ids)           mask 1
        ids += action
        ids += step(action)                    mask 0

Nothing here knows messages or tools: an episode is token ids. `many_episodes.py` plays many of them
at once, in groups and with retries; `metrics.py` says what their metrics mean.
"""

import asyncio
import time
from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import gymnasium
import numpy as np

from gymnast.agents.base import Agent
from gymnast.envs import Environment
from gymnast.errors import ConfigError
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.base.token_ids import shared_ids
from gymnast.trainers.conversations.agent_speaker import AgentSpeaker, AskedByHooks
from gymnast.trainers.conversations.play import EpisodeSpeaker, SpeakingAgent, play_messages
from gymnast.trainers.data.inputs import check_sampling_kind
from gymnast.trainers.rollouts.drivers import Driver, make_driver
from gymnast.types import Completion, Sampling, Span, StopReason, Trajectory, VersionSpan
from gymnast.visible import visible_line, visible_logger

T = TypeVar("T")
logger = visible_logger(__name__)


@dataclass
class _Record:
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
class _Over:
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
        ConfigError: The environment has no renderer, or its info has a state that cannot be hashed
            or rewards that do not fit the tokens; or the agent returned no `Completion`.
        PromptTooLong: The row's prompt leaves no room to act.
        UserCodeError: A hook of the environment raised.
        InfrastructureError: The agent failed.
    """
    check_sampling_kind(sampling)
    driver = make_driver(env)
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
    *,
    hint: bool = False,
) -> Trajectory:
    """Do what `rollout` does, with a driver that the caller keeps for further episodes.

    With `hint`, the environment is asked for what a teacher sees.

    Raises:
        ConfigError: The environment gives no hints; and what `rollout` raises.
    """
    if isinstance(agent, SpeakingAgent):
        return await _in_messages(driver.env, agent.speaker(sampling), row, seed)
    _check_renderer(driver.env.unwrapped)
    options: dict[str, Any] = {} if row is None else {"row": row}
    options |= {"hint": True} if hint else {}
    asked = _asked(driver.env.unwrapped, agent, sampling)
    if asked is None:
        return await _in_tokens(driver, agent, row, seed, sampling, options)
    try:
        return await _in_tokens(driver, agent, row, seed, sampling, options | {"agent": asked})
    finally:
        asked.close()


def _asked(env: Any, agent: Agent, sampling: Sampling) -> AskedByHooks | None:
    """Who says what hooks ask the agent for; None where there are no such hooks."""
    if not isinstance(env, Environment) or env.renderer is None:
        return None
    speaker = AgentSpeaker(agent, env.renderer, sampling, context_length=env.context_length)
    return AskedByHooks(speaker)


async def _in_tokens(
    driver: Driver,
    agent: Agent,
    row: Mapping[str, Any] | None,
    seed: int | None,
    sampling: Sampling,
    options: dict[str, Any],
) -> Trajectory:
    """What an agent with token ids plays; `options` are those of `reset`."""
    record, clock, hint = _Record(), time.perf_counter, "hint" in options
    started = before = clock()
    prompt, info = await driver.reset(seed, options or None)
    played = driver.env.unwrapped
    record.tools = played.tools if isinstance(played, Environment) else ()
    record.teacher_prompt_ids = _hinted(info, played) if hint else []
    prompt_length = record.append_given(prompt)
    del prompt  # an episode is held for long, and its tokens once
    record.keep(info, clock() - before)
    terminated = truncated = False
    while not (terminated or truncated):
        _stop_if_cancelled()
        record.enter(info)
        before = clock()
        action = await agent.generate(record.ids, _for_turn(sampling, info, len(record.turns)))
        if not isinstance(action, Completion):
            raise ConfigError(
                f"agent: {type(agent).__name__}.generate must return a gymnast.types.Completion, "
                f"got {action!r:.100}"
            )
        record.append_action(action, clock() - before)
        before = clock()
        action_ids = np.array(action.ids, dtype=np.int64)
        del action
        observation, reward, terminated, truncated, info = await driver.step(action_ids)
        record.append_given(observation)
        del action_ids, observation
        record.pay(float(reward), info)
        record.keep(info, clock() - before)
    if "failure" in info:
        why = visible_line(info["failure"])
        logger.warning("the infrastructure of an environment broke: %s", why)
    record.metrics["time/episode_s"] = clock() - started
    over = _Over(info, bool(terminated), bool(truncated))
    return _trajectory(record, prompt_length, over, played, row, seed)


async def _in_messages(
    env: gymnasium.Env[Any, Any],
    speaker: EpisodeSpeaker,
    row: Mapping[str, Any] | None,
    seed: int | None,
) -> Trajectory:
    """What an agent without token ids plays."""
    if not isinstance(env, Environment):
        raise ConfigError(
            f"environment: {env} takes token ids alone, and the agent answers in messages; give an "
            "Environment without wrappers"
        )
    trajectory = await play_messages(env, speaker, row, seed=seed)
    return replace(trajectory, metrics={**trajectory.metrics, **speaker.metrics()})


def _check_renderer(env: gymnasium.Env[Any, Any]) -> None:
    if isinstance(env, Environment) and env.renderer is None:
        name = type(env).__name__
        raise ConfigError(
            f"{name} has no renderer, so its prompt has no token ids for an agent to continue. "
            f"Make it with one: make({name}, tokenizer), or {name}(renderer=Renderer(tokenizer))."
        )


def _hinted(info: Mapping[str, Any], env: gymnasium.Env[Any, Any]) -> list[int]:
    """The prompt of a teacher, from the info of `reset`."""
    if "teacher_prompt_ids" not in info:
        raise no_hints(type(env))
    return shared_ids(info["teacher_prompt_ids"])


def no_hints(environment: type) -> ConfigError:
    """The error where a teacher is to use hints that the environment does not give."""
    return ConfigError(
        f"algorithm.teacher.hints: is true, and {environment.__name__} has no hook "
        "hint(row); write one (docs/distillation.md), or set algorithm.teacher.hints to false"
    )


def _stop_if_cancelled() -> None:
    """Raise the cancellation of the episode again: a tool may have swallowed it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _for_turn(sampling: Sampling, info: Mapping[str, Any], turn: int) -> Sampling:
    """`sampling` with the environment's stop ids and token budget, and the turn's own seed."""
    left = info.get("tokens_left")
    most = sampling.max_new_tokens
    return replace(
        sampling,
        stop_ids=tuple(info.get("stop_ids", sampling.stop_ids)),
        max_new_tokens=most if left is None else min(most, left),
        seed=None if sampling.seed is None else derive(sampling.seed, "turn", turn),
    )


def _trajectory(
    record: _Record,
    prompt_length: int,
    over: _Over,
    env: gymnasium.Env[Any, Any],
    row: Mapping[str, Any] | None,
    seed: int | None,
) -> Trajectory:
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
