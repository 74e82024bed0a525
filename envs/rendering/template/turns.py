"""How a chat template brackets an assistant's turn, read from its rendering of marked turns.

A turn can end in a *closing* token (`<|im_end|>`), in ordinary text, or in nothing: then the next
turn's first token, which the model samples before it is stopped, ends it (an *opening* token).

`after_stop` and `after_cut` say how much of a turn's end is still to be written after an action.
One that ended by itself has a stop token that the template writes too, or that stands in its
place; one cut by its length may stop in the middle of the end. What a template writes after a
turn is `following.py`.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.calls.markup import common_start
from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.errors import TemplateError

_MARGIN = 8  # tokens: a model may spell with as many what the template writes with one

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class TurnMarkup:
    """How a template brackets an assistant's turn.

    Attributes:
        header: What stands between the user's text and the assistant's.
        after_last: What follows the text of an assistant's turn that is the last message.
        closing: The ids of tokens that end a turn and belong to it.
        opening: The ids of tokens that end a turn by beginning the next.
        next_opening: Of these, the one that follows an answer; None where a closing token does.
        historic: The ids of tokens that replace the closing one once more follows.
        calls_end: The last token of the calls themselves, where nothing else ends a turn of calls.
        before_text: What the template writes between the generation prompt and the text, with and
            without tools.
        after_text: What it writes between the text and the closing token.
    """

    header: str
    after_last: str
    closing: frozenset[int]
    opening: frozenset[int]
    next_opening: int | None = None
    historic: frozenset[int] = frozenset()
    calls_end: int | None = None
    before_text: tuple[str, ...] = ()
    after_text: str = ""

    @classmethod
    def of(cls, template: ChatTemplate, text: SafeText, eos_id: int | None) -> "TurnMarkup":
        """Derive it from a template.

        Raises:
            TemplateError: If the template does not write an assistant's text.
        """
        talk = [probes.user(), probes.assistant()]
        last = _render_talk(template, talk)
        start = last.find(probes.USER) + len(probes.USER)
        begin = last.find(probes.TEXT, start)
        if begin < 0:
            raise TemplateError(
                f"the chat template of {template.tokenizer!r} does not write the assistant's text: "
                f"for a user and an assistant message it writes {last!r}. Pass another "
                "chat_template"
            )
        after_last = last[begin + len(probes.TEXT) :]
        following = _text_after_turn(template, talk)
        # What both share is the turn's end; after it, a template may end the conversation.
        both = common_start(after_last, following)
        closing = _ends(text, both, eos_id)
        if not closing:
            both, closing = after_last, _ends(text, after_last, eos_id)
        if not closing and eos_id is not None and eos_id in _added_ids(text, following):
            # The template does not write it after the last turn: it is to be sampled.
            both, closing = following, [eos_id]
        header = last[start:begin]
        begins = first_token(text, following)
        return cls(
            header=header,
            after_last=after_last,
            closing=frozenset(closing[:1]),
            opening=frozenset() if closing else begins,
            next_opening=None if closing else next(iter(begins), None),
            # A token that ends a user's message as well is an end, not the start of the next.
            historic=begins & first_token(text, header)
            if closing and closing[0] not in _added_ids(text, following)
            else frozenset(),
            before_text=_before_text(template),
            after_text=both.partition(text.decode(closing[:1]))[0].strip() if closing else "",
        )

    def end_tokens(self, text: SafeText, ids: Sequence[int]) -> dict[int, int]:
        """The added tokens, by index, among which a turn's end is, if there is one.

        Args:
            text: The tokenizer.
            ids: What follows an assistant's text.
        """
        reach = 1 + (len(_added_ids(text, self.after_text)) if self.after_text else 0)
        added = (index for index, number in enumerate(ids) if text.is_added(number))
        return {index: ids[index] for index in islice(added, reach)}

    def unwrap(self, content: str) -> str:
        """The assistant's text without what the template writes around it."""
        start = content.lstrip()
        for words in self.before_text:
            if start.startswith(words):
                content = start[len(words) :].lstrip()
                break
        if self.after_text and content.endswith(self.after_text):
            content = content[: -len(self.after_text)].rstrip()
        return content


def _added_ids(text: SafeText, words: str) -> list[int]:
    return [number for number in text.encode(words, inside=True) if text.is_added(number)]


def _ends(text: SafeText, words: str, eos_id: int | None) -> list[int]:
    """The added tokens that can end a turn: the tokenizer's EOS, or those that occur once."""
    added = _added_ids(text, words)
    if eos_id in added:
        return [number for number in added if number == eos_id][:1]
    return [number for number in added if added.count(number) == 1]


def _before_text(template: ChatTemplate) -> tuple[str, ...]:
    texts = []
    for tools in (None, probes.tools()):
        with contextlib.suppress(TemplateError):
            prompt = template.render([probes.user()], tools, generation_prompt=True)
            talk = [probes.user(), probes.assistant()]
            turn = template.render(talk, tools, generation_prompt=False)
            opening = prompt[prompt.rfind(probes.USER) + len(probes.USER) :]
            header = turn[turn.rfind(probes.USER) + len(probes.USER) : turn.rfind(probes.TEXT)]
            texts.append(header[len(common_start(header, opening)) :].strip())
    return tuple(dict.fromkeys(filter(None, texts)))


