"""The renderer: messages to token ids and back, for one tokenizer and its chat template.

    prompt    messages, tools              -> the ids of a whole conversation
    parse     sampled ids                  -> the assistant's message, with its tool calls
    observe   context ids, new messages    -> only the ids to append

Sampled ids are never decoded and encoded again: `observe` looks at the last of them and gives what
comes after. How the template writes turns and calls is read from its own renderings (`turns.py`,
`derivation.py`), once; a template without tools gets the plain protocol (`plain_protocol.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from gymnast.envs import plain_protocol, probes
from gymnast.envs.chat_template import ChatTemplate
from gymnast.envs.derivation import derive
from gymnast.envs.messages import in_openai_shape
from gymnast.envs.parsing import Dialect, Parser, load_parser, read_calls, run_parser
from gymnast.envs.reasoning import Reasoning
from gymnast.envs.safe_text import SafeText
from gymnast.envs.turns import Following, Turns, with_ends_of_calls
from gymnast.errors import TemplateError
from gymnast.types import Message, ToolCall

Tools = Sequence[Mapping[str, Any]] | None


class Renderer:
    """Messages to token ids and back.

    A renderer changes nothing once built: threads may share it, and copies are the same object.

    Args:
        tokenizer: A fast tokenizer of Transformers.
        chat_template: A Jinja template to use instead of the tokenizer's own.
        chat_template_kwargs: Passed to every rendering, for example `{"enable_thinking": False}`.
        parser: Reads calls instead of the dialect found in the template: a function, or
            "module:function", that gets a completion's text (its contract is at
            `gymnast.envs.parsing.run_parser`). Prompts stay as the template, or the plain
            protocol, writes them.

    Raises:
        TemplateError: If there is no chat template, or it does not write what the assistant says.
            Also if it writes tool calls in a way that is not understood, and there is no parser.
        ModelError: If the tokenizer is not a fast one.
        ConfigError: If the parser cannot be imported.

    No id of an added token comes from the text of messages or tools. But where a template's own
    markup is ordinary text (the plain protocol, if the tokenizer has no tokens for its tags), text
    can imitate it.

    Example:
        >>> renderer = Renderer(tokenizer)
        >>> context = renderer.prompt([{"role": "user", "content": "What is 2 + 3?"}], tools)
        >>> action = agent.generate(context)            # ids, the stop id included
        >>> message = renderer.parse(action)
        >>> context += action
        >>> result = {"role": "tool", "content": "5", "tool_call_id": ..., "name": "add"}
        >>> context += renderer.observe(context, [result], tools=tools)
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
        self._parser = load_parser(parser) if parser is not None else None
        self._template = ChatTemplate.of(
            tokenizer, chat_template, chat_template_kwargs
        ).in_form_taken()
        self._text = SafeText(tokenizer)
        eos_id = None if tokenizer.eos_token_id is None else int(tokenizer.eos_token_id)
        turns = Turns.of(self._template, self._text, eos_id)
        self.dialect = self._find_dialect(turns)
        self._following = Following(
            self._template,
            turns,
            self._text,
            writes_calls=not self._plain,
            as_text=self.dialect is not None and self.dialect.as_text,
            empty_content=self.dialect.empty_content if self.dialect else "",
            several=self.dialect is not None and self.dialect.several,
            close=self.dialect.close if self.dialect else "",
            announced=self.dialect is None or self.dialect.announced,
        )
        self._turns = self._with_ends_of_calls(turns)
        self._reasoning = Reasoning.derive(
            self._template, turns.header, self._text.added, self.dialect
        )
        eos = () if eos_id is None else (eos_id,)
        ends = (*sorted(self._turns.closing), *eos, *sorted(self._turns.opening))
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(ends))

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Tools = None) -> list[int]:
        """The ids of a conversation, up to where the assistant's next turn begins.

        Args:
            messages: The conversation in OpenAI's shape; it may hold worked turns with calls.
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
                written, schemas, takes_system=self._takes_system, example=self.dialect.example()
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
            The assistant's message. `tool_calls` is always there; a call that could not be read is
            in it, with an `error`. Text outside of the calls is the `content`; what the template
            marks as thought is the `reasoning_content`, which is left out where there is none.

        Raises:
            UserCodeError: If the user's parser raises anything but a `ValueError`.
        """
        text = self._text.decode(self._without_stop(completion_ids))
        dialect, thought = self.dialect or plain_protocol.DIALECT, ""
        if self._parser is not None:
            content, calls = run_parser(self._parser, text)
        else:
            if self._reasoning is not None:
                thought, text = self._reasoning.split(
                    text,
                    prewritten=self._is_thinking(context_ids),
                    until=(dialect.section_open, dialect.open, *self._turns.before_text),
                    alone=self._reasoning.close not in dialect.beside,
                )
            opening = dialect.open if dialect.prewritten else ""
            content, calls = read_calls(opening + text, dialect, _parameters(tools))
        message: Message = {
            "role": "assistant",
            "content": self._turns.unwrap(content),
            "tool_calls": _with_ids(calls, len(context_ids)),
        }
        if thought:
            message["reasoning_content"] = thought
        return message

    def observe(
        self,
        context_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Tools = None,
        generation_prompt: bool = True,
    ) -> list[int]:
        """The ids to append after an action, so that the whole reads as the template writes it.

        That is what the template writes at a turn's end and the model never samples, the end itself
        where the turn was cut by its length, the messages, and the next turn's opening.

        Args:
            context_ids: Everything so far; the action comes last.
            messages: What the environment answers. An answer to a call carries its `tool_call_id`
                and `name`.
            tools: The schemas that were offered.
            generation_prompt: Whether to open the assistant's next turn. Without it and without
                messages, a turn that ended by itself gets nothing.

        Raises:
            TemplateError: If the template refuses the messages.
        """
        stopped = len(context_ids) > 0 and context_ids[-1] in self.stop_ids
        if not messages and not generation_prompt:
            ids = [] if stopped else self._end_ids()
            return ids[self._written_already(context_ids, ids) :]
        repeated = self._following.repeats_tools
        written, schemas, marker = self._prepare(messages, tools if repeated else None)
        if tools and not repeated:
            schemas = self._following.tools  # what they are makes no difference here
        after = self._after_turn(written, schemas, generation_prompt)
        ids = self._text.encode(after, marker, inside=True)
        if stopped:
            return self._after_end(ids, context_ids[-1])
        own = self._turns.calls_end
        if own is not None and written and written[0].get("role") == "tool":
            ids = [own, *ids]
        return ids[self._written_already(context_ids, ids) :]

    def _after_end(self, ids: list[int], sampled: int) -> list[int]:
        """Drop a turn's end that is there already: sampled, by this token or one like it."""
        added = self._turns.end_tokens(self._text, ids)
        for index, number in added.items():
            if number in self._turns.closing | self._turns.historic:
                return ids[index + 1 :]
        first = next(iter(added), None)
        return ids[first + 1 :] if first is not None and ids[first] == sampled else ids

    def __copy__(self) -> "Renderer":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Renderer":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._arguments

    @property
    def _plain(self) -> bool:
        """Whether calls, results and schemas are written by the plain protocol."""
        return self.dialect is None and not self._unread

    def _find_dialect(self, turns: Turns) -> Dialect | None:
        self._unread = False
        try:
            found = derive(self._template, turns, self._text)
            if found is None or not found.prewritten:
                return found
            return replace(found, answer=next(iter(turns.before_text), ""))
        except TemplateError:
            if self._parser is None:
                raise
            self._unread = True  # the user's parser reads what we could not
            return None

    def _with_ends_of_calls(self, turns: Turns) -> Turns:
        markup = self.dialect.section_close or self.dialect.close if self.dialect else ""
        try:
            return with_ends_of_calls(self._following, markup)
        except TemplateError:
            if self._parser is None:
                raise
            return turns

    def _without_stop(self, ids: Sequence[int]) -> Sequence[int]:
        """A completion without its stop id, unless that closes a call."""
        if not len(ids) or ids[-1] not in self.stop_ids:
            return ids
        last = self._text.decode([ids[-1]])
        closes = (
            self.dialect is not None and last in self.dialect.close + self.dialect.section_close
        )
        return ids if closes else ids[:-1]

    def _is_thinking(self, context_ids: Sequence[int]) -> bool:
        """Whether the context ends with the beginning of a thought."""
        assert self._reasoning is not None
        if not len(context_ids) or not self._reasoning.open:
            return self._reasoning.prewritten
        end = self._text.decode(list(context_ids[-len(self._reasoning.open) - 4 :]))
        return end.rstrip().endswith(self._reasoning.open)

    @cached_property
    def _takes_system(self) -> bool:
        talk = [probes.system(), probes.user()]
        try:
            return probes.SYSTEM in self._template.render(talk, generation_prompt=True)
        except TemplateError:
            return False

    def _prepare(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools
    ) -> tuple[list[dict[str, Any]], Any, str | None]:
        """Bring messages into one shape and break the added tokens in them and in the tools."""
        plain = [in_openai_shape(message) for message in messages]
        (written, schemas), marker = self._text.breaker.protect([plain, list(tools or ())])
        for message in written:
            if message.get("tool_calls"):
                self._fit_template(message)
        return written, schemas or None, marker

    def _fit_template(self, message: dict[str, Any]) -> None:
        """Give a message with calls the content and arguments that the template takes."""
        count = len(message["tool_calls"])
        if count > 1 and self.dialect is not None and not self.dialect.several:
            raise TemplateError(
                f"the chat template of {self._template.tokenizer!r} writes one call a turn, and a "
                f"message has {count}; give each call a message of its own"
            )
        if not message.get("content"):
            message["content"] = self._following.empty_content
        if self._following.as_text:
            for call in message["tool_calls"]:
                function = call["function"]
                if not isinstance(function["arguments"], str):
                    function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)

    def _after_turn(self, messages: list[dict[str, Any]], tools: Any, generate: bool) -> str:
        if self._plain:
            tools, messages = None, plain_protocol.rewrite(messages, None, takes_system=True)
        return self._following.render(messages, tools, generation_prompt=generate)

    def _end_ids(self) -> list[int]:
        """The end of a turn that was cut, and nothing after its closing token."""
        ids = self._text.encode(self._turns.after_last, inside=True)
        ends = [i for i, number in enumerate(ids) if number in self._turns.closing]
        if ends:
            return ids[: ends[0] + 1]
        opening = self._turns.next_opening
        return ids if opening is None or opening in ids else [*ids, opening]

    def _written_already(self, context_ids: Sequence[int], ids: list[int]) -> int:
        """How much of a turn's end, which `ids` begin with, a cut turn has at its own end."""
        ends = self._turns.closing | self._turns.opening
        reach = next((i for i, number in enumerate(ids) if number in ends), 0)
        # As text, for a model's own tokens can have merged it with what comes before.
        end = self._text.decode(list(context_ids[-reach - 8 :])) if reach else ""
        for count in range(reach, 0, -1):
            if end.endswith(self._text.decode(ids[:count])):
                return count
        return 0


def _rebuild(tokenizer: Any, chat_template: Any, kwargs: Any, parser: Any) -> Renderer:
    return Renderer(
        tokenizer, chat_template=chat_template, chat_template_kwargs=kwargs, parser=parser
    )


def _parameters(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """The schema of every tool's parameters, by the tool's name."""
    functions = [tool.get("function", tool) for tool in tools or ()]
    return {str(function.get("name")): function.get("parameters") or {} for function in functions}


def _with_ids(calls: list[ToolCall], position: int) -> list[ToolCall]:
    """Give every call an id of its own.

    Nine letters and digits, which is what the strictest template takes. The position grows from
    turn to turn by more than there can be calls, so ids differ within an episode.
    """
    numbered: list[ToolCall] = []
    seen: set[str] = set()
    for index, call in enumerate(calls):
        own = call.id if call.id and call.id not in seen else f"call{position + index:05d}"
        seen.add(own)
        numbered.append(replace(call, id=own))
    return numbered
