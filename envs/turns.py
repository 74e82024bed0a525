"""Where an assistant's turn ends, and what a chat template writes after it.

Read from the template's own rendering of marked turns. A turn can end in a *closing* token
(`<|im_end|>`), in ordinary text, or in nothing: then the next turn's first token, which the model
samples before it is stopped, ends it (an *opening* token).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnast.envs import probes
from gymnast.envs.chat_template import ChatTemplate
from gymnast.envs.safe_text import SafeText
from gymnast.errors import TemplateError

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Turns:
    """How a template brackets an assistant's turn.

    Attributes:
        header: What stands between the user's text and the assistant's.
        after_last: What follows the text of an assistant's turn that is the last message.
        closing: The ids of tokens that end a turn and belong to it.
        opening: The ids of tokens that end a turn by beginning the next.
    """

    header: str
    after_last: str
    closing: frozenset[int]
    opening: frozenset[int]

    @classmethod
    def of(cls, template: ChatTemplate, text: SafeText) -> "Turns":
        """Read them from a template.

        Raises:
            TemplateError: If the template does not write what the assistant said.
        """
        talk = [probes.user(), probes.assistant()]
        last = template.render(talk, generation_prompt=False)
        start = last.find(probes.USER) + len(probes.USER)
        found = last.find(probes.TEXT, start)
        if found < 0:
            raise TemplateError(
                f"the chat template of {template.tokenizer!r} does not write the assistant's text; "
                f"it writes {last!r} for a user and an assistant message"
            )
        after_last = last[found + len(probes.TEXT) :]
        closing = [
            number for number in text.encode(after_last, inside=True) if text.is_added(number)
        ]
        return cls(
            last[start:found],
            after_last,
            frozenset(closing[:1]),
            frozenset() if closing else first_token(text, _what_follows(template, talk)),
        )


def _what_follows(template: ChatTemplate, talk: Messages) -> str:
    """What stands between an assistant's text and a second user's."""
    try:
        full = template.render([*talk, probes.user("Zqnext")], generation_prompt=False)
    except TemplateError:
        return ""
    return full[full.find(probes.TEXT) + len(probes.TEXT) : full.find("Zqnext")]


def first_token(text: SafeText, after: str) -> frozenset[int]:
    """The added token that a text begins with, but for white space, if any."""
    for number in text.encode(after, inside=True):
        if text.is_added(number):
            return frozenset([number])
        if text.decode([number]).strip():
            break
    return frozenset()


def call_end(rendered: str, after_last: str, added: Mapping[str, int]) -> int:
    """Where the calls end in a rendering whose last message is an assistant's with calls.

    Some templates end such a turn with a token of its own (`<|call|>`, `<|eom_id|>`).
    """
    if rendered.endswith(after_last):
        return len(rendered) - len(after_last)
    longest_first = sorted(added, key=len, reverse=True)
    pattern = f"(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})\\s*\\Z"
    match = re.search(pattern, rendered)
    return match.start() if match else len(rendered)


def common_start(text: str, other: str) -> str:
    """What two texts begin with."""
    length = 0
    for a, b in zip(text, other, strict=False):
        if a != b:
            break
        length += 1
    return text[:length]
