r"""Near misses of a dialect: text outside its calls that begins like a call but is not one.

A policy that writes `<toolcall>` for `<tool_call>` means to call. Taken for an answer, this would
end the episode, and training would reinforce it. Three kinds of evidence are looked for, all from
the dialect's own markup and the tools on offer:

    markup    one of the dialect's tags outside a call, or one with nearly its letters before what
              could be a payload               <|tool_call_begin|>f:0    <toolcall>{    ```tool_call
    offer     an offered tool's name and one of its parameters      add(a=1    {"tool": "add", "a":
    object    a JSON object with a tool's name and arguments, by itself      {'name': 'add', 'args':

Prose and code mention tools and tags as well, so a tag that is only similar to the dialect's needs
a payload after it; the other two (`loose_calls.py`) need keys that only calls have.
`benchmarks/near_misses.py` measures how often text is taken for a call, and a near miss for text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice

from gymnast.envs.rendering.calls import markup
from gymnast.envs.rendering.calls.payloads import PayloadMarkup, Schemas
from gymnast.envs.rendering.dialects.loose_calls import LooseCalls, NearMiss, call_words

_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
_LIKE_A_TAG = re.compile(
    r"[<\[]([^<>\[\]{}\n]{1,60}+)[>\]]|&lt;([^<>&;\n]{1,60}+)&gt;|```(\w{1,60}+)"
    r"|<([|\w]{1,60}+)(?=\s*+(?:[{\[]|\Z))|^[ \t]*+([|\w]{1,60}+)>",
    re.MULTILINE,
)
# Tags right before a near miss belong to it.
_BEFORE = re.compile(r"(?:(?:<[^<>\s]{1,61}+>?|\[[A-Z_]{1,60}+\]|```\w*+)\s*+)+\Z")
_SIGN = re.compile(r"[<\[{&]|```|\(\s*+\w++\s*+=")  # without one of these, nothing is a near miss
_LETTERS = re.compile(r"[^\W\d_]+")
_LONG_ENOUGH = 6  # letters of a tag, one of which may be wrong
_LONGEST = 60  # characters of a tag


@dataclass(frozen=True)
class DialectMarkup:
    """The markup by which a dialect's calls are known.

    Attributes:
        payload: What stands inside a payload.
        opening: The markup before all calls, and before each.
        closing: The markup after each call, and after all.
        other: Markup that turns without calls have too.
    """

    payload: PayloadMarkup
    opening: tuple[str, str]
    closing: tuple[str, str]
    other: tuple[str, ...] = ()

    @cached_property
    def openers(self) -> tuple[str, ...]:
        """The tags before a payload, and those inside it."""
        inside = self.payload
        return self._tags([*self.opening, inside.after_name, inside.open, inside.assign])

    @cached_property
    def closers(self) -> tuple[str, ...]:
        """The tags after a payload."""
        tags = self._tags([self.payload.close, *self.closing])
        return tuple(tag for tag in tags if tag not in self.openers)

    @cached_property
    def head(self) -> str:
        """The last part of what opens a call, where that is not a whole tag: `<function=`."""
        first, sign, last = self.opening[1].rpartition("<")
        return sign + last if first and ">" not in last else ""

    @cached_property
    def loose(self) -> LooseCalls:
        """Finds calls that have none of this markup."""
        inside = self.payload
        written = [*self.opening, inside.after_name, inside.open, inside.assign]
        return LooseCalls(call_words(" ".join(written)), inside.name_key, inside.arguments_key)

    @cached_property
    def parameter(self) -> re.Pattern[str] | None:
        """An argument's markup with a key in it; None where ordinary XML looks the same."""
        opening, assign = self.payload.open, self.payload.assign
        if not re.match(r"<\W?\w", opening) or opening.endswith('"'):
            return None
        parts = markup.pattern(opening).pattern, markup.pattern(assign).pattern
        return re.compile(rf"{parts[0]}\s*+[\w.\-]++\s*+{parts[1]}")

    @cached_property
    def begun(self) -> re.Pattern[str] | None:
        """A tool's name after `head`; None where there is no head."""
        if not self.head:
            return None
        after = markup.pattern(self.payload.after_name).pattern
        return re.compile(rf"{markup.pattern(self.head).pattern}\s*+([\w.\-]++)\s*+{after}")

    def _tags(self, written: list[str]) -> tuple[str, ...]:
        ordinary = "".join(self.other)
        tags = (tag for part in written for tag in _TAG.findall(part) if tag not in ordinary)
        return tuple(dict.fromkeys(tags))


