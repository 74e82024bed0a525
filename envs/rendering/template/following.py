"""What a chat template writes after an assistant's turn: the text of an observation.

Only a short stand-in conversation is rendered, never the real one: a user's message, an assistant's
turn that fits the new messages (where they are results, with calls of the same ids and names), and
the new messages. So the hundredth turn costs what the first costs, and nothing that was sampled is
rendered again. Messages of a shape rendered before are not rendered at all: their contents are
filled into the earlier rendering (`skeletons.py`).
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.calls.markup import common_start
from gymnast.envs.rendering.calls.payloads import Tools
from gymnast.envs.rendering.dialects.dialect import Dialect
from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.envs.rendering.template.skeletons import Skeleton, shape_of
from gymnast.envs.rendering.template.turns import TurnMarkup, call_end, first_token
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.errors import TemplateError

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Following:
    """Renders what comes after an assistant's turn.

    Attributes:
        template: The chat template.
        turns: How it brackets a turn.
        text: The tokenizer.
        writes_calls: Whether the template itself writes calls and results.
        dialect: How it writes calls; None where that is not understood.
    """

    template: ChatTemplate
    turns: TurnMarkup
    text: SafeText
    writes_calls: bool
    dialect: Dialect | None = None
    _skeletons: dict[Any, Skeleton | None] = field(default_factory=dict, repr=False, compare=False)
    _calls: dict[Any, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def tools(self) -> Tools:
        """Stand-ins for a conversation's tools; None where the template is not given any."""
        announced = self.dialect is None or self.dialect.announced
        return probes.tools() if self.writes_calls and announced else None

    def render(self, messages: Messages, tools: Tools, *, generation_prompt: bool) -> str:
        """The text from the end of the assistant's turn to the start of its next.

        Args:
            messages: The new messages.
            tools: The tools that the conversation offers.
            generation_prompt: Whether to open the assistant's next turn.

        Raises:
            TemplateError: If the template refuses the messages after any turn they could follow.
        """
        shape = shape_of(messages) if tools in (None, self.tools) else None

        def render(messages: Messages) -> str:
            return self._render(messages, tools, generation_prompt=generation_prompt)

        if shape is None:
            return render(messages)
        key = (shape, tools is None, generation_prompt)
        if key not in self._skeletons:
            self._skeletons[key] = Skeleton.of(shape, render, self.template.literals)
        skeleton = self._skeletons[key]
        return render(messages) if skeleton is None else skeleton.fill(messages)

    def _render(self, messages: Messages, tools: Tools, *, generation_prompt: bool) -> str:
        refusal: TemplateError | None = None
        for turn in self._stand_ins(messages):
            before = [probes.user(), turn]
            try:
                full = self.template.render(
                    [*before, *messages], tools, generation_prompt=generation_prompt
                )
                end = self._end_of_turn(full, before, tools)
            except TemplateError as error:
                refusal = refusal or error
                continue
            if end is not None:
                return full[end:]
        roles = [message.get("role") for message in messages]
        raise refusal or TemplateError(
            f"the chat template of {self.template.tokenizer!r} rewrites an assistant's turn when "
            f"messages with the roles {roles} follow it, so they cannot be appended. Pass another "
            "chat_template"
        )

    @cached_property
    def repeats_tools(self) -> bool:
        """Whether the template lists the tools again after a turn; few do."""
        if self.tools is None:
            return False
        for message in (probes.user("Zqnext"), probes.result()):
            with contextlib.suppress(TemplateError):
                if probes.TOOL in self.render([message], self.tools, generation_prompt=True):
                    return True
        return False

    def check_listed(self, tools: Messages, text: str, otherwise: str) -> None:
        """Check that the template lists other tools where they are offered within a conversation.

        Args:
            tools: Their schemas.
            text: What is written with them.
            otherwise: What is written with the stand-ins.

        Raises:
            TemplateError: Both are the same.
        """
        if text != otherwise:
            return
        names = ", ".join(str(tool.get("function", tool).get("name")) for tool in tools)
        raise TemplateError(
            f"the chat template of {self.template.tokenizer!r} lists the tools once, before the "
            f"conversation, so a change to other tools ({names or 'none'}) would rewrite what was "
            "said. Offer all tools from the start, or pass a chat_template that lists them with a "
            "user's message"
        )

    @cached_property
    def takes_strict_ids_only(self) -> bool:
        """Whether the template refuses a call's id that is not nine letters and digits."""
        if not self.writes_calls or not self._takes_id(probes.IDS[0]):
            return False
        return not all(map(self._takes_id, ("a", "functions.f:0")))

    def _takes_id(self, call_id: str) -> bool:
        result = probes.result() | {"tool_call_id": call_id}
        talk = [probes.user(), self._calling([result]), result]
        try:
            self.template.render(talk, self.tools, generation_prompt=True)
        except TemplateError:
            return False
        return True

    def _end_of_turn(self, full: str, before: list[dict[str, Any]], tools: Tools) -> int | None:
        """Where the stand-in turn ends in a rendering; None where the rendering changes it."""
        user = max(full.find(probes.USER), 0)
        if not before[-1].get("tool_calls"):
            text = full.find(probes.TEXT, user)
            return text + len(probes.TEXT) if text >= 0 else None
        # Templates may drop an empty thought once more follows, so only the calls are compared.
        first, value = (str(value) for value in probes.ARGUMENTS[0].values())
        calls = self._calls_alone(first, before, tools)
        start = full.find(first, user)
        return start + len(calls) if value in calls and full.startswith(calls, start) else None

    def _calls_alone(self, first: str, before: list[dict[str, Any]], tools: Tools) -> str:
        """The stand-in's calls with nothing after them, from the first value of the first on."""
        called = tuple((call["id"], call["function"]["name"]) for call in before[-1]["tool_calls"])
        key = (called, tools is None)
        calls = self._calls.get(key)
        if calls is None:
            alone = self.template.render(before, tools, generation_prompt=False)
            end = call_end(alone, self.turns, self.text, self._close)
            calls = alone[alone.find(first) : end]
            self._calls.clear()  # only the last: a skeleton is tried on a hundred contents
            self._calls[key] = calls
        return calls

    def _stand_ins(self, messages: Messages) -> Iterator[dict[str, Any]]:
        """Assistant's turns that the messages could follow, the likeliest first."""
        results = [message for message in messages if message.get("role") == "tool"]
        if results and self.writes_calls:
            for answered in (results, results[-1:]):  # some templates take one call a turn
                yield self._calling(answered)
        yield probes.assistant()

    @property
    def _close(self) -> str:
        return self.dialect.close if self.dialect else ""

    def calling(self, count: int) -> dict[str, Any]:
        """A turn with marked calls, in the form that the template takes."""
        if self.dialect is None:
            return probes.calling(count, content="", as_text=False)
        empty, as_text = self.dialect.empty_content, self.dialect.as_text
        return probes.calling(count, content=empty, as_text=as_text)

    def _calling(self, results: Messages) -> dict[str, Any]:
        turn = self.calling(1)
        arguments = turn["tool_calls"][0]["function"]["arguments"]
        turn["tool_calls"] = [
            probes.openai_call(
                result.get("tool_call_id") or f"zqcall{number:03d}",
                result.get("name") or probes.NAMES[0],
                arguments,
            )
            for number, result in enumerate(results)
        ]
        return turn


