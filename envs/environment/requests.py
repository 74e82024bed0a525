"""Requests: a turn where a program has the loop, and what it asks next is the observation.

    read       the action becomes an assistant message         `TokenContext.read`
    reward     `turn_reward` and `text_rewards` score it        `turn.py`
    ask        the message answers the pending request, and the
               program's next one is awaited                    `Environment.next_request`
    place      it extends a context or opens one; where it does
               not fit, whoever asked is told, and may ask again
    end        the program ended, or a limit was reached; then it is stopped before it is scored

Where the environment has the loop, `turn.py` says what a turn does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gymnast.envs.environment import turn as turns
from gymnast.envs.environment.episode_runner import EpisodeRunner
from gymnast.envs.environment.rows import own_messages, with_system_prompt
from gymnast.envs.environment.state import EpisodeState
from gymnast.envs.environment.tokens.contexts import TokenContexts
from gymnast.envs.environment.user_code import checked_request
from gymnast.envs.records.endings import first_reason
from gymnast.envs.records.episode import CallRecord, Info, Outcome, ToolError, Turn
from gymnast.envs.records.messages import json_message, parse_tool_calls, text_of
from gymnast.envs.records.next_request import NextRequest
from gymnast.envs.tools.running import within
from gymnast.errors import NoRequest, PromptTooLong, TemplateError
from gymnast.threads import Overrun, in_background
from gymnast.types import Message, StopReason, ToolCall

_LONG_CHARACTERS = 200_000  # a tokenizer reads some million a second, or less
_MOST_REFUSED = 16  # requests in a row: a program that asks the same again would never end


@dataclass(frozen=True)
class Placed:
    """What a program asked next, in its context; or why the episode ends instead.

    Attributes:
        reason: Why it ends; None: it goes on.
        ids: What was appended to a known context, of shape [O]; the prompt of the first.
        messages: What the request appended, or the prompt of a new context.
        info: `branch`, and for a new context `prompt_ids`.
    """

    reason: StopReason | None = None
    ids: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    info: Info = field(default_factory=dict)


async def first(runner: EpisodeRunner, contexts: TokenContexts | None) -> Placed:
    """Await the first request of an episode, which opens context 0.

    Args:
        runner: Runs the episode, which is set up.
        contexts: Its ids; None without a renderer.

    Returns:
        The request, its prompt as `ids`.

    Raises:
        NoRequest: The program ended before it asked anything, or asked nothing in time.
        PromptTooLong: The prompt leaves no token to sample.
        TemplateError: The chat template refuses the prompt.
        UserCodeError: The hook raised.
        InfrastructureError: Something that the episode runs on broke.
    """
    blame = runner.blame("next_request")
    try:
        request = await _next_request(runner, None, False)
    except Overrun as error:
        seconds = runner.limit("episode_timeout_s")
        raise blame.error(
            f"the program asked nothing within episode_timeout_s={seconds}: raise it, or see that "
            "the program asks the address that it is given",
            NoRequest,
        ) from error
    if request is None:
        runner.state.program_runs = False
        raise blame.error(
            "returned None at once: the program ended before its first request; see that it asks "
            "the address that it is given",
            NoRequest,
        )
    placed = await _placed(runner, contexts, request)
    ids = placed.info.pop("prompt_ids", [])
    return replace(placed, ids=ids)


async def step(
    runner: EpisodeRunner, contexts: TokenContexts, action: list[int]
) -> tuple[list[int], turns.Ending]:
    """Take a turn in token ids, as `turn.step` does.

    Returns:
        The ids that the next request appends, of shape [O], none where it opens a context; and the
        reward, whether the episode is terminated, whether it is truncated, and the info.

    Raises:
        UserCodeError: A hook raised.
    """
    context = contexts.current
    renderer = context.renderer
    with runner.state.timings.measure("parse"):
        message = context.read(action)
    cut = not action or action[-1] not in renderer.stop_ids
    taken = await _taken(runner, message, raw=renderer.decode(action))
    placed = await _following(runner, contexts, taken, cut=cut)
    ending = await turns.ended(runner, taken, placed.reason)
    ending[-1].update(placed.info)
    turns.pay_by_token(ending[-1], renderer.decode, action)
    return placed.ids, ending


async def act(runner: EpisodeRunner, message: Mapping[str, Any]) -> Outcome:
    """Take a turn in messages, to which token limits do not apply.

    Returns:
        As `turn.act`; its messages are those that the next request appends to its context, or the
        whole prompt of a new one, and its info has `branch`.

    Raises:
        UserCodeError: A hook raised.
    """
    taken = await _taken(runner, message)
    placed = await _following(runner, None, taken, cut=False)
    ending = await turns.ended(runner, taken, placed.reason)
    ending[-1].update(placed.info)
    return Outcome(placed.messages, *ending)


async def _taken(
    runner: EpisodeRunner, message: Mapping[str, Any], *, raw: str | None = None
) -> turns.TurnTaken:
    """Record and score a turn, whose calls are the program's business."""
    state = runner.state
    runner.boxes.policy_acts()
    index = len(state.turns)
    calls = parse_tool_calls(message, turn=index)
    offered = {schema.get("function", schema).get("name") for schema in state.offered[state.branch]}
    turn = Turn(index, json_message(message, calls), branch=state.branch)
    turn = replace(
        turn,
        calls=tuple(_unanswered(call, offered) for call in calls),
        raw=turn.text if raw is None else raw,
    )
    reward, text_rewards = 0.0, list[tuple[int, float]]()
    with state.settling(runner.boxes):
        reward, text_rewards = await turns.rewarded(runner, turn)
    state.turns.append(turn)
    holds = {
        StopReason.error: state.failure is not None,
        StopReason.environment: state.ended,
        StopReason.max_turns: state.cut_off,
        StopReason.timeout: (left_s := state.time_left_s) is not None and left_s <= 0,
    }
    holding = {reason for reason, holding in holds.items() if holding}
    return turns.TurnTaken(turn, reward, holding, text_rewards)


