"""What a program asks next, where the loop is the program's own (`Environment.next_request`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymnast.types import Message


def _nobody(reason: str) -> None:
    """Whoever asked needs no answer."""


@dataclass(frozen=True)
class NextRequest:
    """A request, and the context of the episode that it belongs to.

    Attributes:
        branch: The context that it extends, counted from 0 in the order of their first requests;
            None: it opens a new one.
        messages: What it appends to that context; the whole prompt of a new one.
        tools: The schemas of the tools that it offers, in OpenAI's shape; for a known context,
            those that it has.
        plain: Whether a new context is plain text, without a chat template: the content of the
            prompt's one message.
        max_tokens: How many tokens whoever asks wants at most; None: it does not say.
        refuse: Tells whoever asked, in a sentence, that the request does not fit.
    """

    branch: int | None
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    plain: bool = False
    max_tokens: int | None = None
    refuse: Callable[[str], None] = field(default=_nobody, compare=False)