def with_ends_of_calls(following: Following) -> TurnMarkup:
    """The turns, with the tokens that end a turn of calls where they differ.

    Args:
        following: Renders what comes after a turn.

    Raises:
        TemplateError: If the template writes calls, but refuses their results.
    """
    turns, text, dialect = following.turns, following.text, following.dialect
    if not following.writes_calls:
        return turns
    last_markup = dialect.section_close or dialect.close if dialect else ""
    last = following.render([], following.tools, generation_prompt=False)
    # Some templates forget the end of a single call.
    count = 2 if dialect is not None and dialect.several else 1
    called = following.calling(count)
    alone = following.template.render(
        [probes.user(), called], following.tools, generation_prompt=False
    )
    alone = alone[call_end(alone, turns, text, following._close) :]
    results = [probes.result(number) for number in range(count)]
    after = following.render(results, following.tools, generation_prompt=True)
    ends = first_token(text, common_start(alone, after)) - first_token(text, last)
    if ends:
        return replace(turns, closing=turns.closing | ends)
    begins = first_token(text, after)
    closed = turns.closing & set(turns.end_tokens(text, text.encode(after, inside=True)).values())
    if (turns.closing and not closed) or (turns.opening and not begins):
        # Results follow in the same turn: then the calls' own last token ends it.
        own = text.encode(last_markup, inside=True)[-1:]
        if own and text.is_added(own[0]):
            return replace(turns, opening=turns.opening | set(own), calls_end=own[0])
        if begins:
            return replace(turns, opening=turns.opening | begins)
        raise TemplateError(
            f"the chat template of {following.template.tokenizer!r} ends a turn with calls "
            f"differently than one without, so generation would not stop there: {after!r} follows "
            "the calls. Pass another chat_template"
        )
    return turns if turns.closing else replace(turns, opening=turns.opening | begins)
