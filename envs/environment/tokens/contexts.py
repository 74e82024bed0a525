"""The token contexts of one episode: one, as a rule; more where a program opens further ones.

Each is a `TokenContext` (`context.py`), numbered in the order in which they were opened. The next
action is sampled in one of them, the current one. `max_tokens` holds for all of them together,
`context_length` for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gymnast.envs.environment.tokens.context import Schemas, TokenContext
from gymnast.envs.rendering.renderer import Renderer
from gymnast.envs.rendering.text_renderer import text_renderer_of
from gymnast.types import Message


@dataclass
class TokenContexts:
    """The contexts of one episode.

    Attributes:
        renderer: Messages to tokens, and back.
        max_tokens: Limit on sampled and appended tokens of all contexts; None: no limit.
        context_length: Limit on all tokens of each context; None: no limit.
        opened: The contexts.
        branch: The number of the current one.
        wanted: How many tokens the next action may have for whoever asked; None: any number.
    """

    renderer: Renderer
    max_tokens: int | None = None
    context_length: int | None = None
    opened: list[TokenContext] = field(default_factory=list)
    branch: int = 0
    wanted: int | None = None

    @property
    def current(self) -> TokenContext:
        """The context in which the next action is sampled."""
        return self.opened[self.branch]

    @property
    def tokens_left(self) -> int:
        """How many tokens may be sampled next."""
        left = self.current.tokens_left
        return left if self.wanted is None else min(left, self.wanted)

    @property
    def is_spent(self) -> bool:
        """Whether `max_tokens` leaves no token in any context."""
        return self.max_tokens is not None and self._spent >= self.max_tokens

    def open(
        self, messages: Sequence[Message], tools: Schemas, *, plain: bool = False
    ) -> list[int]:
        """Open a context, which is then the current one.

        Args:
            messages: Its prompt.
            tools: The schemas of the tools that it offers.
            plain: Whether it is plain text, without a chat template.

        Returns:
            The ids of its prompt, of shape [P].

        Raises:
            PromptTooLong: The prompt leaves no token to sample.
            TemplateError: The chat template refuses the messages.
        """
        renderer = text_renderer_of(self.renderer.tokenizer) if plain else self.renderer
        context = TokenContext(renderer, tools)
        left = None if self.max_tokens is None else self.max_tokens - self._spent
        context.begin(messages, left, self.context_length)
        self.opened.append(context)
        self.branch = len(self.opened) - 1
        return context.ids.tolist()

    def extend(self, branch: int, messages: Sequence[Message]) -> list[int]:
        """Append what a request adds to a context, which is then the current one.

        Returns:
            The appended ids, of shape [O].

        Raises:
            PromptTooLong: They leave no token to sample; nothing changes.
            TemplateError: The chat template refuses the messages.
        """
        context = self.opened[branch]
        if self.max_tokens is not None:
            elsewhere = self._spent - context.spent
            context.budget = replace(context.budget, max_tokens=self.max_tokens - elsewhere)
        ids = context.append(messages)
        self.branch = branch
        return ids

    @property
    def _spent(self) -> int:
        """Tokens of all contexts that follow their prompts."""
        return sum(context.spent for context in self.opened)
