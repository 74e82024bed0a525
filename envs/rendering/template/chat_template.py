"""A chat template as a function: messages and tools in, text out.

Holds the template of one tokenizer and what it may refer to: the special tokens and the user's own
variables. `derivation.py` and `turns.py` find out what the text means, and
`rendering/tokens/safe_text.py` makes token ids of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jinja2
import jinja2.lexer
from transformers.utils.chat_template_utils import render_jinja_template

from gymnast.envs.rendering.calls import probes
from gymnast.errors import TemplateError


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of one tokenizer.

    Attributes:
        tokenizer: The tokenizer's name, for error messages.
        source: The Jinja template.
        source_with_tools: The template used when tools are offered; the same for most tokenizers.
        variables: What the template may refer to besides messages and tools.
        in_parts: Whether the template takes a message's text only as a list of parts.
    """

    tokenizer: str
    source: str
    source_with_tools: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    in_parts: bool = False

    @classmethod
    def of(
        cls, tokenizer: Any, chat_template: str | None, variables: Mapping[str, Any] | None
    ) -> "ChatTemplate":
        """Take a tokenizer's template, or the one given instead.

        Raises:
            TemplateError: If there is none.
        """
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if chat_template is None and not getattr(tokenizer, "chat_template", None):
            raise TemplateError(
                f"tokenizer {name!r} has no chat template, so messages cannot become tokens. Use "
                "the tokenizer of an instruct model, or pass a template: Renderer(tokenizer, "
                "chat_template='...')"
            )
        try:
            source = tokenizer.get_chat_template(chat_template, None)
            with_tools = tokenizer.get_chat_template(chat_template, [{}])
        except ValueError as error:
            raise TemplateError(f"tokenizer {name!r}: {error}") from error
        return cls(name, source, with_tools, {**tokenizer.special_tokens_map, **(variables or {})})

    @cached_property
    def replaced(self) -> frozenset[str]:
        """The strings that the template replaces in others, and those it puts in their place."""
        strings, inside = set(), False
        for token in self._tokens():
            if token.type in ("name", "rparen"):
                inside = token.value == "replace"
            elif inside and token.type == "string":
                strings.add(token.value)
        return frozenset(strings - {""})

    @cached_property
    def literals(self) -> frozenset[str]:
        """The strings in the template: it can compare a message with no others."""
        return frozenset(token.value for token in self._tokens() if token.type == "string")

    def _tokens(self) -> list[jinja2.lexer.Token]:
        lexer = jinja2.Environment().lexer
        sources = {self.source, self.source_with_tools}
        try:
            return [token for source in sources for token in lexer.tokenize(source)]
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template of {self.tokenizer!r} is not valid Jinja: {error.message} "
                f"(line {error.lineno}). Fix it, or pass another chat_template"
            ) from error

    def in_accepted_form(self) -> "ChatTemplate":
        """The template with content in the form that it accepts: a string, or a list of parts."""
        in_parts = replace(self, in_parts=True)
        return in_parts if in_parts._writes_text() and not self._writes_text() else self

    def _writes_text(self) -> bool:
        try:
            talk = [probes.user(), probes.assistant()]
            return probes.TEXT in self.render(talk, generation_prompt=False)
        except TemplateError:
            return False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation_prompt: bool,
    ) -> str:
        """Write a conversation as the template does.

        Args:
            messages: The conversation.
            tools: The schemas to pass to the template, or None.
            generation_prompt: Whether to open the assistant's turn at the end.

        Raises:
            TemplateError: If the template refuses the conversation.
        """
        try:
            texts, _ = render_jinja_template(
                [[_in_parts(message) for message in messages] if self.in_parts else list(messages)],
                tools=list(tools) if tools else None,
                chat_template=self.source_with_tools if tools else self.source,
                add_generation_prompt=generation_prompt,
                **self.variables,
            )
        except Exception as error:  # Templates raise whatever Jinja or Python raises in them.
            roles = [message.get("role") for message in messages]
            undefined = isinstance(error, jinja2.UndefinedError)
            hint = ". Pass its variables as chat_template_kwargs={...}" if undefined else ""
            raise TemplateError(
                f"the chat template of {self.tokenizer!r} refuses a conversation with the roles "
                f"{roles}: {error}{hint}"
            ) from error
        return str(texts[0])


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": parts}
