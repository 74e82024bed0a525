r"""Turns in several parts, each under a header: thoughts, answers, and calls with text around them.

    <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.
    header, of a thought             joint                    header, of an answer

A template's renderings show the headers of a thought and of an answer. Models write others as well
(`<|channel|>commentary<|message|>` before a call), and several parts of one kind. Headers and
joints are never content, whatever words they hold.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from gymnast.envs.rendering.calls import markup
from gymnast.envs.rendering.dialects.dialect import Dialect
from gymnast.envs.rendering.template.reasoning import Reasoning

_WORD = re.compile(r"\w+")
_LONGEST_HEADER = 80  # characters between the first and the last of its markup


@dataclass(frozen=True)
class Channels:
    """How a template divides a turn into parts.

    Attributes:
        joint: What ends a part and begins the next.
        start: What a header begins with.
        end: What it ends with.
        thought: The header of a thought.
        call: What a call begins with in a header; "" where calls stand in parts, like text.
    """

    joint: str
    start: str
    end: str
    thought: str
    call: str

    @classmethod
    def of(
        cls,
        reasoning: Reasoning | None,
        before_text: Sequence[str],
        dialect: Dialect | None,
        added: Collection[str],
    ) -> "Channels | None":
        """Compare the headers of thought and answer; None where they differ in more than a word.

        Args:
            reasoning: How the template writes thoughts.
            before_text: What it writes before an answer.
            dialect: How it writes calls, if it does.
            added: The contents of the tokenizer's added tokens.
        """
        if reasoning is None or not reasoning.close:
            return None
        for header in before_text:
            for word in _WORD.finditer(header):
                start, end = header[: word.start()], header[word.end() :]
                cut = markup.cuts_token(header, word.start(), added)
                kind = re.escape(start) + r"\w+" + re.escape(end)
                if start and end and not cut and re.fullmatch(kind, reasoning.open):
                    call = dialect.open if dialect and end in _head(dialect) else ""
                    return cls(reasoning.close, start, end, reasoning.open, call)
        return None

    def split(self, text: str) -> tuple[str, str, str]:
        """Divide a turn.

        Returns:
            The thoughts, the text, and the calls with their markup from `call` on. Without `call`,
            the text takes the place of the calls, to be searched for them.
        """
        parts = list(self._parts(text))
        thoughts = [body for kind, body in parts if kind == "thought"]
        texts = [body for kind, body in parts if kind == "text"]
        calls = [body for kind, body in parts if kind == "call"]
        thought, text = "\n".join(filter(None, thoughts)), "\n".join(filter(None, texts))
        return (thought, text, "".join(calls)) if self.call else (thought, "", text)

    def _parts(self, text: str) -> Iterator[tuple[str, str]]:
        """The kind and the body of every part, in order."""
        position = 0
        for joint in [*markup.pattern(self.joint).finditer(text), None]:
            part = text[position : joint.start()] if joint else self._last(text[position:])
            position = joint.end() if joint else position
            call = self._call(part)
            header = self._header.match(part, 0, call)
            body = part[header.end() if header else 0 : call]
            thinks = header is not None and header[0].strip() == self.thought
            yield "thought" if thinks else "text", body.strip()
            yield "call", part[call:]

    def _last(self, part: str) -> str:
        """A turn's last part, without the start of a joint that the end of the turn cut off."""
        part, least = part.rstrip(), self.joint.find(">") + 1 or len(self.joint)
        lengths = range(len(self.joint), least - 1, -1)
        cut = next((n for n in lengths if part.endswith(self.joint[:n])), 0)
        return part[: len(part) - cut]

    def _call(self, part: str) -> int:
        """Where the call in a part begins; the end of the part where there is none."""
        call = markup.pattern(self.call).search(part) if self.call else None
        return call.start() if call and part.rfind(self.end) > call.start() else len(part)

    @cached_property
    def _header(self) -> re.Pattern[str]:
        start, end = re.escape(self.start), re.escape(self.end)
        open_end = rf"\s*+{start}\s*+[\w.]*\s*\Z"  # cut off, or continued as a call
        within = rf"[^\n]{{0,{_LONGEST_HEADER}}}?"
        return re.compile(rf"{open_end}|\s*+[^<>\n]{{0,{_LONGEST_HEADER}}}?{start}{within}{end}")


def _head(dialect: Dialect) -> str:
    """The markup of a call before its arguments."""
    return dialect.open + dialect.payload.markup.after_name
