"""A conversation as an episode in tokens: what the environment gives, and what the policy says.

    prompt     the messages before the policy's first one      mask 0     Renderer.prompt
    action     each message of the policy                      mask 1     Renderer.encode
    observed   what the environment answers to it              mask 0     Renderer.observe

The ids are those that `Environment.step` would give for the same actions. Ids that were sampled are
never decoded and encoded again: this is for messages that nobody sampled here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from gymnast.envs import Renderer
from gymnast.envs.records.messages import in_openai_shape
from gymnast.errors import DataError
from gymnast.trainers.base.contexts import alone, together
from gymnast.types import Message, Span, StopReason, Trajectory


def trajectory_of(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    renderer: Renderer,
    *,
    turns: int | None = None,
) -> Trajectory:
    """Lay a conversation out as an episode.

        trajectory = trajectory_of(messages, tools, renderer, turns=2)

    Args:
        messages: The whole conversation, in OpenAI's shape.
        tools: The schemas that were offered, in OpenAI's shape.
        renderer: Of the policy that is to learn.
        turns: How many of the assistant's messages are the policy's: the last so many. Those before
            are part of the prompt, as worked turns are. None: all of them.

    Returns:
        The trajectory: `logprobs` are 0.0, and there is no reward, which messages do not tell.

    Raises:
        DataError: The assistant says fewer messages than that, or none.
        TemplateError: The chat template cannot say one of the messages.
        UsageError: A call among them could not be read.
    """
    spoken = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    count = len(spoken) if turns is None else turns
    if not 0 < count <= len(spoken):
        wanted = "at least one" if turns is None else f"at least {turns}"
        raise DataError(
            f"messages: must hold {wanted} of the assistant, got {len(spoken)}; "
            f"the roles are {', '.join(str(m.get('role')) for m in messages) or 'none'}"
        )
    begins = [*spoken[-count:], len(messages)]
    offered = list(tools) or None
    ids = list(renderer.prompt(messages[: begins[0]], offered))
    prompt_length, mask, spans = len(ids), [0] * len(ids), []
    for begin, following in pairwise(begins):
        action = renderer.encode(messages[begin], tools=offered)
        spans.append(Span(len(ids), len(ids) + len(action)))
        names = _call_ids(messages[begin], renderer.parse(action, context_ids=ids, tools=offered))
        ids, mask = ids + action, mask + [1] * len(action)
        goes_on = following < len(messages)
        answers = [_renamed(message, names) for message in messages[begin + 1 : following]]
        if answers or goes_on:
            seen = renderer.observe(ids, answers, tools=offered, generation_prompt=goes_on)
            ids, mask = ids + seen, mask + [0] * len(seen)
        offered = _offered_after(answers, offered)
    return Trajectory(
        ids=ids,
        action_mask=mask,
        logprobs=[0.0] * len(ids),
        prompt_length=prompt_length,
        turns=spans,
        turn_rewards=[0.0] * count,
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        no_reward=True,
        messages=[_as_message(message) for message in messages],
        tools=list(tools),
    )


def with_tokens(trajectory: Trajectory, renderer: Renderer) -> Trajectory:
    """An episode that was played in messages, with the tokens that a policy would have sampled.

    Args:
        trajectory: Of `play_messages` or `play_solution`; its other fields stay as they are.
        renderer: Of the policy that is to learn.

    Raises:
        TemplateError: The chat template cannot say one of the messages.
    """
    return together(trajectory, [_laid_out(each, renderer) for each in alone(trajectory)])


def _laid_out(context: Trajectory, renderer: Renderer) -> Trajectory:
    """One context with its tokens."""
    laid_out = trajectory_of(context.messages, context.tools, renderer, turns=len(context.turns))
    return replace(
        context,
        ids=laid_out.ids,
        action_mask=laid_out.action_mask,
        logprobs=laid_out.logprobs,
        prompt_length=laid_out.prompt_length,
        turns=laid_out.turns,
        versions=(),
        token_rewards=(),
        experts=None,
    )


def _offered_after(answers: Sequence[Mapping[str, Any]], offered: Any) -> Any:
    """The tools that are offered after some answers, the last of which may change them."""
    changed = answers[-1].get("tools") if answers else None
    return offered if changed is None else list(changed) or None


def _call_ids(said: Mapping[str, Any], read: Message) -> dict[str, str]:
    """The ids that an environment gives to calls when it reads them, by those they were said with.

    Some templates write ids with results alone, and no other id would be seen in an episode.
    """
    pairs = zip(in_openai_shape(said).get("tool_calls") or (), read["tool_calls"], strict=False)
    return {str(call.get("id")): found.id for call, found in pairs}


def _renamed(answer: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    given = str(answer.get("tool_call_id"))
    return {**answer, "tool_call_id": names[given]} if given in names else answer


def _as_message(message: Mapping[str, Any]) -> Message:
    shaped: Any = in_openai_shape(message)
    return shaped