def find(text: str, own: DialectMarkup, schemas: Schemas, *, alone: bool = True) -> NearMiss | None:
    """The first near miss in a text, or None; where no tool is offered, there is none.

    Args:
        text: The text outside of the calls that were read.
        own: The markup of the dialect.
        schemas: The parameters' schemas by the names of the offered tools.
        alone: Whether no call was read in the turn: otherwise a closing tag proves nothing.
    """
    if not schemas or not _SIGN.search(text):
        return None
    misses = [*_stray(text, own, alone), *own.loose.find(text, schemas)]
    misses += [*_headless(text, own), *islice(_similar(text, own, schemas, alone), 1)]
    first = min(misses, key=lambda miss: miss.start, default=None)
    if first is None:
        return None
    before = _BEFORE.search(text, max(0, first.start - 2 * _LONGEST), first.start)
    return replace(first, start=before.start()) if before else first


def _stray(text: str, own: DialectMarkup, alone: bool) -> Iterator[NearMiss]:
    """The dialect's own markup where it belongs to no call."""
    places = [(text.find(tag), tag) for tag in own.openers]
    places += [(_after_payload(text, tag), tag) for tag in own.closers] if alone else []
    for start, tag in places:
        if start >= 0:
            yield NearMiss(start, f"{tag!r} belongs to a call, but no call could be read")
    if own.parameter is not None and (argument := own.parameter.search(text)):
        yield NearMiss(argument.start(), f"the argument {argument[0]!r} is outside a call")


def _after_payload(text: str, tag: str) -> int:
    """Where a tag follows what can end a payload; -1 where it does not."""
    start = text.find(tag)
    return start if text[: max(start, 0)].rstrip()[-1:] in ("}", "]", ")", ">") else -1


def _headless(text: str, own: DialectMarkup) -> Iterator[NearMiss]:
    """A call whose first tag is missing."""
    if own.begun is not None and (match := own.begun.search(text)):
        first = markup.shown(own.opening[1].removesuffix(own.head).strip())
        yield NearMiss(match.start(), f"{match[0]!r} must come after {first!r}", match[1])


def _similar(text: str, own: DialectMarkup, schemas: Schemas, alone: bool) -> Iterator[NearMiss]:
    """Tags with nearly the letters of an opening one, before what could be a payload."""
    payload = _payload(tuple(schemas), alone)
    for match in _LIKE_A_TAG.finditer(text) if own.openers else ():
        letters = _letters(next(filter(None, match.groups())))
        alike = [tag for tag in own.openers if _alike(letters, _letters(tag))]
        if alike and payload.match(text, match.end()):
            right = next((tag for tag in alike if _letters(tag) == letters), alike[0])
            yield NearMiss(match.start(), f"{match[0]!r} does not begin a call; {right!r} does")


@lru_cache(maxsize=4096)
def _letters(tag: str) -> str:
    return "".join(_LETTERS.findall(tag)).casefold()


def _alike(letters: str, own: str) -> bool:
    """Whether two tags share all letters, all but one, or one begins with the other."""
    if letters == own:
        return bool(own)
    if min(len(letters), len(own)) < _LONG_ENOUGH:
        return False
    if letters.startswith(own) or own.startswith(letters):
        return True
    start = markup.shared_length(letters, own)
    end = markup.shared_length(letters[start:][::-1], own[start:][::-1])
    return max(len(letters), len(own)) - start - end <= 1


@lru_cache(maxsize=256)
def _payload(names: tuple[str, ...], torn: bool) -> re.Pattern[str]:
    """What can follow a tag that opens a call; with `torn`, also the end of the text."""
    offered = "|".join(rf"{re.escape(name)}\b" for name in names) or "(?!)"
    end = r"|\Z" if torn else ""
    before = r"\s*+(?:```\w*+\s*+)?(?:functions\.|call:)?"
    return re.compile(rf"{before}(?:[{{\[]\s*+(?:[\"'{{\[\w<]{end})|<?(?:{offered}){end})")
