r"""How a chat template writes the assistant's thoughts.

    <think>\nReasoning.\n</think>\n\nAnswer.
    <|channel|>analysis<|message|>Reasoning.<|end|><|start|>assistant<|channel|>final<|message|>...

In a rendering of a marked thought, what stands before it opens a thought; what stands both between
it and an answer and between it and a call closes one. A generation prompt may have written the
opening already.

Some templates write no thoughts but know of them: they strip what stands before `</think>` from an
answer, or their generation prompt ends with `<think>`. Others have none.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnast.envs.rendering.calls import markup, probes
from gymnast.envs.rendering.dialects.dialect import Dialect
from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.errors import TemplateError

KEYS = ("reasoning_content", "reasoning", "thinking")
"""Where templates look for a message's thought; the first is the key that our messages use."""

_LAST_TAG = re.compile(r"(?:<[^<>\s]*>|\[[^\[\]\s]*\])\s*\Z")
_OPENING_TAG = re.compile(r"[<\[]\w+[>\]]\s*\Z")
_CLOSING_TAG = re.compile(r"(?:</\w+>|\[/\w+\])")


@dataclass(frozen=True)
class Reasoning:
    """How a template writes thoughts.

    Attributes:
        key: The key of a message that the template reads.
        open: What comes before a thought.
        close: What comes after it.
        prewritten: Whether the generation prompt ends with `open`.
        written: Whether the template writes a message's thought at all.
    """

    key: str
    open: str
    close: str
    prewritten: bool
    written: bool = True

    @classmethod
    def of(
        cls,
        template: ChatTemplate,
        header: str,
        added: Collection[str],
        dialect: Dialect | None,
    ) -> "Reasoning | None":
        """Derive it from a template; None where it has no thoughts.

        Args:
            template: The template.
            header: What it writes between a user's text and an answer without thoughts.
            added: The contents of the tokenizer's added tokens.
            dialect: How it writes calls; some templates write no thought without one.
        """
        for key in KEYS:
            before, to_text = _before_text(template, key)
            before_call, to_call = _before_call(template, key, dialect)
            if not (to_text or to_call).strip():
                continue
            both = to_text.strip() and to_call.strip()
            close = markup.common_start(to_text, to_call, added) if both else to_text or to_call
            open_, prewritten = _opening(
                template, before or before_call, header, close.strip(), added
            )
            return cls(key, open_, close.strip(), prewritten)
        return cls._unwritten(template, header)

    @classmethod
    def _unwritten(cls, template: ChatTemplate, header: str) -> "Reasoning | None":
        """Derive it from a template that does not write a message's thought."""
        close = _stripped_through(template)
        opened = _OPENING_TAG.search(_prompt(template))
        tag = opened[0].strip() if opened else ""
        if tag and (tag not in header or close == _closing(tag)):
            return cls(KEYS[0], tag, _closing(tag), prewritten=True, written=False)
        if not close:
            return None
        return cls(KEYS[0], close.replace("/", "", 1), close, prewritten=False, written=False)

    def split(
        self, text: str, *, prewritten: bool, until: Sequence[str], alone: bool
    ) -> tuple[str, str]:
        """Cut a completion into its thought and the rest.

        Args:
            text: The completion.
            prewritten: Whether the context has opened the thought.
            until: Markup that ends a thought which is never closed.
            alone: Whether `close` without an opening ends a thought, if it comes before `until`.
        """
        opening = markup.pattern(self.open).match(text.lstrip()) if self.open else None
        rest = text.lstrip()[opening.end() :] if opening else text
        endings = (markup.pattern(tag).search(rest) for tag in until if tag)
        cut = min((ending.start() for ending in endings if ending), default=len(rest))
        if opening is not None or prewritten:
            closing = markup.pattern(self.close).search(rest)
        else:
            closing = markup.pattern(self.close).search(rest, 0, cut) if alone else None
            cut = 0
        if closing is not None:
            return rest[: closing.start()].strip(), rest[closing.end() :].lstrip()
        return rest[:cut].strip(), rest[cut:]


def _before_text(template: ChatTemplate, key: str) -> tuple[str, str]:
    """The text before a marked thought, and between it and an answer."""
    message = probes.assistant() | {key: probes.THOUGHT}
    before, after = _around(template, message, None)
    return before, after.partition(probes.TEXT)[0] if probes.TEXT in after else ""


def _before_call(template: ChatTemplate, key: str, dialect: Dialect | None) -> tuple[str, str]:
    """The text before a marked thought, and between it and a call."""
    if dialect is None:
        return "", ""
    call = probes.calling(1, content=dialect.empty_content, as_text=dialect.as_text)
    tools = probes.tools() if dialect.announced else None
    before, after = _around(template, call | {key: probes.THOUGHT}, tools)
    call_markup = dialect.section_open or dialect.open
    start = markup.pattern(call_markup).search(after) if call_markup else None
    return before, after[: start.start()] if start else ""


def _around(template: ChatTemplate, message: Mapping[str, Any], tools: Any) -> tuple[str, str]:
    try:
        rendered = template.render([probes.user(), message], tools, generation_prompt=False)
    except TemplateError:
        return "", ""
    rendered = rendered[rendered.rfind(probes.USER) + len(probes.USER) :]
    before, thought, after = rendered.partition(probes.THOUGHT)
    return (before, after) if thought else ("", "")


def _opening(
    template: ChatTemplate, before: str, header: str, close: str, added: Collection[str]
) -> tuple[str, bool]:
    """What opens a thought, and whether the generation prompt has written it."""
    prompt = _prompt(template)
    shared = prompt if before.startswith(prompt) else markup.common_start(before, header, added)
    opening = before[len(shared) :].strip()
    if opening:
        return opening, prompt.rstrip().endswith(opening)
    # The prompt ends with it, or an answer without thoughts begins with an empty one.
    tag = _LAST_TAG.search(before)
    if tag is None or (tag[0].strip() in header and close not in header):
        return "", False
    return tag[0].strip(), prompt.rstrip().endswith(tag[0].strip())


def _prompt(template: ChatTemplate) -> str:
    """What the generation prompt writes after a user's text; "" where the template refuses."""
    try:
        prompt = template.render([probes.user()], generation_prompt=True)
    except TemplateError:
        return ""
    return prompt[prompt.rfind(probes.USER) + len(probes.USER) :]


def _closing(tag: str) -> str:
    return f"{tag[0]}/{tag[1:]}"


def _stripped_through(template: ChatTemplate) -> str:
    """The tag up to which the template strips an earlier answer; "" where it strips none."""
    for tag in sorted(filter(_CLOSING_TAG.fullmatch, template.literals)):
        answer = probes.assistant(probes.THOUGHT + tag + probes.TEXT)
        try:
            written = template.render(
                [probes.user(), answer, probes.user("Zqnext")], generation_prompt=False
            )
        except TemplateError:
            continue
        if probes.TEXT in written and probes.THOUGHT not in written:
            return tag
    return ""