async def _following(
    runner: EpisodeRunner, contexts: TokenContexts | None, taken: turns.TurnTaken, *, cut: bool
) -> Placed:
    """Answer the pending request, and place the next one; or say why the episode ends."""
    state = runner.state
    if taken.holding:
        return Placed(first_reason(taken.holding))
    placed = Placed()
    with state.settling(runner.boxes):
        placed = await _asked(runner, contexts, taken.turn.message, cut=cut)
    return placed if state.broken is None else Placed(state.broken)


async def _asked(
    runner: EpisodeRunner, contexts: TokenContexts | None, message: Message, *, cut: bool
) -> Placed:
    """Ask for requests until one fits, the program ends or a limit is reached."""
    state = runner.state
    answer: Message | None = message
    for _ in range(_MOST_REFUSED):
        try:
            request = await _next_request(runner, answer, cut)
        except Overrun:
            return Placed(StopReason.timeout)
        if request is None:
            state.program_runs = False
            return Placed(StopReason.environment)
        if reason := _limit(runner, contexts, request):
            return Placed(reason)
        try:
            return await _placed(runner, contexts, request)
        except (PromptTooLong, TemplateError) as error:
            with runner.blame("next_request").of_what_raises():
                request.refuse(str(error))
        answer, cut = None, False
    return Placed(StopReason.context)


async def _next_request(
    runner: EpisodeRunner, message: Message | None, cut: bool
) -> NextRequest | None:
    """What the hook returns, checked.

    Raises:
        Overrun: The episode's time was up before.
        UserCodeError: The hook raised, or returned something else.
    """
    left_s = runner.state.time_left_s
    if left_s is not None and left_s <= 0:
        raise Overrun
    with runner.state.timings.measure("request"):
        asked = await within(runner.hook("next_request", message, cut), left_s)
    if asked is None:
        return None
    return checked_request(asked, len(runner.state.offered), runner.blame("next_request"))


def _limit(
    runner: EpisodeRunner, contexts: TokenContexts | None, request: NextRequest
) -> StopReason | None:
    """Why a request cannot be answered, whatever its length; None: it can."""
    state = runner.state
    holds = {
        StopReason.environment: state.ended,
        StopReason.context: request.branch is None and not state.follows_branches,
        StopReason.max_tokens: contexts is not None and contexts.is_spent,
        StopReason.max_turns: state.cut_off or len(state.turns) >= runner.limit("max_turns"),
    }
    return first_reason({reason for reason, holding in holds.items() if holding})


async def _placed(
    runner: EpisodeRunner, contexts: TokenContexts | None, request: NextRequest
) -> Placed:
    """Do what `_place` does; of a long text, whose tokens take seconds, beside the event loop."""
    place = partial(_place, runner, contexts, request)
    long = sum(len(text_of(message)) for message in request.messages) > _LONG_CHARACTERS
    return await in_background(place) if long else place()


def _place(runner: EpisodeRunner, contexts: TokenContexts | None, request: NextRequest) -> Placed:
    """Append a request to its context, or open one with it.

    Raises:
        PromptTooLong: It leaves no token to sample; nothing changes.
        TemplateError: The chat template refuses it; nothing changes.
    """
    state, messages, ids = runner.state, list(request.messages), list[int]()
    if contexts is not None:
        contexts.wanted = request.max_tokens
    if request.branch is not None:
        if contexts is not None:
            with state.timings.measure("render"):
                ids = contexts.extend(request.branch, messages)
        _extend(state, request.branch, messages)
        return Placed(None, ids, messages, {"branch": state.branch})
    own = own_messages(messages)
    if not request.plain:
        messages = with_system_prompt(messages, runner.hooks.system_prompt)
    schemas: list[dict[str, Any]] = [dict(tool) for tool in request.tools]
    if contexts is not None:
        with state.timings.measure("render"):
            ids = contexts.open(messages, schemas, plain=request.plain)
    if state.offered:
        state.other_prompts.append(tuple(messages))
    else:
        state.prompt, state.own_messages = messages, own
    state.offered.append(schemas)
    state.branch = len(state.offered) - 1
    prompt = {} if contexts is None else {"prompt_ids": ids}
    return Placed(None, [], messages, {"branch": state.branch, **prompt})


def _extend(state: EpisodeState, branch: int, messages: list[Message]) -> None:
    """Record what a request appends to a context: it answers the last turn there."""
    state.branch = branch
    turn = next(turn for turn in reversed(state.turns) if turn.branch == branch)
    texts = {
        message.get("tool_call_id"): text_of(message)
        for message in messages
        if message["role"] == "tool"
    }
    calls = tuple(
        replace(record, text=texts[record.call.id], result=texts[record.call.id])
        if record.call.id in texts and record.error is None
        else record
        for record in turn.calls
    )
    state.turns[turn.index] = replace(turn, calls=calls, results=tuple(messages))


def _unanswered(call: ToolCall, offered: set[Any]) -> CallRecord:
    """The record of a call before the program has run it, with what is wrong with it at sight."""
    error = None
    if call.error is not None:
        error = ToolError("malformed", call.name, call.error)
    elif call.name not in offered:
        error = ToolError("unknown_tool", call.name, f"the request offers no tool {call.name!r}")
    return CallRecord(call, {}, None, "", error, 0.0)
