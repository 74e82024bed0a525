"""One episode in messages: a speaker says what the policy would say, and no token is sampled.

Where a program has the loop, the speaker sees in each turn the context that the program asks in.
`rollouts/one_episode.py` plays in tokens. What is played here can be evaluated, or be learned from
once its messages are tokens (`Renderer.encode`).
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from gymnast.envs import Environment, Outcome
from gymnast.envs.environment.solution import solve_episode
from gymnast.errors import ConfigError
from gymnast.types import Branch, Message, Sampling, Span, StopReason, Trajectory


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


Info = Mapping[str, Any]
Speaker = Callable[[list[Message], list[dict[str, Any]]], Awaitable[Mapping[str, Any]]]


async def play_messages(
    env: Environment,
    speaker: Speaker,
    row: Mapping[str, Any] | None,
    *,
    seed: int | None = None,
    parallel_requests: bool = True,
) -> Trajectory:
    """Play one episode in messages.

        async def speaker(messages, tools):
            return {"role": "assistant", "content": "42"}

        trajectory = await play_messages(env, speaker, row)

    Args:
        env: The environment; it needs no renderer. It is reset, and not closed.
        speaker: Says the next assistant message, in OpenAI's shape, given the conversation so far
            (of the context that the turn is in) and the schemas of the tools. It is awaited once a
            turn.
        row: The dataset row, or None for one of the environment's own.
        seed: The environment's seed.
        parallel_requests: Whether a program that has the loop may ask while another of its requests
            is unanswered.

    Returns:
        The trajectory, without tokens: `ids`, `action_mask` and `logprobs` are empty, and each of
        `turns` is `Span(0, 0)`. A message that its program never read is a turn like any other;
        `metrics["program/unreceived"]` counts them.

    Raises:
        ConfigError: What the speaker said is no message.
        PromptTooLong: The environment has a renderer, and the prompt leaves no room to act.
        UserCodeError: A hook of the environment raised.
    """

    async def converse(info: Info) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while not outcomes or not (outcomes[-1].terminated or outcomes[-1].truncated):
            said = _said(env, (outcomes[-1].info if outcomes else info).get("branch"))
            message = await speaker(said["messages"], said["tools"])
            if not isinstance(message, Mapping):
                raise ConfigError(
                    f"the speaker must return an assistant message, a dict, got {message!r:.100}"
                )
            outcomes.append(await env.act(message))
        return outcomes

    options = {"agent": speaker, "parallel_requests": parallel_requests}
    return await _play(env, row, seed, converse, options)


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
    return await _play(env, row, seed, lambda _: solve_episode(env), {})


async def _play(
    env: Environment,
    row: Mapping[str, Any] | None,
    seed: int | None,
    act: Callable[[Info], Awaitable[list[Outcome]]],
    options: Mapping[str, Any],
) -> Trajectory:
    """Begin an episode, have `act` take its turns, given the info of `reset`, and keep it."""
    started = time.perf_counter()
    given = {} if row is None else {"row": row}
    _, info = await env.areset(seed=seed, options={"branches": True, **given, **options})
    tools = env.tools
    outcomes = await act(info)
    seconds = time.perf_counter() - started
    trajectory = _trajectory(env, info, outcomes, seed, seconds)
    return replace(trajectory, tools=tools)


def _trajectory(
    env: Environment, info: Info, outcomes: Sequence[Outcome], seed: int | None, seconds: float
) -> Trajectory:
    """The trajectory of some turns; `info` is that of `reset`."""
    last = outcomes[-1]
    infos = [info, *(outcome.info for outcome in outcomes)]  # each, but for the last, of a turn
    order = [int(each.get("branch", 0)) for each in infos[:-1]]
    others = range(1, max(order) + 1)
    return Trajectory(
        **_turns(0, order, infos, outcomes),
        stop_reason=StopReason(last.info["stop_reason"]),
        terminated=last.terminated,
        truncated=last.truncated,
        messages=env.messages,
        reward_parts=last.info.get("reward_parts", {}),
        no_reward=bool(last.info.get("no_reward")),
        metrics={**last.info.get("metrics", {}), "time/episode_s": seconds},
        row=dict(env.row),
        seed=seed,
        branches=[Branch(**_turns(n, order, infos, outcomes), **_said(env, n)) for n in others]
        or (),
        order=order if others else (),
    )


def _turns(
    branch: int, order: Sequence[int], infos: Sequence[Info], outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """What a trajectory has of the turns of one context."""
    own = [number for number, context in enumerate(order) if context == branch]
    return {
        "ids": [],
        "action_mask": [],
        "logprobs": [],
        "prompt_length": 0,
        "turns": [Span(0, 0)] * len(own),
        "turn_rewards": [float(outcomes[number].reward) for number in own],
        "states": [infos[number]["state"] for number in own if "state" in infos[number]],
    }


def _said(env: Environment, branch: int | None) -> dict[str, Any]:
    """The messages of a context, and the tools that are offered in it; None: of the only one."""
    if branch is None:
        return {"messages": env.messages, "tools": env.tools}
    return {"messages": env.messages_of(branch), "tools": env.tools_of(branch)}
