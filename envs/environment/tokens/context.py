"""The token level of an episode: the context, which only grows, and its limits.

    context' = context + action + observation

An episode of a program may have several: `contexts.py`. The other reasons for an episode to end are
in `state.py`.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gymnast.envs.records.endings import first_reason
from gymnast.envs.rendering.renderer import Renderer
from gymnast.envs.rendering.text_renderer import TextRenderer
from gymnast.errors import PromptTooLong, TemplateError
from gymnast.types import Message, StopReason

Schemas = list[dict[str, Any]]
ContextRenderer = Renderer | TextRenderer

UNLIMITED = 2**31 - 1  # the length of a context without a limit: a number, so that min() works


@dataclass(frozen=True)
class TokenBudget:
    """How many tokens an episode may have.

    Attributes:
        prompt_length: Tokens of the prompt.
        max_tokens: Limit on sampled and observed tokens after the prompt; None: no limit.
        context_length: Limit on all tokens; None: no limit.
    """

    prompt_length: int
    max_tokens: int | None = None
    context_length: int | None = None

    def left(self, length: int) -> int:
        """How many tokens may be added to a context of this length."""
        longest = min((limit for _, limit in self._limits()), default=UNLIMITED)
        return max(0, longest - length)

    def reached(self, length: int) -> set[StopReason]:
        """The limits that leave no token to sample in a context of this length."""
        return {reason for reason, limit in self._limits() if length >= limit}

    def fits(self, length: int) -> bool:
        """Whether a context may be this long."""
        return all(length <= limit for _, limit in self._limits())

    def _limits(self) -> list[tuple[StopReason, int]]:
        """The longest context each limit allows."""
        limits = []
        if self.context_length is not None:
            limits.append((StopReason.context, self.context_length))
        if self.max_tokens is not None:
            limits.append((StopReason.max_tokens, self.prompt_length + self.max_tokens))
        return limits


def close_turn(
    budget: TokenBudget,
    length: int,
    holding: Collection[StopReason],
    render: Callable[[bool], list[int]],
) -> tuple[list[int], StopReason | None]:
    """Decide what follows an action, and whether it was the last one.

    Args:
        budget: The episode's limits.
        length: Tokens of the context, the action included.
        holding: The reasons to end the episode, other than token limits.
        render: Returns the ids of the turn's results, with a generation prompt (True) or without.

    Returns:
        The ids to append, and the reason the episode ends, or None. The results of a turn are
        appended whole or not at all, and a generation prompt only if a token can follow it.
    """
    reached: set[StopReason] = set()
    if not holding:
        ids = render(True)
        reached = budget.reached(length + len(ids))
        if not reached:
            return ids, None
    ids = render(False)
    reached |= budget.reached(length + len(ids))
    if not budget.fits(length + len(ids)):
        ids = []
    return ids, first_reason({*holding, *reached})


def paid_by_token(
    decode: Callable[[Sequence[int]], str],
    ids: Sequence[int],
    text_rewards: Iterable[tuple[int, float]],
) -> list[float]:
    """Pay rewards for places in a text at the tokens that complete it up to there.

    That is the first token after which the text begins as the whole does up to the place. A
    character may take several tokens: it is complete with the last of them.

    Args:
        decode: Ids to text.
        ids: [A].
        text_rewards: Pairs (end, reward), where `decode(ids)[:end]` earns the reward.

    Returns:
        [A].
    """
    text = decode(ids)
    rewards = [0.0] * len(ids)
    for end, reward in text_rewards:
        reaches = partial(_reaches, decode, ids, text[:end])
        rewards[bisect_left(range(len(ids) - 1), True, key=reaches)] += reward
    return rewards


def _reaches(
    decode: Callable[[Sequence[int]], str], ids: Sequence[int], text: str, place: int
) -> bool:
    """Whether a text is complete with the token at this place."""
    return decode(ids[: place + 1]).startswith(text)


def prompt_ids(
    renderer: Renderer, versions: Sequence[Sequence[Message]], tools: Schemas
) -> list[int]:
    """The ids of the first version of a prompt that the chat template takes; [] of none.

    Raises:
        TemplateError: It refuses the last one too.
    """
    for messages in versions[:-1]:
        try:
            return list(renderer.prompt(messages, tools or None))
        except TemplateError:  # two of one role beside each other, say
            continue
    return list(renderer.prompt(versions[-1], tools or None)) if versions else []


def _compact(ids: Sequence[int]) -> "array[int]":
    """Ids in 4 bytes each, a tenth of what a list of them takes; others are no ids of tokens."""
    try:
        return array("i", ids)
    except OverflowError:
        return array("i", [number if 0 <= number < 2**31 else -1 for number in ids])


@dataclass
class TokenContext:
    """The token ids of one context.

    Attributes:
        renderer: Messages to tokens, and back.
        tools: The schemas of the offered tools.
        ids: The prompt, actions and observations, of shape [T]; -1 for what is no token id.
        budget: The limits on how many there may be.
        last_action: How many tokens the last action had.
    """

    renderer: ContextRenderer
    tools: Schemas
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    budget: TokenBudget = field(default_factory=lambda: TokenBudget(0))
    last_action: int = 0

    def begin(
        self, messages: Sequence[Message], max_tokens: int | None, context_length: int | None
    ) -> None:
        """Begin with a prompt.

        Raises:
            PromptTooLong: It leaves no token to sample.
        """
        self.ids = _compact(self.renderer.prompt(messages, self.tools or None))
        self.budget = TokenBudget(len(self.ids), max_tokens, context_length)
        if self.budget.reached(len(self.ids)):
            error = PromptTooLong(
                f"the prompt has {len(self.ids)} tokens, which leaves none to act within "
                f"context_length={context_length}. Shorten it, or raise context_length."
            )
            error.tokens = len(self.ids)
            raise error

    @property
    def tokens_left(self) -> int:
        """How many tokens may be added."""
        return self.budget.left(len(self.ids))

    @property
    def spent(self) -> int:
        """How many tokens follow the prompt."""
        return len(self.ids) - self.budget.prompt_length

    def append(self, messages: Sequence[Message]) -> list[int]:
        """Append what a request adds, up to where the next action begins.

        Returns:
            The appended ids, of shape [O].

        Raises:
            PromptTooLong: They leave no token to sample; nothing is appended.
            TemplateError: The chat template refuses the messages.
        """
        ids = list(self.renderer.observe(self.ids, messages, tools=self.tools or None))
        length = len(self.ids) + len(ids)
        if reached := first_reason(self.budget.reached(length)):
            limit = length - len(ids) + self.budget.left(len(self.ids))
            raise PromptTooLong(
                f"the request makes a context of {length} tokens, which leaves none to act: "
                f"{'context_length' if reached is StopReason.context else 'max_tokens'} allows "
                f"{limit}. Shorten the conversation."
            )
        self.ids.extend(_compact(ids))
        return ids

    def read(self, action: list[int]) -> Message:
        """Append an action, of shape [A], and parse the message in it."""
        renderer, self.last_action = self.renderer, len(action)
        message = renderer.parse(action, context_ids=self.ids, tools=self.tools or None)
        self.ids.extend(_compact(action))
        if any(call.error is not None for call in message["tool_calls"]):
            # What could not be read is in neither content nor calls; a reader of rollouts wants it.
            known = [number for number in action if 0 <= number < 2**31]
            return {**message, "raw": renderer.tokenizer.decode(known)}  # type: ignore[typeddict-unknown-key]
        return message

    def answer(
        self, results: Sequence[Message], holding: Collection[StopReason]
    ) -> tuple[list[int], StopReason | None]:
        """Append the results of a turn if they fit.

        Args:
            results: The environment's messages.
            holding: The reasons to end the episode, other than token limits.

        Returns:
            The appended ids, of shape [O], and the reason the episode ends, or None.
        """

        def render(generation_prompt: bool) -> list[int]:
            if not results:  # an answer, or nothing that could be answered
                return []
            return self.renderer.observe(
                self.ids, results, tools=self.tools or None, generation_prompt=generation_prompt
            )

        observation, reason = close_turn(self.budget, len(self.ids), holding, render)
        if results:
            self.tools = results[-1].get("tools", self.tools)
        self.ids.extend(_compact(observation))
        return observation, reason