def _render_talk(template: ChatTemplate, talk: Messages) -> str:
    """Render a conversation without tools, or with some if the template demands them."""
    try:
        return template.render(talk, generation_prompt=False)
    except TemplateError as error:
        with contextlib.suppress(TemplateError):
            return template.render(talk, probes.tools(), generation_prompt=False)
        raise error


def _text_after_turn(template: ChatTemplate, talk: Messages) -> str:
    """What stands between an assistant's text and the next user's."""
    try:
        full = _render_talk(template, [*talk, probes.user("Zqnext")])
    except TemplateError:
        return ""
    return full[full.find(probes.TEXT) + len(probes.TEXT) : full.find("Zqnext")]


def first_token(text: SafeText, after: str) -> frozenset[int]:
    """The added token that a text begins with, white space aside, if any."""
    for number in text.encode(after, inside=True):
        if text.is_added(number):
            return frozenset([number])
        if text.decode([number]).strip():
            break
    return frozenset()


def call_end(rendered: str, turns: TurnMarkup, text: SafeText, close: str = "") -> int:
    """Where the calls end in a rendering whose last message is an assistant's with marked calls.

    Some templates end such a turn with a token for it (`<|call|>`, `<|eom_id|>`).

    Args:
        rendered: The rendering.
        turns: How the template brackets a turn.
        text: The tokenizer.
        close: What ends a call, if that is known: it does not end the turn.
    """
    after_end = _after_end(turns, text)
    if after_end.strip() and rendered.endswith(after_end):
        rendered = rendered[: -len(after_end)].rstrip()
    values = [str(value) for arguments in probes.ARGUMENTS for value in arguments.values()]
    last = max(rendered.rfind(mark) for mark in (*values, *probes.NAMES))
    brackets = turns.closing or turns.opening
    ends = [rendered.find(text.decode([number]), max(last, 0)) for number in brackets]
    end = min((end for end in ends if end >= 0), default=-1)
    if turns.after_last and rendered.endswith(turns.after_last):
        at_end = len(rendered) - len(turns.after_last)
        return at_end if end < 0 else min(at_end, end)
    if end >= 0 or not turns.closing:
        return end if end >= 0 else len(rendered)
    longest_first = sorted(text.added, key=len, reverse=True)
    match = re.search(f"(?:{'|'.join(map(re.escape, longest_first))})\\s*\\Z", rendered)
    ends_call = bool(close) and rendered.rstrip().endswith(close.split()[-1])
    return match.start() if match and not ends_call else len(rendered)


def _after_end(turns: TurnMarkup, text: SafeText) -> str:
    """What some templates write at a conversation's end, after the end of the last turn."""
    for number in turns.closing:
        _, end, after = turns.after_last.partition(text.decode([number]))
        if end:
            return after
    return ""


def after_stop(ids: list[int], sampled: int, turns: TurnMarkup, text: SafeText) -> list[int]:
    """What is left of `ids`, which begin with a turn's end, after a sampled stop token."""
    added = turns.end_tokens(text, ids)
    for index, number in added.items():
        if number in turns.closing | turns.historic:
            return ids[index + 1 :]
    first = next(iter(added), None)
    return ids[first + 1 :] if first is not None and ids[first] == sampled else ids


def after_cut(
    ids: list[int], context_ids: Sequence[int], turns: TurnMarkup, text: SafeText
) -> list[int]:
    """What is left of `ids`, which begin with a turn's end, after a turn that was cut."""
    ends = turns.closing | turns.opening
    added = turns.end_tokens(text, ids)
    reach = next((index for index, number in added.items() if number in ends), 0)
    # As text, for a model's own tokens can have merged it with what comes before.
    written = text.decode(context_ids[-reach - _MARGIN :]) if reach else ""
    for count in range(reach, 0, -1):
        before, begun = text.decode(ids[: count - 1]), text.decode(ids[:count])
        if begun and written.endswith(begun):  # "": a lone space, in SentencePiece's manner
            return ids[count:]
        cuts = range(len(begun) - 1, len(before), -1) if not text.is_added(ids[count - 1]) else ()
        for cut in cuts:  # inside of a token of ours
            if written.endswith(begun[:cut]):
                return [*text.encode(begun[cut:], inside=True), *ids[count:]]
    return ids


def end_of_turn(turns: TurnMarkup, text: SafeText) -> list[int]:
    """The end of a turn, and nothing after the token that ends it."""
    ids = text.encode(turns.after_last, inside=True)
    ends = [index for index, number in enumerate(ids) if number in turns.closing]
    if ends:
        return ids[: ends[0] + 1]
    opening = turns.next_opening
    return ids if opening is None or opening in ids else [*ids, opening]
