"""What a chat template itself writes for given messages: the truth that the renderer is held to.

Everything here comes from rendering text with the template alone. How it must be given its messages
(arguments as a string, content as parts, no content at all, a system message before it tells of
tools) is tried out on marked messages; nothing is taken from what the renderer derived.

Left out: what must be equal to it (`template_checks.py`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from gymnast.envs import plain_protocol
from gymnast.envs.chat_template import ChatTemplate
from gymnast.errors import TemplateError
from template_corpus import Template, tokenizer_for

MessageDict = dict[str, Any]
Messages = Sequence[MessageDict]

USER, SAID, THOUGHT, RESULT = "Wquser", "Wqsaid", "Wqthought", "Wqresult"
SYSTEM: MessageDict = {"role": "system", "content": "Wqsystem"}
QUESTION: MessageDict = {"role": "user", "content": USER}
ANSWER: MessageDict = {"role": "assistant", "content": SAID}
NEXT: MessageDict = {"role": "user", "content": "Wqnext"}


def call(name: str, arguments: Mapping[str, Any], number: int = 1) -> MessageDict:
    """A call in OpenAI's shape; its id is of the strictest kind, nine letters and digits."""
    function = {"name": name, "arguments": dict(arguments)}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


def calling(*calls: MessageDict, content: str = "", reasoning: str = "") -> MessageDict:
    """An assistant's turn with calls."""
    turn = {"role": "assistant", "content": content, "tool_calls": list(calls)}
    return turn | {"reasoning_content": reasoning} if reasoning else turn


def result(of: MessageDict, content: str = RESULT) -> MessageDict:
    """The answer to a call."""
    name = of["function"]["name"]
    return {"role": "tool", "content": content, "tool_call_id": of["id"], "name": name}


def schemas(*calls: MessageDict) -> list[MessageDict]:
    """Tools that the calls are right for."""
    merged: dict[str, dict[str, Any]] = {}
    for one in calls:
        function = one["function"]
        properties = {key: _schema(value) for key, value in function["arguments"].items()}
        merged.setdefault(function["name"], {}).update(properties)
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Wqtool.",
                "parameters": {"type": "object", "properties": properties, "required": []},
            },
        }
        for name, properties in merged.items()
    ]


def _schema(value: Any) -> dict[str, Any]:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number"}
    described = {"description": "Wqparameter."}
    if value is None:
        return described | {"type": ["integer", "null"]}
    if isinstance(value, list):
        return described | {"type": "array", "items": {}}
    if isinstance(value, dict):
        return described | {"type": "object"}
    return described | {"type": kinds[type(value)]}


MARKED = (
    call("wqfirst", {"wqa": "Wqone", "wqb": 7919}, 1),
    call("wqsecond", {"wqa": "Wqtwo", "wqb": 7907}, 2),
)


@dataclass(frozen=True)
class Form:
    """How a template takes what it is given.

    Attributes:
        parts: Content is a list of parts.
        as_text: A call's arguments are a JSON string.
        empty: The content of a turn that is calls only: "", None, or "missing".
        most: How many calls a turn has at most; 0 where it writes none.
        beside: Whether it writes the content of a turn with calls.
        thought: The key of an assistant's thought; "" where it writes none.
        system: It tells of tools only where there is a system message.
        tells: Whether it tells of tools at all.
    """

    parts: bool = False
    as_text: bool = False
    empty: str | None = ""
    most: int = 0
    beside: bool = False
    thought: str = ""
    system: bool = False
    tells: bool = False


@dataclass(frozen=True)
class Split:
    """A conversation as the template writes it, cut where an assistant's turn is.

    Attributes:
        context: What stands before the turn.
        action: The turn, from the generation prompt's end up to its stop token, that included.
        rest: What follows.
        stop: The stop token; "" where the turn ends in text.
        preserved: Whether `context` is the rendering of the messages before, unchanged.
    """

    context: str
    action: str
    rest: str
    stop: str
    preserved: bool

    @property
    def whole(self) -> str:
        """The whole conversation."""
        return self.context + self.action + self.rest


