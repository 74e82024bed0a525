"""What a chat template itself writes for given messages: the reference for the renderer.

Everything here comes from rendering text with the template alone, in the form in which it takes
messages (`template_form.py`); nothing is taken from what the renderer derived.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import template_repairs
from gymnast.envs.rendering import plain_protocol
from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.errors import TemplateError
from template_corpus import Template, tokenizer_for
from template_form import FormFinder
from template_messages import (
    ANSWER,
    MARKED,
    NEXT,
    QUESTION,
    RESULT,
    SAID,
    SYSTEM,
    THINKING,
    USER,
    MessageDict,
    Messages,
    schemas,
)


class NotTaken(Exception):
    """The template itself refuses a conversation, so there is nothing to compare with."""


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
        self.form = FormFinder(self._template, self.tokenizer).find()

    @property
    def start(self) -> list[MessageDict]:
        """The messages before the first turn."""
        return [SYSTEM, QUESTION] if self.form.system else [QUESTION]

    @property
    def most(self) -> int:
        """How many calls fit in a turn."""
        return len(MARKED) if self._plain else self.form.most

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
        fitted = [self.form.fit(message, self._fix) for message in messages]
        return self._template.render(fitted, tools, generation_prompt=generation_prompt)

    def natural(self, turn: MessageDict) -> MessageDict:
        """The turn as a model writes it: with a thought, if the generation prompt opens one."""
        if self.form.must_think and not turn.get("reasoning_content") and not self._plain:
            return turn | THINKING
        return turn

    @property
    def thought_end(self) -> str:
        """What a model writes first where the prompt opens a thought that history leaves out."""
        opened = re.search(r"<(\w+)>\s*\Z", self.turn_opening())
        left_out = opened is not None and not self.form.thought and opened[0] not in self.said
        return f"\n</{opened[1]}>\n\n" if opened is not None and left_out else ""

    @property
    def said(self) -> str:
        """An answer that a user's word follows, from the first user's text on."""
        return self.render([*self.start, ANSWER, NEXT]).partition(USER)[2].partition(SAID)[0]

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
        at, begin = self._last_of_opening(opening, at, whole, begin)
        common = 0
        for a, b in zip(opening[at:], whole[begin:], strict=False):
            if a != b:
                break
            common += 1
        while common and not re.search(r"\s", whole[begin + common - 1 : begin + common + 1]):
            common -= 1  # never within a word
        return begin + common

    def _last_of_opening(self, opening: str, at: int, whole: str, begin: int) -> tuple[int, int]:
        """Past the opening's last token, where it comes next: more may come before it at first."""
        last = (self._added_in(opening[at:]) or [""])[-1]
        there = whole.find(last, begin)
        if not last or there < 0 or whole[begin:there].strip():
            return at, begin
        return opening.rfind(last) + len(last), there + len(last)

    def _added_in(self, text: str) -> list[str]:
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        added = set(self.tokenizer.get_added_vocab().values())
        return [self.tokenizer.decode([number]) for number in ids if number in added]


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
