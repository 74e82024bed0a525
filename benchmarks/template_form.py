"""Find the form in which a chat template takes messages, by trying marked ones."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.errors import TemplateError
from template_messages import (
    ANSWER,
    MARKED,
    QUESTION,
    SAID,
    SYSTEM,
    THINKING,
    THOUGHT,
    USER,
    MessageDict,
    Messages,
    calling,
    schemas,
)

Fix = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Form:
    """How a template takes what it is given.

    Attributes:
        parts: Content is a list of parts.
        as_text: A call's arguments are a JSON string.
        empty: The content of a turn that is calls only: "", None, or "missing".
        most: How many of the marked calls a turn takes at most; 0 where it writes none.
        beside: Whether it writes the content of a turn with calls.
        thought: The key of an assistant's thought; "" where it writes none.
        thinks: Whether it writes the thought before an answer, too.
        must_think: Whether a turn without a thought does not fit its generation prompt.
        system: It tells of tools only where there is a system message.
        tells: Whether it tells of tools at all.
        python: Whether a call is a Python call, so that its name must be a Python name.
    """

    parts: bool = False
    as_text: bool = False
    empty: str | None = ""
    most: int = 0
    beside: bool = False
    thought: str = ""
    thinks: bool = False
    must_think: bool = False
    system: bool = False
    tells: bool = False
    python: bool = False

    def fit(self, message: MessageDict, fix: Fix | None = None) -> MessageDict:
        """A message as the template takes it.

        Args:
            message: In OpenAI's shape.
            fix: Changes the arguments of its calls.
        """
        fitted = dict(message)
        if self.parts and isinstance(fitted.get("content"), str) and message["role"] != "tool":
            fitted["content"] = [{"type": "text", "text": fitted["content"]}]
        thought = fitted.pop("reasoning_content", None)
        if thought is not None and self.thought:
            fitted[self.thought] = thought
        if "tool_calls" in fitted:
            fitted["tool_calls"] = [self._fit_call(one, fix) for one in fitted["tool_calls"]]
            if not message.get("content"):
                fitted["content"] = self.empty
                if self.empty == "missing":
                    del fitted["content"]
        return fitted

    def _fit_call(self, one: MessageDict, fix: Fix | None) -> MessageDict:
        arguments = one["function"]["arguments"]
        arguments = fix(arguments) if fix is not None else arguments
        if self.as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return one | {"function": one["function"] | {"arguments": arguments}}


class FormFinder:
    """Tries a template out.

    Args:
        template: The template.
        tokenizer: Its tokenizer.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Any) -> None:
        self._template = template
        self._added = list(tokenizer.get_added_vocab())
        self._eos = str(tokenizer.eos_token)

    def find(self) -> Form:
        """The form in which the template writes most of what it is given."""
        forms = (Form(parts=parts) for parts in (False, True))
        writing = (form for form in forms if SAID in self._written(form, [QUESTION, ANSWER]))
        form = self._telling(next(writing, Form()))
        tools = schemas(*MARKED) if form.tells else None
        form = self._calling(form, tools)
        form = replace(form, beside=form.most > 0 and self._writes_beside(form, tools))
        return self._thinking(form, tools)

    def _written(
        self,
        form: Form,
        messages: Messages,
        tools: Messages | None = None,
        *,
        generation_prompt: bool = False,
    ) -> str:
        """A rendering from the user's text on; "" where the template refuses."""
        fitted = [form.fit(message) for message in messages]
        try:
            text = self._template.render(fitted, tools, generation_prompt=generation_prompt)
        except TemplateError:
            return ""
        return text[text.rfind(USER) :] if USER in text else ""

    def _telling(self, form: Form) -> Form:
        for system in (False, True):
            talk = [SYSTEM, QUESTION] if system else [QUESTION]
            fitted = [form.fit(message) for message in talk]
            try:
                text = self._template.render(fitted, schemas(*MARKED), generation_prompt=True)
            except TemplateError:
                continue
            if MARKED[0]["function"]["name"] in text:
                return replace(form, system=system, tells=True)
        return form

    def _calling(self, form: Form, tools: Messages | None) -> Form:
        most_first = range(len(MARKED), 0, -1)
        for most, as_text, empty in product(most_first, (False, True), ("", None, "missing")):
            tried = replace(form, as_text=as_text, empty=empty, most=most)
            text = self._written(tried, [QUESTION, calling(*MARKED[:most])], tools)
            if self._holds_calls(text, most):
                return replace(tried, python=f"{MARKED[0]['function']['name']}(" in text)
        return form

    def _holds_calls(self, text: str, count: int) -> bool:
        """Whether some of the marked calls are there, in one turn."""
        functions = [one["function"] for one in MARKED[:count]]
        names = [function["name"] for function in functions]
        marks = [str(value) for function in functions for value in function["arguments"].values()]
        if not all(mark in text for mark in [*names, *marks]):
            return False
        return self._eos not in text[text.find(names[0]) : text.rfind(marks[-1])]

    def _writes_beside(self, form: Form, tools: Messages | None) -> bool:
        turn = calling(*MARKED[: form.most], content=SAID)
        text = self._written(form, [QUESTION, turn], tools)
        called = text.find(MARKED[0]["function"]["name"])
        return 0 <= text.find(SAID) < called and self._holds_calls(text, form.most)

    def _thinking(self, form: Form, tools: Messages | None) -> Form:
        turn = calling(*MARKED[: form.most]) if form.most else ANSWER
        for key in ("reasoning_content", "reasoning", "thinking"):
            tried = replace(form, thought=key)
            if THOUGHT not in self._written(tried, [QUESTION, turn | THINKING], tools):
                continue
            return replace(
                tried,
                beside=form.beside and not self._says_as_thought(tried, tools),
                thinks=THOUGHT in self._written(tried, [QUESTION, ANSWER | THINKING], tools),
                must_think=self._must_think(tried, turn, tools),
            )
        return form

    def _must_think(self, form: Form, turn: MessageDict, tools: Messages | None) -> bool:
        """Whether the generation prompt opens a thought that is not there without one."""
        prompt = self._written(form, [QUESTION], tools, generation_prompt=True)
        opened = max(self._added, key=lambda token: (prompt.rfind(token), len(token)))
        without = self._written(form, [QUESTION, turn], tools)
        thinking = self._written(form, [QUESTION, turn | THINKING], tools)
        return opened in prompt and opened not in without and thinking.startswith(prompt)

    def _says_as_thought(self, form: Form, tools: Messages | None) -> bool:
        """Whether the template writes the text beside a call as a thought."""
        spoken = calling(*MARKED[: form.most], content=SAID)
        thought = calling(*MARKED[: form.most], reasoning=SAID)
        written = [self._written(form, [QUESTION, turn], tools) for turn in (spoken, thought)]
        return written[0] == written[1]
