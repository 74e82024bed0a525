"""One episode: the only place where an agent meets an environment.

    ids = reset()                              mask 0
    until the environment ends it:
        action = agent.generate(ids)           mask 1
        ids += action
        ids += step(action)                    mask 0

Nothing here knows messages or tools: an episode is token ids. Where a program has the loop, the
environment says in which context of the episode to go on; `recording/` keeps these, and what else
an episode leaves behind. `many_episodes.py` plays many at once, in groups and with retries;
`metrics.py` says what their metrics mean.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from gymnast.agents.base import Agent
from gymnast.envs import Environment
from gymnast.envs.environment.user_code import Blame
from gymnast.errors import ConfigError, shown
from gymnast.numbers import as_float
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.base.token_ids import shared_ids
from gymnast.trainers.conversations.agent_speaker import AgentSpeaker, AskedByHooks
from gymnast.trainers.conversations.play import EpisodeSpeaker, SpeakingAgent, play_messages
from gymnast.trainers.data.inputs import check_sampling_kind
from gymnast.trainers.rollouts.drivers import Driver, make_driver
from gymnast.trainers.rollouts.recording.episode import Over, Record, trajectory_of
from gymnast.types import Completion, Sampling, Trajectory
from gymnast.visible import visible_line, visible_logger

logger = visible_logger(__name__)


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
    parallel_requests: bool = True,
) -> Trajectory:
    """Do what `rollout` does, with a driver that the caller keeps for further episodes.

    With `hint`, the environment is asked for what a teacher sees. Without `parallel_requests`, a
    program that has the loop may not ask while another of its requests is unanswered.

    Raises:
        ConfigError: The environment gives no hints; and what `rollout` raises.
    """
    if isinstance(agent, SpeakingAgent):
        speaker = agent.speaker(sampling)
        return await _in_messages(driver.env, speaker, row, seed, parallel_requests)
    _check_renderer(driver.env.unwrapped)
    options: dict[str, Any] = {} if row is None else {"row": row}
    options |= {"hint": True} if hint else {}
    if isinstance(driver.env.unwrapped, Environment):
        options |= {"branches": True, "parallel_requests": parallel_requests}
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
    record, clock, hint = Record(), time.perf_counter, "hint" in options
    started = before = clock()
    prompt, info = await driver.reset(seed, options or None)
    played = driver.env.unwrapped
    record.tools = played.tools if isinstance(played, Environment) else ()
    record.teacher_prompt_ids = _hinted(info, played) if hint else []
    record.begin(prompt)
    del prompt  # an episode is held for long, and its tokens once
    record.keep(_checked(info, "reset", driver, row), clock() - before)
    terminated = truncated = False
    while not (terminated or truncated):
        _stop_if_cancelled()
        context = record.current
        context.enter(info)
        before = clock()
        action = await agent.generate(context.ids, _for_turn(sampling, info, len(record.order)))
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
        record.pay(_number(reward, "the reward", "step", driver, row), info)
        record.follow(observation, info, over=terminated or truncated)
        del action_ids, observation
        record.keep(_checked(info, "step", driver, row), clock() - before)
    record.leave_out(info.get("unreceived", ()))
    if "failure" in info:
        why = visible_line(info["failure"])
        logger.warning("the infrastructure of an environment broke: %s", why)
    record.metrics["time/episode_s"] = clock() - started
    over = Over(info, bool(terminated), bool(truncated))
    return trajectory_of(record, over, played, row, seed)


def _number(value: Any, what: str, call: str, driver: Driver, row: Any) -> float:
    """A number of any `gymnasium.Env` as a float; NaN and infinities stay, and are excluded later.

    Raises:
        UserCodeError: It is not a number.
    """
    try:
        return as_float(value)
    except ValueError as error:
        blame = Blame(type(driver.env).__name__, call, row)
        raise blame.error(f"{what} is {shown(value)}; it must be a finite number") from error


def _checked(info: Mapping[str, Any], call: str, driver: Driver, row: Any) -> Mapping[str, Any]:
    """An info whose metrics and parts of the reward are floats.

    Raises:
        UserCodeError: One is not a number, or they are not dicts.
    """
    numbers: dict[str, Any] = {}
    for key in ("metrics", "reward_parts"):
        named = info.get(key)
        if named is None:
            continue
        if not isinstance(named, Mapping):
            blame = Blame(type(driver.env).__name__, call, row)
            raise blame.error(f"info[{key!r}] is {shown(named)}; it must be a dict of numbers")
        numbers[key] = {
            str(name): _number(value, f"info[{key!r}][{name!r}]", call, driver, row)
            for name, value in named.items()
        }
    return {**info, **numbers} if numbers else info


async def _in_messages(
    env: gymnasium.Env[Any, Any],
    speaker: EpisodeSpeaker,
    row: Mapping[str, Any] | None,
    seed: int | None,
    parallel_requests: bool,
) -> Trajectory:
    """What an agent without token ids plays."""
    if not isinstance(env, Environment):
        raise ConfigError(
            f"environment: {env} takes token ids alone, and the agent answers in messages; give an "
            "Environment without wrappers"
        )
    trajectory = await play_messages(
        env, speaker, row, seed=seed, parallel_requests=parallel_requests
    )
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
