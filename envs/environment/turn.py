"""One turn, from the ids that the policy sampled to the ids that follow them.

    read      the action becomes an assistant message        `TokenContext.read`
    run       its calls run, each to a result                `EpisodeTools.runner`
    respond   without calls: what the environment says       `EpisodeRunner.respond`
    reward    `turn_reward` and `text_rewards` score it
    answer    results or response become ids, where they fit `TokenContext.answer`
    end       the turn is recorded; after the last one the episode is scored and cleaned up

`step` does all of it; `act` takes the same turn in messages, without reading and without ids.
Where a program has the loop, `requests.py` says what a turn does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gymnast.envs.environment.episode_runner import EpisodeRunner
from gymnast.envs.environment.tokens.context import TokenContext, paid_by_token
from gymnast.envs.environment.user_code import checked_number, checked_sum, checked_text_rewards
from gymnast.envs.records.endings import first_reason
from gymnast.envs.records.episode import Info, Outcome, Turn
from gymnast.envs.records.messages import json_message, parse_tool_calls
from gymnast.envs.tools import bugs
from gymnast.envs.tools.running import answer
from gymnast.errors import PromptTooLong
from gymnast.threads import Overrun
from gymnast.types import StopReason

Ending = tuple[float, bool, bool, Info]


class TurnTaken(NamedTuple):
    """A turn whose tools have run, before it is known whether it is the last.

    Attributes:
        turn: The message, its calls and their results.
        reward: The value of `turn_reward`, and what `text_rewards` pays.
        holding: The reasons to end the episode, other than token limits.
        text_rewards: What is paid where in `turn.raw`.
    """

    turn: Turn
    reward: float
    holding: set[StopReason]
    text_rewards: Sequence[tuple[int, float]] = ()


async def step(
    runner: EpisodeRunner, context: TokenContext, action: list[int]
) -> tuple[list[int], Ending]:
    """Take a turn in token ids.

    Args:
        runner: Runs the episode.
        context: The episode's ids, to which the action and what follows it are appended.
        action: The sampled ids, of shape [A], their stop id included.

    Returns:
        The ids to append, of shape [O], and the reward, whether the episode is terminated, whether
        it is truncated, and the info.

    Raises:
        UserCodeError: A hook raised.
    """
    renderer, timings = context.renderer, runner.state.timings
    with timings.measure("parse"):
        message = context.read(action)
    cut = not action or action[-1] not in renderer.stop_ids
    taken = await _taken(runner, message, raw=renderer.decode(action), cut=cut)
    with timings.measure("render"):
        observation, reason = context.answer(taken.turn.results, taken.holding)
    runner.state.turns.append(taken.turn)
    ending = await ended(runner, taken, reason)
    pay_by_token(ending[-1], renderer.decode, action)
    return observation, ending


async def act(runner: EpisodeRunner, message: Mapping[str, Any]) -> Outcome:
    """Take a turn in messages, to which token limits do not apply.

    Args:
        runner: Runs the episode.
        message: What the policy says.

    Raises:
        UserCodeError: A hook raised.
    """
    taken = await _taken(runner, message)
    runner.state.turns.append(taken.turn)
    ending = await ended(runner, taken, first_reason(taken.holding))
    return Outcome(list(taken.turn.results), *ending)


async def _taken(
    runner: EpisodeRunner, message: Mapping[str, Any], *, raw: str | None = None, cut: bool = False
) -> TurnTaken:
    """Run a message's calls and score the turn.

    Args:
        runner: Runs the episode.
        message: What the policy wrote.
        raw: All that it wrote, markup included; None: the message's text.
        cut: Whether the message reached its maximum length.
    """
    state = runner.state
    runner.boxes.policy_acts()
    index = len(state.turns)
    calls = parse_tool_calls(message, turn=index)
    turn = Turn(index, json_message(message, calls))
    turn = replace(turn, raw=turn.text if raw is None else raw)
    reward, text_rewards = 0.0, list[tuple[int, float]]()
    answered, reached = False, set[StopReason]()
    with state.settling(runner.boxes):
        with state.timings.measure("tools"):
            records = await runner.run_calls(calls)
        turn = replace(turn, calls=tuple(records), results=tuple(map(answer, records)))
        if not calls and not cut:
            try:
                said = await runner.respond(turn.message)
                answered, turn = said is None, replace(turn, results=tuple(said or ()))
            except Overrun:
                reached.add(StopReason.timeout)
            except PromptTooLong:  # for the agent that it asks
                reached.add(StopReason.context)
        bugs.warn_of_bugs(type(runner.hooks), turn.errors, state.row)
        reward, text_rewards = await rewarded(runner, turn)
    most = runner.limit("max_turns")
    holding = state.holding(turn, answered=answered, cut=cut, max_turns=most)
    holding |= reached
    # After a failure, or without a complete call in a message that was cut, there is no answer.
    if state.failure is not None or StopReason.max_tokens in holding:
        turn = replace(turn, results=())
    return TurnTaken(turn, reward, holding, text_rewards)


async def rewarded(runner: EpisodeRunner, turn: Turn) -> tuple[float, list[tuple[int, float]]]:
    """Score a turn.

    Returns:
        What it is paid in all, and what of it `text_rewards` pays where in `turn.raw`.

    Raises:
        UserCodeError: A hook raised, or returned something else.
    """
    with runner.state.timings.measure("reward"):
        returned = await runner.scoring_hook("turn_reward", 0.0, turn)
        paid = await runner.scoring_hook("text_rewards", (), turn)
    reward = checked_number(returned, runner.blame("turn_reward"))
    blame = runner.blame("text_rewards")
    text_rewards = checked_text_rewards(paid, turn.raw, blame)
    added = checked_sum([value for _, value in text_rewards], blame, "the rewards of the places")
    whole = checked_sum([reward, added], blame, "the rewards of the turn and of its places")
    return whole, text_rewards


def pay_by_token(info: Info, decode: Callable[[Sequence[int]], str], action: list[int]) -> None:
    """Say in the info what `text_rewards` pays at each token of the action, if it pays anything."""
    if paid := info.get("text_rewards"):
        info["token_rewards"] = paid_by_token(decode, action, paid)


async def ended(runner: EpisodeRunner, taken: TurnTaken, reason: StopReason | None) -> Ending:
    """Where a turn was the last, score and close the episode; say what it brought.

    Args:
        runner: Runs the episode.
        taken: The turn, which is recorded.
        reason: Why it is the last one; None if it is not.

    Raises:
        UserCodeError: A hook raised, or returned what is not a finite number; or the rewards of the
            episode add up to more than a float holds.
    """
    state, turn, reward = runner.state, taken.turn, taken.reward
    extra: Info = {}
    if reason is None:
        with state.settling(runner.boxes):
            extra = await runner.next_state()
        reason = state.broken  # while the hook ran
    state.stop_reason = reason
    if reason is not None:
        reward, extra = await runner.end(reward)
    if taken.text_rewards and state.broken is None:
        extra["text_rewards"] = list(taken.text_rewards)
    blame = runner.blame("turn_reward" if reason is None else "reward")
    state.paid = checked_sum([state.paid, reward], blame, "the rewards of the episode's turns")
    ended = state.stop_reason
    info = {
        "timings": state.timings,
        "tool_calls": turn.tool_calls,
        "errors": turn.errors,
        "stop_reason": ended,
        **extra,
    }
    terminated = ended is not None and ended.terminated
    return reward, terminated, ended is not None and not terminated, info