class Reference:
    """A template's own renderings.

    Args:
        template: The template.
        plain: Write calls and results by the plain protocol.
        fix: Changes arguments so that a template that writes them wrongly writes them right.
    """

    def __init__(
        self,
        template: Template,
        *,
        plain: bool = False,
        fix: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self.name = template.name
        self.tokenizer = tokenizer_for(template)
        self._template = ChatTemplate.of(self.tokenizer, None, None)
        self._plain = plain
        self._fix = fix
        self.form = self._find_form()

    @property
    def start(self) -> list[MessageDict]:
        """The messages before the first turn."""
        return [SYSTEM, QUESTION] if self.form.system else [QUESTION]

    @property
    def most(self) -> int:
        """How many calls fit in a turn."""
        return 2 if self._plain else self.form.most

    @property
    def writes_calls(self) -> bool:
        """Whether the template itself writes calls."""
        return self.form.most > 0

    def render(
        self, messages: Messages, tools: Messages | None = None, *, generation_prompt: bool = True
    ) -> str:
        """The text of a conversation.

        Raises:
            TemplateError: If the template refuses it.
        """
        if self._plain:
            messages, tools = plain_protocol.rewrite(messages, None, takes_system=True), None
        tools = tools if self.form.tells else None
        fitted = [self._fit(message, self.form) for message in messages]
        return self._template.render(fitted, tools, generation_prompt=generation_prompt)

    def split(
        self,
        before: Messages,
        turn: MessageDict,
        after: Messages,
        stops: Sequence[str],
        tools: Messages | None = None,
        *,
        generation_prompt: bool = True,
    ) -> Split:
        """Cut a conversation where a turn is.

        Args:
            before: The messages before; the last one is a user's.
            turn: The assistant's turn.
            after: What follows; the first one has a marked content.
            stops: The texts of the stop tokens.
            tools: The schemas offered.
            generation_prompt: Whether the rendering ends with one.

        Raises:
            TemplateError: If the template refuses the conversation.
        """
        prompt = self.render(before, tools, generation_prompt=True)
        whole = self.render(
            [*before, turn, *after], tools, generation_prompt=generation_prompt
        )
        begin, preserved = self._begin(prompt, whole)
        limit = whole.find(str(after[0]["content"]), begin) if after else len(whole)
        limit = limit if limit >= 0 else len(whole)
        ends = [(at, stop) for stop in stops if 0 <= (at := whole.find(stop, begin)) < limit]
        if ends:
            at, stop = min(ends)
            end = at + len(stop)
        else:
            end, stop = self._text_end(before, turn, tools, whole), ""
        return Split(whole[:begin], whole[begin:end], whole[end:], stop, preserved)

    def _begin(self, prompt: str, whole: str) -> tuple[int, bool]:
        """Where the turn begins; where history is rewritten, after what both have in common."""
        if whole.startswith(prompt):
            return len(prompt), True
        user = prompt.rfind(USER) + len(USER)
        opening, found = prompt[user:], whole.rfind(USER) + len(USER)
        if whole.startswith(opening, found):
            return found + len(opening), False
        common = 0
        for a, b in zip(self._pieces(opening), self._pieces(whole[found:]), strict=False):
            if a != b:
                break
            common += len(a)
        return found + common, False

    def _pieces(self, text: str) -> list[str]:
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return [self.tokenizer.decode([number]) for number in ids]

    def _text_end(
        self, before: Messages, turn: MessageDict, tools: Messages | None, whole: str
    ) -> int:
        """Where a turn ends that no stop token ends: before the text that ends every turn."""
        alone = self.render([*before, turn], tools, generation_prompt=False)
        answer = self.render([*before, ANSWER], tools, generation_prompt=False)
        after = answer[answer.rfind(SAID) + len(SAID) :]
        common = len(alone.removesuffix(after))
        while not whole.startswith(alone[:common]):
            common -= 1
        return common

    # --- How the template takes its messages

    def _fit(self, message: MessageDict, form: Form) -> MessageDict:
        fitted = dict(message)
        if form.parts and isinstance(fitted.get("content"), str) and message["role"] != "tool":
            fitted["content"] = [{"type": "text", "text": fitted["content"]}]
        thought = fitted.pop("reasoning_content", None)
        if thought is not None and form.thought:
            fitted[form.thought] = thought
        if "tool_calls" in fitted and not self._plain:
            fitted["tool_calls"] = [self._fit_call(one, form) for one in fitted["tool_calls"]]
            if not message.get("content"):
                fitted["content"] = form.empty
                if form.empty == "missing":
                    del fitted["content"]
        return fitted

    def _fit_call(self, one: MessageDict, form: Form) -> MessageDict:
        function = dict(one["function"])
        if self._fix is not None:
            function["arguments"] = self._fix(function["arguments"])
        if form.as_text and not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        return one | {"function": function}

    def _try(self, form: Form, messages: Messages, tools: Messages | None = None) -> str:
        """A rendering's part after the user's text; "" where the template refuses."""
        try:
            text = self._template.render(
                [self._fit(message, form) for message in messages], tools, generation_prompt=False
            )
        except TemplateError:
            return ""
        return text[text.rfind(USER) :] if USER in text else ""

    def _find_form(self) -> Form:
        tools = schemas(*MARKED)
        form = next(
            (
                form
                for parts in (False, True)
                if SAID in self._try(form := Form(parts=parts), [QUESTION, ANSWER])
            ),
            Form(),
        )
        form = self._find_telling(form, tools)
        form = self._find_calls(form, tools)
        turn = calling(*MARKED[: form.most], content=SAID)
        given = tools if form.tells else None
        if form.most and SAID in self._try(form, [QUESTION, turn], given):
            form = replace(form, beside=True)
        for key in ("reasoning_content", "reasoning", "thinking"):
            turn = calling(*MARKED[: form.most], reasoning=THOUGHT) if form.most else ANSWER
            thinking = replace(form, thought=key)
            if THOUGHT in self._try(
                thinking, [QUESTION, turn | {"reasoning_content": THOUGHT}], given
            ):
                return thinking
        return form

    def _find_telling(self, form: Form, tools: Messages) -> Form:
        for system in (False, True):
            talk = [SYSTEM, QUESTION] if system else [QUESTION]
            try:
                text = self._template.render(
                    [self._fit(message, form) for message in talk], tools, generation_prompt=True
                )
            except TemplateError:
                continue
            if MARKED[0]["function"]["name"] in text:
                return replace(form, system=system, tells=True)
        return form

    def _find_calls(self, form: Form, tools: Messages) -> Form:
        for most, as_text, empty in product((2, 1), (False, True), ("", None, "missing")):
            tried = replace(form, as_text=as_text, empty=empty, most=most)
            given = tools if form.tells else None
            text = self._try(tried, [QUESTION, calling(*MARKED[:most])], given)
            if all(_is_in(one, text) for one in MARKED[:most]):
                return tried
        return form


def _is_in(one: MessageDict, text: str) -> bool:
    function = one["function"]
    marks = [function["name"], *map(str, function["arguments"].values())]
    return all(mark in text for mark in marks)
