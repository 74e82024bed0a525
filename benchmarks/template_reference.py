"""What a chat template itself writes for given messages: the truth that the renderer is held to.

Everything here comes from rendering text with the template alone. How it must be given its messages
(arguments as a string, content as parts, no content at all, a system message before it tells of
tools) is tried out on marked messages; nothing is taken from what the renderer derived.

Left out: what must be equal to it (`template_checks.py`).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import template_repairs
from gymnast.envs import plain_protocol
from gymnast.envs.chat_template import ChatTemplate
from gymnast.errors import TemplateError
from template_corpus import Template, tokenizer_for
from template_messages import (
    ANSWER,
    MARKED,
    NEXT,
    QUESTION,
    RESULT,
    SAID,
    SYSTEM,
    THOUGHT,
    USER,
    MessageDict,
    Messages,
    calling,
    schemas,
)


class NotTaken(Exception):
    """The template itself refuses a conversation, so there is nothing to compare with."""


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
        close: What ends the turn where more follows: another token, for some templates.
        preserved: Whether the template leaves what stands before and the turn as they were.
    """

    context: str
    action: str
    rest: str
    stop: str
    close: str
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
    """

    def __init__(self, template: Template, *, plain: bool = False) -> None:
        self.name = template.name
        self.tokenizer = tokenizer_for(template)
        self._template = ChatTemplate.of(self.tokenizer, None, None)
        self._plain = plain
        self._fix = None if plain else template_repairs.ARGUMENTS.get(template.name)
        # Writes calls rightly, where the template does not with any arguments.
        self.write_calls = None if plain else template_repairs.CALLS.get(template.name)
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
    def lossy(self) -> bool:
        """Whether what the template writes had to be repaired."""
        return self._fix is not None or self.write_calls is not None

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

    def turn_opening(self) -> str:
        """What the template writes between a user's text and the assistant's."""
        prompt = self.render(self.start, schemas(*MARKED), generation_prompt=True)
        return prompt[prompt.rfind(USER) + len(USER) :]

    def turn_alone(self, turn: MessageDict) -> str:
        """A turn as the last message, from the user's text on."""
        tools = schemas(*MARKED, *turn.get("tool_calls", ()))
        text = self.render([*self.start, turn], tools, generation_prompt=False)
        return text[text.rfind(USER) + len(USER) :]

    def ends_in_text(self, stops: Sequence[str]) -> bool:
        """Whether an answer ends in ordinary text, or in nothing, where a user's word follows."""
        cut = self.split(self.start, ANSWER, [NEXT], stops, schemas(*MARKED))
        return not self._added_in(cut.rest[: cut.rest.find(NEXT["content"])]) and not cut.stop

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
            NotTaken: If the template refuses the conversation.
        """
        try:
            prompt = self.render(before, tools, generation_prompt=True)
            alone = self.render([*before, turn], tools, generation_prompt=False)
            whole = self.render([*before, turn, *after], tools, generation_prompt=generation_prompt)
            action, stop, end = self._turn(prompt, alone, whole, turn, after, stops)
            if end < 0:
                action, stop, end = self._turn_in_text(before, turn, tools, alone, whole)
        except TemplateError as error:
            raise NotTaken(str(error)) from error
        written = whole[: self._begin(prompt, whole)]
        context = written if whole.startswith(written + action) else prompt
        preserved = whole.startswith(prompt + action)
        close = next((own for own in self._added_in(whole[:end])[-1:] if stop), "")
        return Split(context, action, whole[end:], stop, close, preserved)

    def _turn(
        self,
        prompt: str,
        alone: str,
        whole: str,
        turn: MessageDict,
        after: Messages,
        stops: Sequence[str],
    ) -> tuple[str, str, int]:
        """The turn up to its stop token, that token, and where it ends in the whole; -1 if none.

        As the last message a turn stands as a model wrote it; later its thought may be dropped, and
        its end may be another one.
        """
        begin, later = self._begin(prompt, alone), self._begin(prompt, whole)
        limit = whole.find(_mark(after[0]), later)
        stop, end = _first(stops, whole, later, limit)
        own, own_end = _first(stops, alone, begin, len(alone))
        if own and not stop:  # ended by a token of another kind, once more follows
            text = str(turn["content"])
            added = self.tokenizer.get_added_vocab()
            _, end = _first(list(added), whole, whole.rfind(text) + len(text), limit)
        if not own and stop and not whole.startswith(alone[begin:], later):
            return alone[begin:] + stop, stop, end
        names = [one["function"]["name"] for one in turn.get("tool_calls", ())]
        if own and all(name in alone[begin:own_end] for name in names):
            return alone[begin:own_end], own, end
        return whole[later:end], stop, end

    def _turn_in_text(
        self, before: Messages, turn: MessageDict, tools: Messages | None, alone: str, whole: str
    ) -> tuple[str, str, int]:
        """A turn that no token ends: it ends before the text that ends every turn."""
        answer = self.render([*before, ANSWER], tools, generation_prompt=False)
        after = answer[answer.rfind(SAID) + len(SAID) :]
        end = len(alone.removesuffix(after))
        while not whole.startswith(alone[:end]):
            end -= 1
        prompt = self.render(before, tools, generation_prompt=True)
        return whole[self._begin(prompt, whole) : end], "", end

    def _begin(self, prompt: str, whole: str) -> int:
        """Where the turn begins; where history is rewritten, after what both have in common."""
        if whole.startswith(prompt):
            return len(prompt)
        opening = prompt[prompt.rfind(USER) + len(USER) :]
        begin = whole.find(USER) + len(USER)
        if whole.startswith(opening, begin):
            return begin + len(opening)
        at = 0
        for token in self._added_in(opening):
            here, there = opening.find(token, at), whole.find(token, begin)
            if opening[at:here].split() != whole[begin:there].split():
                break
            at, begin = here + len(token), there + len(token)
        common = 0
        for a, b in zip(opening[at:], whole[begin:], strict=False):
            if a != b:
                break
            common += 1
        while common and not re.search(r"\s", whole[begin + common - 1 : begin + common + 1]):
            common -= 1  # never within a word
        return begin + common

    def _added_in(self, text: str) -> list[str]:
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        added = set(self.tokenizer.get_added_vocab().values())
        return [self.tokenizer.decode([number]) for number in ids if number in added]

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
        given = tools if form.tells else None
        form = replace(form, beside=form.most > 0 and self._writes_beside(form, given))
        for key in ("reasoning_content", "reasoning", "thinking"):
            turn = calling(*MARKED[: form.most], reasoning=THOUGHT) if form.most else ANSWER
            thinking = replace(form, thought=key)
            if THOUGHT in self._try(
                thinking, [QUESTION, turn | {"reasoning_content": THOUGHT}], given
            ):
                return replace(
                    thinking, beside=form.beside and not self._is_thought(thinking, given)
                )
        return form

    def _writes_beside(self, form: Form, tools: Messages | None) -> bool:
        text = self._try(form, [QUESTION, calling(*MARKED[: form.most], content=SAID)], tools)
        said, called = text.find(SAID), text.find(MARKED[0]["function"]["name"])
        return 0 <= said < called and all(_is_in(one, text) for one in MARKED[: form.most])

    def _is_thought(self, form: Form, tools: Messages | None) -> bool:
        """Whether the template writes what is said beside a call as a thought."""
        said = calling(*MARKED[: form.most], content=SAID)
        thought = calling(*MARKED[: form.most], reasoning=SAID)
        return self._try(form, [QUESTION, said], tools) == self._try(
            form, [QUESTION, thought], tools
        )

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


def _mark(message: MessageDict) -> str:
    """A word by which a message is found; a template may escape the rest."""
    content = str(message["content"])
    return RESULT if RESULT in content else content


def _first(tokens: Sequence[str], text: str, start: int, limit: int) -> tuple[str, int]:
    """The first of some tokens in a stretch of text, and where it ends; "" and -1 if none."""
    found = [(at, token) for token in tokens if 0 <= (at := text.find(token, start)) < limit]
    if not found:
        return "", -1
    at, token = min(found, key=lambda pair: (pair[0], -len(pair[1])))
    return token, at + len(token)


def _is_in(one: MessageDict, text: str) -> bool:
    function = one["function"]
    marks = [function["name"], *map(str, function["arguments"].values())]
    return all(mark in text for mark in marks)
