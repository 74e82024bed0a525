"""One episode in messages: a speaker says what the policy would say, and no token is sampled.

`rollouts/one_episode.py` plays in tokens. What is played here can be evaluated, or be learned from
once its messages are tokens (`Renderer.encode`).
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from gymnast.envs import Environment, Outcome
from gymnast.envs.environment.solution import solve_episode
from gymnast.errors import ConfigError
from gymnast.types import Message, Sampling, Span, StopReason, Trajectory


class EpisodeSpeaker(Protocol):
    """Says the assistant messages of one episode, as a `Speaker`, and counts what they take."""

    async def __call__(
        self, messages: list[Message], tools: list[dict[str, Any]]
    ) -> Mapping[str, Any]:
        """The next assistant message."""
        ...

    def metrics(self) -> dict[str, float]:
        """What the episode took, under the names of `Trajectory.metrics`."""
        ...


@runtime_checkable
class SpeakingAgent(Protocol):
    """An agent that answers in messages and has no token ids: `gymnast.agents.ChatAgent`, say."""

    def speaker(self, sampling: Sampling | None = None) -> EpisodeSpeaker:
        """Who says the messages of one episode."""
        ...


Speaker = Callable[[list[Message], list[dict[str, Any]]], Awaitable[Mapping[str, Any]]]


async def play_messages(
    env: Environment,
    speaker: Speaker,
    row: Mapping[str, Any] | None,
    *,
    seed: int | None = None,
) -> Trajectory:
    """Play one episode in messages.

        async def speaker(messages, tools):
            return {"role": "assistant", "content": "42"}

        trajectory = await play_messages(env, speaker, row)

    Args:
        env: The environment; it needs no renderer. It is reset, and not closed.
        speaker: Says the next assistant message, in OpenAI's shape, given the conversation so far
            and the schemas of the tools. It is awaited once a turn.
        row: The dataset row, or None for one of the environment's own.
        seed: The environment's seed.

    Returns:
        The trajectory, without tokens: `ids`, `action_mask` and `logprobs` are empty, and each of
        `turns` is `Span(0, 0)`.

    Raises:
        ConfigError: What the speaker said is no message.
        PromptTooLong: The environment has a renderer, and the prompt leaves no room to act.
        UserCodeError: A hook of the environment raised.
    """

    async def converse() -> list[Outcome]:
        outcomes: list[Outcome] = []
        while not outcomes or not (outcomes[-1].terminated or outcomes[-1].truncated):
            message = await speaker(env.messages, env.tools)
            if not isinstance(message, Mapping):
                raise ConfigError(
                    f"the speaker must return an assistant message, a dict, got {message!r:.100}"
                )
            outcomes.append(await env.act(message))
        return outcomes

    return await _play(env, row, seed, converse, agent=speaker)


async def play_solution(
    env: Environment, row: Mapping[str, Any] | None, *, seed: int | None = None
) -> Trajectory:
    """Play the episode that the environment's `solve` says.

    Args:
        env: As for `play_messages`.
        row: As for `play_messages`.
        seed: As for `play_messages`.

    Returns:
        The trajectory, without tokens; its reward may be any.

    Raises:
        ConfigError: The environment has no `solve`.
        NoSolution: It has no solution for this row.
        UserCodeError: The solution is wrong: it raised, a call in it failed, or the episode ended
            before it did, or did not end with it.
        InfrastructureError: Something that the episode runs on broke.
    """
    return await _play(env, row, seed, partial(solve_episode, env))


async def _play(
    env: Environment,
    row: Mapping[str, Any] | None,
    seed: int | None,
    act: Callable[[], Awaitable[list[Outcome]]],
    agent: Speaker | None = None,
) -> Trajectory:
    """Begin an episode, have `act` take its turns, and keep it."""
    started = time.perf_counter()
    options: dict[str, Any] = {} if row is None else {"row": row}
    _, info = await env.areset(seed=seed, options=options | {"agent": agent})
    tools = env.tools
    outcomes = await act()
    seconds = time.perf_counter() - started
    trajectory = _trajectory(env, outcomes, seed, seconds)
    infos = [info, *(outcome.info for outcome in outcomes)]
    return replace(
        trajectory, tools=tools, states=[each["state"] for each in infos if "state" in each]
    )


def _trajectory(
    env: Environment, outcomes: Sequence[Outcome], seed: int | None, seconds: float
) -> Trajectory:
    last = outcomes[-1]
    return Trajectory(
        ids=[],
        action_mask=[],
        logprobs=[],
        prompt_length=0,
        turns=[Span(0, 0)] * len(outcomes),
        turn_rewards=[float(outcome.reward) for outcome in outcomes],
        stop_reason=StopReason(last.info["stop_reason"]),
        terminated=last.terminated,
        truncated=last.truncated,
        messages=env.messages,
        reward_parts=last.info.get("reward_parts", {}),
        no_reward=bool(last.info.get("no_reward")),
        metrics={**last.info.get("metrics", {}), "time/episode_s": seconds},
        row=dict(env.row),
        seed=seed,
    )
