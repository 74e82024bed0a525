"""A chat template's renderings of marked calls, and the payloads recognised in them.

Templates differ in the form in which they take calls: arguments as an object or as a JSON string,
no content as "" or as None. A `CallRenderer` renders in one of these forms.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gymnast.envs.rendering.calls import kinds, probes
from gymnast.envs.rendering.calls.markup import common_start
from gymnast.envs.rendering.calls.payloads import MarkedCall, PayloadMatch
from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.envs.rendering.template.turns import TurnMarkup, call_end
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.errors import TemplateError


@dataclass(frozen=True)
class MarkedTurn:
    """A rendering of marked calls, from the end of the user's text to the end of the calls.

    Attributes:
        text: The rendering.
        header_end: Where the assistant's header ends in it, in characters.
        first: The payload of the first call; None where no kind recognises it.
    """

    text: str
    header_end: int
    first: PayloadMatch | None

    @property
    def written(self) -> str:
        """What the model writes: everything after the header."""
        return self.text[self.header_end :]

    @property
    def before(self) -> str:
        """What the model writes before the first payload."""
        return self.text[self.header_end : self.first.start] if self.first else ""

    @property
    def after(self) -> str:
        """What comes after the first payload."""
        return self.text[self.first.end :] if self.first else ""


@dataclass(frozen=True)
class CallRenderer:
    """Renders an assistant's turn with calls, in one of the forms that templates take.

    Attributes:
        template: The template.
        turns: How it brackets an assistant's turn.
        text: The tokenizer.
        announced: Whether the template itself tells the model of the tools.
        as_text: Whether arguments are given as a JSON string.
        empty_content: The content of a turn without text, "" or None.
    """

    template: ChatTemplate
    turns: TurnMarkup
    text: SafeText
    announced: bool
    as_text: bool
    empty_content: str | None

    def marked(self, count: int, content: str | None) -> MarkedTurn | None:
        """Render marked calls; None where the template refuses them or leaves some out."""
        text = self._render(probes.calling(count, content=content, as_text=self.as_text))
        if text is None or not _has_calls(text, count):
            return None
        return MarkedTurn(text, self.header_end(text), self.recognise(text))

    def write(self, arguments: Mapping[str, Any]) -> str | None:
        """Render one call with other arguments than the marked ones; None where it is refused."""
        message = probes.calling(
            1, content=self.empty_content, as_text=self.as_text, arguments=[arguments]
        )
        return self._render(message)

    def recognise(self, text: str) -> PayloadMatch | None:
        """The first payload in a rendering, if its kind is known."""
        return kinds.recognise(MarkedCall(text, self.write, self.text.added))

    def header_end(self, text: str) -> int:
        """Where the header ends in a rendering: what comes after it, the model writes."""
        if self._opening and text.startswith(self._opening):
            return len(self._opening)
        return len(common_start(text, self.turns.header, self.text.added))

    def _render(self, message: Mapping[str, Any]) -> str | None:
        """From the user's text to the end of the calls; None where the template refuses."""
        try:
            rendered = self.template.render(
                [probes.user(), message], self._tools, generation_prompt=False
            )
        except TemplateError:
            return None
        rendered = rendered[: call_end(rendered, self.turns, self.text)]
        return rendered[rendered.rfind(probes.USER) + len(probes.USER) :]

    @property
    def _tools(self) -> list[dict[str, Any]] | None:
        return probes.tools() if self.announced else None

    @cached_property
    def _opening(self) -> str:
        """What the generation prompt writes after the user's text; "" where it is refused."""
        try:
            prompt = self.template.render([probes.user()], self._tools, generation_prompt=True)
        except TemplateError:
            return ""
        return prompt[prompt.rfind(probes.USER) + len(probes.USER) :]


def _has_calls(text: str, count: int) -> bool:
    """Whether every marked call is there; some templates write the first and leave the rest out."""
    marked = probes.ARGUMENTS[:count]
    return all(str(value) in text for arguments in marked for value in arguments.values())
