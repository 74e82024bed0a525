"""The conventions of one tokenizer's chat template, derived once: all that a renderer goes by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.channels import Channels
from gymnast.envs.rendering.dialects.dialect import Dialect
from gymnast.envs.rendering.response_template import ResponseTemplate
from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.envs.rendering.template.derivation import derive_dialect
from gymnast.envs.rendering.template.following import Following, with_ends_of_calls
from gymnast.envs.rendering.template.reasoning import Reasoning
from gymnast.envs.rendering.template.turns import TurnMarkup
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.errors import TemplateError
from gymnast.types import Message


@dataclass(frozen=True)
class Conventions:
    """How a chat template writes turns, thoughts and calls.

    Attributes:
        template: The template.
        text: The tokenizer.
        turns: How the template brackets a turn.
        dialect: How it writes calls; None where it writes none, or in a way not understood.
        plain: Whether calls, results and schemas are written by the plain protocol.
        following: Renders what comes after a turn.
        reasoning: How the template writes thoughts; None where it has none.
        channels: How it divides a turn into parts; None where it does not.
        response: The tokenizer's response template, where that reads the calls.
        stop_ids: The ids that end a turn.
    """

    template: ChatTemplate
    text: SafeText
    turns: TurnMarkup
    dialect: Dialect | None
    plain: bool
    following: Following
    reasoning: Reasoning | None
    channels: Channels | None
    response: ResponseTemplate | None
    stop_ids: tuple[int, ...]

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        chat_template: str | None,
        variables: Mapping[str, Any] | None,
        *,
        has_parser: bool,
    ) -> "Conventions":
        """Derive them.

        Args:
            tokenizer: A fast tokenizer of Transformers.
            chat_template: A template to use instead of the tokenizer's own.
            variables: Passed to every rendering.
            has_parser: Whether the user's parser reads the calls. It, or a response template, may
                understand calls from which no dialect can be derived.

        Raises:
            TemplateError: If there is no template, or one that is not understood.
            ModelError: If the tokenizer is not a fast one.
        """
        template = ChatTemplate.of(tokenizer, chat_template, variables).in_accepted_form()
        text = SafeText(tokenizer, template.replaced)
        eos_id = None if tokenizer.eos_token_id is None else int(tokenizer.eos_token_id)
        response = None if chat_template is not None else _response(tokenizer, template, text)
        turns = TurnMarkup.of(template, text, eos_id)
        must_understand = not has_parser and response is None
        dialect, understood = None, True
        try:
            dialect = _dialect(template, turns, text)
        except TemplateError:
            if must_understand:
                raise
            understood = False
        plain = dialect is None and understood
        following = Following(template, turns, text, writes_calls=not plain, dialect=dialect)
        reasoning = Reasoning.of(template, turns.header, text.added, dialect)
        channels = Channels.of(reasoning, turns.before_text, dialect, text.added)
        try:
            turns = with_ends_of_calls(following)
        except TemplateError:
            if must_understand:
                raise
        eos = () if eos_id is None else (eos_id,)
        stop_ids = tuple(dict.fromkeys((*sorted(turns.closing), *eos, *sorted(turns.opening))))
        return cls(
            template,
            text,
            turns,
            dialect,
            plain,
            following,
            reasoning,
            channels,
            None if plain else response,
            stop_ids,
        )

    @cached_property
    def strict_ids(self) -> bool:
        """Whether the template accepts only ids of nine letters and digits for calls."""
        return self.following.takes_strict_ids_only

    @cached_property
    def takes_system(self) -> bool:
        """Whether the template writes a system message."""
        talk = [probes.system(), probes.user()]
        try:
            return probes.SYSTEM in self.template.render(talk, generation_prompt=True)
        except TemplateError:
            return False

    @property
    def thought_key(self) -> str:
        """The key under which the template looks for a message's thought."""
        return self.reasoning.key if self.reasoning else "reasoning_content"

    def check_response_template(self, parse: Callable[..., Message]) -> None:
        """Check that the response template reads what the chat template writes.

        Args:
            parse: Reads a completion by the response template; see `Renderer.parse`.

        Raises:
            TemplateError: If it reads something else.
        """
        tools, talk = probes.tools(), [probes.user(), self.following.calling(1)]
        try:
            prompt = self.template.render([probes.user()], tools, generation_prompt=True)
            whole = self.template.render(talk, tools, generation_prompt=False)
        except TemplateError:
            return
        if not whole.startswith(prompt):
            return
        action = self.text.encode(whole[len(prompt) :], inside=True)
        stops = [index for index, number in enumerate(action) if number in self.stop_ids]
        action = action[: stops[0] + 1] if stops else action
        read = parse(action, context_ids=self.text.encode(prompt), tools=tools)["tool_calls"]
        expected = [(probes.NAMES[0], probes.ARGUMENTS[0])]
        if [(call.name, call.arguments) for call in read] != expected:
            raise TemplateError(
                f"the response_template of tokenizer {self.template.tokenizer!r} reads {read!r} "
                f"from {whole[len(prompt) :]!r}, which its chat template writes for a call of "
                f"{probes.NAMES[0]}({probes.ARGUMENTS[0]}). Fix one of the two, or set "
                "tokenizer.response_template = None to derive the calls from the chat template"
            )


def _dialect(template: ChatTemplate, turns: TurnMarkup, text: SafeText) -> Dialect | None:
    dialect = derive_dialect(template, turns, text)
    if dialect is None or not dialect.prewritten:
        return dialect
    return replace(dialect, answer=next(iter(turns.before_text), ""))


def _response(tokenizer: Any, template: ChatTemplate, text: SafeText) -> ResponseTemplate | None:
    """The tokenizer's response template, if it reads calls."""
    if getattr(tokenizer, "response_template", None) is None:
        return None
    prompt = template.render([probes.user()], generation_prompt=True)
    response = ResponseTemplate.of(tokenizer, text, prompt)
    return response if response is not None and response.has_calls else None
