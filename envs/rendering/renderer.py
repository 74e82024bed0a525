"""The renderer: messages to token ids and back, for one tokenizer and its chat template.

    prompt    messages, tools              -> the ids of a whole conversation
    parse     sampled ids                  -> the assistant's message, with its tool calls
    decode    ids                          -> their text
    encode    an assistant's message       -> the ids that an agent would have sampled to say it
    observe   context ids, new messages    -> only the ids to append

Sampled ids are never decoded and encoded again: `observe` looks at the last of them and returns
what comes next. How the template writes turns and calls is derived once, from its own renderings
(`conventions.py`); a template without tools gets the plain protocol (`plain_protocol.py`).
"""

import json
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from gymnast.envs.records.messages import in_openai_shape
from gymnast.envs.rendering import plain_protocol
from gymnast.envs.rendering.calls.payloads import Tools
from gymnast.envs.rendering.completion import Reader
from gymnast.envs.rendering.conventions import Conventions
from gymnast.envs.rendering.dialects.dialect import Dialect
from gymnast.envs.rendering.encoding import Encoder, check_sayable, difference
from gymnast.envs.rendering.template.turns import after_cut, after_stop, end_of_turn
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.envs.rendering.user_parser import Parser, load_parser
from gymnast.errors import ModelError, TemplateError
from gymnast.types import Message

_KEPT_PROMPTS = 32  # 4 bytes a token


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
        own = Conventions.of(
            tokenizer, chat_template, chat_template_kwargs, has_parser=parser is not None
        )
        self._conventions, self._template, self._text = own, own.template, own.text
        self.dialect: Dialect | None = own.dialect
        self.stop_ids: tuple[int, ...] = own.stop_ids
        self._reader = Reader(own, load_parser(parser) if parser is not None else None)
        self._encoder = Encoder(own)
        # The members of a group begin one after another, with one prompt.
        self._encode_prompt = lru_cache(_KEPT_PROMPTS)(partial(_encoded, own.text))
        if parser is None and own.response is not None:
            own.check_response_template(self.parse)

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
        if self._conventions.plain:
            written = plain_protocol.rewrite(
                written, schemas, takes_system=self._conventions.takes_system
            )
            schemas = None
        elif self.dialect is not None and self.dialect.needs_system and schemas:
            if not written or written[0]["role"] != "system":
                written.insert(0, {"role": "system", "content": ""})
        elif self.dialect is not None and not self.dialect.announced and schemas:
            written = plain_protocol.announce(
                written,
                schemas,
                takes_system=self._conventions.takes_system,
                example=self.dialect.example,
            )
            schemas = None
        text = self._template.render(written, schemas, generation_prompt=True)
        return self._encode_prompt(text, marker).tolist()

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

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, added tokens included; what is no token id is skipped."""
        return self._text.decode(ids)

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
        thought = written.get(self._conventions.thought_key) or ""
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
                `name`. The last one may have `tools`: the schemas of those offered from now on.
            tools: The schemas that were offered.
            generation_prompt: Whether to open the assistant's next turn. Without it and without
                messages, nothing follows a turn that ended by itself.

        Raises:
            TemplateError: If the template refuses the messages, or cannot offer other tools within
                a conversation.
        """
        stopped = len(context_ids) > 0 and context_ids[-1] in self.stop_ids
        if not messages and not generation_prompt:
            ids = [] if stopped else end_of_turn(self._conventions.turns, self._text)
            return after_cut(ids, context_ids, self._conventions.turns, self._text)
        following, changed = self._conventions.following, _changed_tools(messages)
        repeated = following.repeats_tools or changed is not None
        offered = tools if changed is None else changed
        written, schemas, marker = self._prepare(messages, offered if repeated else None)
        if tools and not repeated:
            schemas = following.tools  # any will do: they are not written here
        after = self._after_turn(written, schemas, generation_prompt)
        if changed is not None and not self._says_tools:
            following.check_listed(
                changed, after, self._after_turn(written, following.tools, generation_prompt)
            )
        ids = self._text.encode(after, marker, inside=True)
        if stopped:
            return after_stop(ids, context_ids[-1], self._conventions.turns, self._text)
        calls_end = self._conventions.turns.calls_end
        if calls_end is not None and written and written[0].get("role") == "tool":
            ids = [calls_end, *ids]
        return after_cut(ids, context_ids, self._conventions.turns, self._text)

    def __copy__(self) -> "Renderer":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Renderer":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._arguments

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
                message[self._conventions.thought_key] = message.pop("reasoning_content")
        if self._says_tools:
            example = {"example": self.dialect.example} if self.dialect else {}
            written = plain_protocol.with_changes_said(written, **example)
        else:
            written = list(map(plain_protocol.without_tools, written))
        return written, schemas or None, marker

    @property
    def _says_tools(self) -> bool:
        """Whether the tools are told in the text of messages, because the template does not."""
        return self._conventions.plain or (self.dialect is not None and not self.dialect.announced)

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
        following = self._conventions.following
        if self._conventions.plain:
            tools, messages = None, plain_protocol.rewrite(messages, None, takes_system=True)
        try:
            return following.render(messages, tools, generation_prompt=generate)
        except TemplateError:
            # A policy may call where no tools are offered, and some templates then demand some.
            if tools or following.tools is None:
                raise
            return following.render(messages, following.tools, generation_prompt=generate)


@lru_cache
def renderer_of(name: str) -> Renderer:
    """The renderer of the tokenizer of a name, made once.

    Args:
        name: A hub id, or a folder with a tokenizer of Transformers.

    Raises:
        ModelError: The tokenizer cannot be found or read, or is not a fast one.
        TemplateError: Its chat template cannot be followed, or there is none.
    """
    from transformers import AutoTokenizer  # takes a second, which environments in messages save

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"renderer: {name!r} is no tokenizer that can be loaded: {reason} Name a hub id or a "
            "folder, or pass Renderer(tokenizer)."
        ) from error
    return Renderer(tokenizer)


def _changed_tools(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]] | None:
    """The tools that are offered from the last of some messages on; None: those as before."""
    return messages[-1].get("tools") if messages else None


def _encoded(text: SafeText, written: str, marker: str | None) -> "array[int]":
    return array("I", text.encode(written, marker))


def _rebuild(tokenizer: Any, chat_template: Any, kwargs: Any, parser: Any) -> Renderer:
    return Renderer(
        tokenizer, chat_template=chat_template, chat_template_kwargs=kwargs, parser=parser
    )
