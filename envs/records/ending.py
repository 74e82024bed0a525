"""How an episode ends: which limits hold, which reason wins, and what is still appended.

Pure functions over counts and sets; nothing here knows tools, messages or tokenizers.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gymnast.types import StopReason

PRECEDENCE = (
    StopReason.error,
    StopReason.stop_tool,
    StopReason.answered,
    StopReason.environment,
    StopReason.context,
    StopReason.max_tokens,
    StopReason.max_turns,
    StopReason.timeout,
)


def first_reason(holding: Collection[StopReason]) -> StopReason | None:
    """The reason an episode ends for, of those that hold; None where none does."""
    return next((reason for reason in PRECEDENCE if reason in holding), None)


UNLIMITED = 2**31 - 1  # the tokens of a context without a limit: a number, so that min() works


@dataclass(frozen=True)
class TokenBudget:
    """How many tokens an episode may have.

    Attributes:
        prompt_length: Tokens of the prompt.
        max_tokens: Of sampled and observed tokens after the prompt; None is no limit.
        context_length: Of all tokens; None is no limit.
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
        holding: What ends the episode apart from the token limits.
        render: Gives the ids of the turn's results, with a generation prompt (True) or without.

    Returns:
        The ids to append, and the reason the episode ends for or None. The results of a turn are
        appended whole or not at all, and a generation prompt only where a token can follow it.
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
