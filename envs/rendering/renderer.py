"""The renderer: messages to token ids and back, for one tokenizer and its chat template.

    prompt    messages, tools              -> the ids of a whole conversation
    parse     sampled ids                  -> the assistant's message, with its tool calls
    encode    an assistant's message       -> the ids that an agent would have sampled to say it
    observe   context ids, new messages    -> only the ids to append

Sampled ids are never decoded and encoded again: `observe` looks at the last of them and returns
what comes next. How the template writes turns and calls is derived once, from its own renderings
(`template/turns.py`, `template/derivation.py`); a template without tools gets the plain protocol
(`plain_protocol.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from gymnast.envs.records.messages import in_openai_shape
from gymnast.envs.rendering import plain_protocol
from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.calls.dialect import Dialect
from gymnast.envs.rendering.calls.payloads import Tools
from gymnast.envs.rendering.channels import Channels
from gymnast.envs.rendering.completion import Reader
from gymnast.envs.rendering.encoding import Encoder, check_sayable, difference
from gymnast.envs.rendering.response_template import ResponseTemplate
from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.envs.rendering.template.derivation import derive_dialect
from gymnast.envs.rendering.template.following import Following, with_ends_of_calls
from gymnast.envs.rendering.template.reasoning import Reasoning
from gymnast.envs.rendering.template.turns import TurnMarkup, after_cut, after_stop, end_of_turn
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.envs.rendering.user_parser import Parser, load_parser
from gymnast.errors import TemplateError
from gymnast.types import Message


class Renderer:
    """Messages to token ids and back.

    Once built, a renderer only fills caches: threads may share it, and copies are the same object.

    Args:
        tokenizer: A fast tokenizer of Transformers.
        chat_template: A Jinja template to use instead of the tokenizer's own.
        chat_template_kwargs: Passed to every rendering, for example `{"enable_thinking": False}`.
        parser: Reads calls instead of the dialect derived from the template: a function, or
            "module:function", that gets a completion's text
            (`gymnast.envs.rendering.user_parser.run_parser` has its contract). Prompts stay as the
            template, or the plain protocol, writes them.

    Raises:
        TemplateError: If there is no chat template, or it does not write the assistant's text.
            Also if it writes tool calls in a way that is not understood, and there is no parser.
        ModelError: If the tokenizer is not a fast one.
        ConfigError: If the parser cannot be imported.

    No id of an added token comes from the text of messages or tools. But where a template's own
    markup is ordinary text (as in the plain protocol, if the tokenizer has no tokens for its tags),
    text can imitate it.

    Example:
        >>> renderer = Renderer(tokenizer)
        >>> context = renderer.prompt([{"role": "user", "content": "What is 2 + 3?"}], tools)
        >>> sampling = Sampling(stop_ids=renderer.stop_ids)
        >>> completion = await agent.generate(context, sampling)
        >>> message = renderer.parse(completion.ids, context_ids=context, tools=tools)
        >>> (call,) = message["tool_calls"]
        >>> context += completion.ids
        >>> result = {"role": "tool", "content": "5", "tool_call_id": call.id, "name": call.name}
        >>> context += renderer.observe(context, [result], tools=tools)
        >>> context += renderer.encode({"role": "assistant", "content": "5."})  # without an agent
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        parser: Parser | str | None = None,
    ) -> None:
        self._arguments = (tokenizer, chat_template, chat_template_kwargs, parser)
        self.tokenizer = tokenizer
        self._template = ChatTemplate.of(
            tokenizer, chat_template, chat_template_kwargs
        ).in_accepted_form()
        self._text = SafeText(tokenizer, self._template.replaced)
        eos_id = None if tokenizer.eos_token_id is None else int(tokenizer.eos_token_id)
        response = self._response_template() if chat_template is None else None
        turns = TurnMarkup.of(self._template, self._text, eos_id)
        # Another parser may understand calls from which no dialect can be derived.
        self._has_own_parser = parser is not None or response is not None
        self._underivable = False
        self.dialect = self._derive_dialect(turns)
        self._following = Following(
            self._template, turns, self._text, writes_calls=not self._plain, dialect=self.dialect
        )
        self._turns = self._with_ends_of_calls(turns)
        eos = () if eos_id is None else (eos_id,)
        ends = (*sorted(self._turns.closing), *eos, *sorted(self._turns.opening))
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(ends))
        reasoning = Reasoning.of(self._template, turns.header, self._text.added, self.dialect)
        self._reader = Reader(
            self._text,
            self._turns,
            self.dialect or plain_protocol.DIALECT,
            reasoning,
            self.stop_ids,
            Channels.of(reasoning, turns.before_text, self.dialect, self._text.added),
            strict_ids=self._following.takes_strict_ids_only,
            parser=load_parser(parser) if parser is not None else None,
            response=None if self._plain else response,
        )
        if parser is None and self._reader.response is not None:
            self._check_response()

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Tools = None) -> list[int]:
        """The ids of a conversation, up to where the assistant's next turn begins.

        Args:
            messages: The conversation in OpenAI's shape, earlier turns with calls included.
            tools: The function schemas to offer, in OpenAI's shape.

        Raises:
            TemplateError: If the template refuses the conversation.
            DataError: If a message has no role.
        """
        written, schemas, marker = self._prepare(messages, tools)
        if self._plain:
            written = plain_protocol.rewrite(written, schemas, takes_system=self._takes_system)
            schemas = None
        elif self.dialect is not None and self.dialect.needs_system and schemas:
            if not written or written[0]["role"] != "system":
                written.insert(0, {"role": "system", "content": ""})
        elif self.dialect is not None and not self.dialect.announced and schemas:
            written = plain_protocol.announce(
                written, schemas, takes_system=self._takes_system, example=self.dialect.example
            )
            schemas = None
        text = self._template.render(written, schemas, generation_prompt=True)
        return self._text.encode(text, marker)

    def parse(
        self, completion_ids: Sequence[int], *, context_ids: Sequence[int] = (), tools: Tools = None
    ) -> Message:
        """Read what the policy sampled. Nothing that it can write raises.

        Args:
            completion_ids: The sampled ids, the stop id included where there is one.
            context_ids: What the policy saw; makes the ids of the calls differ from turn to turn.
            tools: The schemas that were offered.

        Returns:
            The assistant's message. It always has `tool_calls`; a call that could not be read is
            in them, with an `error`. Text outside of the calls is the `content`; what the template
            marks as thought is the `reasoning_content`, a key that is absent without thoughts.

        Raises:
            UserCodeError: If the user's parser raises anything but a `ValueError`.
        """
        return self._reader.read(completion_ids, context_ids, tools)

    def encode(self, message: Mapping[str, Any], *, tools: Tools = None) -> list[int]:
        """The action that an agent would have sampled to say a message, its stop id included.

        `parse` reads the message back from it: names, arguments, content and thought, the last two
        without white space at their ends. No id of an added token comes from the message's texts.
        The action is what the template writes for the message as the last one, after a user's.

        Args:
            message: An assistant's message in OpenAI's shape; its calls may be `ToolCall`s.
            tools: The schemas that were offered. Where a template writes arguments without types,
                they tell the text "5" from the number.

        Raises:
            UsageError: If it is not an assistant's message, or has a call that could not be read.
            TemplateError: If the template cannot say it: it refuses the message, or what it writes
                is read as another message.
        """
        check_sayable(message)
        (written,), schemas, marker = self._prepare([message], tools)
        thought = written.get(self._thought_key) or ""
        first = ""
        for ids in self._encoder.encode(written, schemas, thought, marker):
            failure = difference(message, self.parse(ids, tools=tools), self._text.decode(ids))
            if failure is None:
                return ids
            first = first or failure
        raise TemplateError(f"the chat template of {self._template.tokenizer!r} {first}")

    def observe(
        self,
        context_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Tools = None,
        generation_prompt: bool = True,
    ) -> list[int]:
        """The ids to append after an action, so that the whole reads as the template writes it.

        These are what the template writes at a turn's end and the model never samples, the end
        itself where the turn was cut by its length, the messages, and the next turn's opening.

        Args:
            context_ids: Everything so far; the action comes last.
            messages: The environment's answers. An answer to a call carries its `tool_call_id` and
                `name`.
            tools: The schemas that were offered.
            generation_prompt: Whether to open the assistant's next turn. Without it and without
                messages, nothing follows a turn that ended by itself.

        Raises:
            TemplateError: If the template refuses the messages.
        """
        stopped = len(context_ids) > 0 and context_ids[-1] in self.stop_ids
        if not messages and not generation_prompt:
            ids = [] if stopped else end_of_turn(self._turns, self._text)
            return after_cut(ids, context_ids, self._turns, self._text)
        repeated = self._following.repeats_tools
        written, schemas, marker = self._prepare(messages, tools if repeated else None)
        if tools and not repeated:
            schemas = self._following.tools  # any will do: they are not written here
        after = self._after_turn(written, schemas, generation_prompt)
        ids = self._text.encode(after, marker, inside=True)
        if stopped:
            return after_stop(ids, context_ids[-1], self._turns, self._text)
        own = self._turns.calls_end
        if own is not None and written and written[0].get("role") == "tool":
            ids = [own, *ids]
        return after_cut(ids, context_ids, self._turns, self._text)

    def __copy__(self) -> "Renderer":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Renderer":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._arguments

    @property
    def _plain(self) -> bool:
        """Whether calls, results and schemas are written by the plain protocol."""
        return self.dialect is None and not self._underivable

    def _derive_dialect(self, turns: TurnMarkup) -> Dialect | None:
        try:
            dialect = derive_dialect(self._template, turns, self._text)
            if dialect is None or not dialect.prewritten:
                return dialect
            return replace(dialect, answer=next(iter(turns.before_text), ""))
        except TemplateError:
            if not self._has_own_parser:
                raise
            self._underivable = True
            return None

    def _with_ends_of_calls(self, turns: TurnMarkup) -> TurnMarkup:
        try:
            return with_ends_of_calls(self._following)
        except TemplateError:
            if not self._has_own_parser:
                raise
            return turns

    def _response_template(self) -> ResponseTemplate | None:
        """The tokenizer's response template, if it reads calls."""
        if getattr(self.tokenizer, "response_template", None) is None:
            return None
        prompt = self._template.render([probes.user()], generation_prompt=True)
        response = ResponseTemplate.of(self.tokenizer, self._text, prompt)
        return response if response is not None and response.has_calls else None

    def _check_response(self) -> None:
        """Check that the response template reads what the chat template writes.

        Raises:
            TemplateError: If it does not.
        """
        tools, talk = probes.tools(), [probes.user(), self._following.calling(1)]
        try:
            prompt = self._template.render([probes.user()], tools, generation_prompt=True)
            whole = self._template.render(talk, tools, generation_prompt=False)
        except TemplateError:
            return
        if not whole.startswith(prompt):
            return
        action = self._text.encode(whole[len(prompt) :], inside=True)
        stops = [index for index, number in enumerate(action) if number in self.stop_ids]
        action = action[: stops[0] + 1] if stops else action
        read = self.parse(action, context_ids=self._text.encode(prompt), tools=tools)["tool_calls"]
        if [(call.name, call.arguments) for call in read] != [
            (probes.NAMES[0], probes.ARGUMENTS[0])
        ]:
            raise TemplateError(
                f"the response_template of tokenizer {self._template.tokenizer!r} reads {read!r} "
                f"from {whole[len(prompt) :]!r}, which its chat template writes for a call of "
                f"{probes.NAMES[0]}({probes.ARGUMENTS[0]}). Fix one of the two, or set "
                "tokenizer.response_template = None to derive the calls from the chat template"
            )

    @cached_property
    def _takes_system(self) -> bool:
        talk = [probes.system(), probes.user()]
        try:
            return probes.SYSTEM in self._template.render(talk, generation_prompt=True)
        except TemplateError:
            return False

    @property
    def _thought_key(self) -> str:
        """The key under which the template looks for a message's thought."""
        return self._reader.reasoning.key if self._reader.reasoning else "reasoning_content"

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(
            self._text,
            self._turns,
            self._following,
            self._reader.reasoning,
            self.stop_ids,
            plain=self._plain,
            strict_ids=self._reader.strict_ids,
        )

    def _prepare(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools
    ) -> tuple[list[dict[str, Any]], Any, str | None]:
        """Bring messages into one shape, and break the added tokens in them and in the tools."""
        plain = [in_openai_shape(message) for message in messages]
        (written, schemas), marker = self._text.breaker.protect([plain, list(tools or ())])
        for message in written:
            if message.get("tool_calls"):
                self._fit_template(message)
            if "reasoning_content" in message:
                message[self._thought_key] = message.pop("reasoning_content")
        return written, schemas or None, marker

    def _fit_template(self, message: dict[str, Any]) -> None:
        """Give a message with calls the content and arguments that the template takes."""
        count = len(message["tool_calls"])
        if count > 1 and self.dialect is not None and not self.dialect.several:
            raise TemplateError(
                f"the chat template of {self._template.tokenizer!r} writes one call a turn, but a "
                f"message has {count}. Give each call a message of its own"
            )
        if not message.get("content"):
            message["content"] = self.dialect.empty_content if self.dialect else ""
        if self.dialect is not None and self.dialect.as_text:
            for call in message["tool_calls"]:
                function = call["function"]
                if not isinstance(function["arguments"], str):
                    function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)

    def _after_turn(self, messages: list[dict[str, Any]], tools: Any, generate: bool) -> str:
        if self._plain:
            tools, messages = None, plain_protocol.rewrite(messages, None, takes_system=True)
        try:
            return self._following.render(messages, tools, generation_prompt=generate)
        except TemplateError:
            # A policy may call where no tools are offered, and some templates then demand some.
            if tools or self._following.tools is None:
                raise
            return self._following.render(
                messages, self._following.tools, generation_prompt=generate
            )


def _rebuild(tokenizer: Any, chat_template: Any, kwargs: Any, parser: Any) -> Renderer:
    return Renderer(
        tokenizer, chat_template=chat_template, chat_template_kwargs=kwargs, parser=parser
    )
