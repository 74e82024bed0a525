r"""What begins like a call but is not one: near misses of a dialect, in text outside its calls.

A policy that writes `<toolcall>` for `<tool_call>` means to call. Taken for an answer, it would end
the episode, and training would learn to do so. Three kinds of evidence are looked for, all from
the dialect's own markup and the tools on offer:

    markup    a tag of the dialect's outside of a call, or one with nearly its letters before what
              could be a payload               <|tool_call_begin|>f:0    <toolcall>{    ```tool_call
    offer     an offered tool's name and one of its parameters      add(a=1    {"tool": "add", "a":
    object    a JSON object with a tool's name and arguments, by itself      {'name': 'add', 'args':

Prose and code name tools and tags as well, so a tag that is not the dialect's to the letter needs
a payload behind it; the other two (`loose_calls.py`) need keys that only calls have. How often text
is wrongly taken for a call, and a near miss for text, `benchmarks/near_misses.py` measures.

Left out: reading calls (`dialect.py`), and what breaks a call that has begun (`payloads.py`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice

from gymnast.envs.rendering.calls import markup
from gymnast.envs.rendering.calls.loose_calls import Loose, NearMiss, words_of
from gymnast.envs.rendering.calls.payloads import PayloadMarkup, Schemas

_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
_LIKE_A_TAG = re.compile(
    r"[<\[]([^<>\[\]{}\n]{1,60}+)[>\]]|&lt;([^<>&;\n]{1,60}+)&gt;|```(\w{1,60}+)"
    r"|<([|\w]{1,60}+)(?=\s*+(?:[{\[]|\Z))|^[ \t]*+([|\w]{1,60}+)>",
    re.MULTILINE,
)
# Tags that stand right before what gives a call away belong to it.
_BEFORE = re.compile(r"(?:(?:<[^<>\s]{1,61}+>?|\[[A-Z_]{1,60}+\]|```\w*+)\s*+)++\Z")
_SIGN = re.compile(r"[<\[{&]|```|\(\s*+\w++\s*+=")  # without one of these nothing is near a call
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
        """The last part of what opens a call, where that is no whole tag: `<function=`."""
        first, sign, last = self.opening[1].rpartition("<")
        return sign + last if first and ">" not in last else ""

    @cached_property
    def loose(self) -> Loose:
        """How calls are found that have none of this markup."""
        inside = self.payload
        written = [*self.opening, inside.after_name, inside.open, inside.assign]
        return Loose(words_of(" ".join(written)), inside.name_key, inside.arguments_key)

    @cached_property
    def parameter(self) -> re.Pattern[str] | None:
        """An argument's markup with a key in it; None where it could be of ordinary XML."""
        opening, assign = self.payload.open, self.payload.assign
        if not re.match(r"<\W?\w", opening) or opening.endswith('"'):
            return None
        parts = markup.pattern(opening).pattern, markup.pattern(assign).pattern
        return re.compile(rf"{parts[0]}\s*+[\w.\-]++\s*+{parts[1]}")

    @cached_property
    def begun(self) -> re.Pattern[str] | None:
        """A tool's name in `head`; None where there is none."""
        if not self.head:
            return None
        after = markup.pattern(self.payload.after_name).pattern
        return re.compile(rf"{markup.pattern(self.head).pattern}\s*+([\w.\-]++)\s*+{after}")

    def _tags(self, written: list[str]) -> tuple[str, ...]:
        ordinary = "".join(self.other)
        found = [tag for part in written for tag in _TAG.findall(part) if tag not in ordinary]
        return tuple(dict.fromkeys(found))


def find(text: str, own: DialectMarkup, schemas: Schemas, *, alone: bool = True) -> NearMiss | None:
    """The first near miss in a text, or None; where no tool is offered, nothing is one.

    Args:
        text: What is outside of the calls that were read.
        own: The markup of the dialect.
        schemas: The parameters' schemas by the offered tools' names.
        alone: Whether no call was read in the turn: else a tag that closes one says nothing.
    """
    if not schemas or not _SIGN.search(text):
        return None
    found = [*_left(text, own, alone), *own.loose.find(text, schemas)]
    found += [*_unbegun(text, own), *islice(_nearly(text, own, schemas, alone), 1)]
    first = min(found, key=lambda miss: miss.start, default=None)
    if first is None:
        return None
    before = _BEFORE.search(text, max(0, first.start - 2 * _LONGEST), first.start)
    return replace(first, start=before.start()) if before else first


def _left(text: str, own: DialectMarkup, alone: bool) -> Iterator[NearMiss]:
    """Markup of the dialect's, to the letter, that belongs to no call."""
    places = [(text.find(tag), tag) for tag in own.openers]
    places += [(_behind_payload(text, tag), tag) for tag in own.closers] if alone else []
    for start, tag in places:
        if start >= 0:
            yield NearMiss(start, f"{tag!r} belongs to a call, but no call could be read")
    if own.parameter is not None and (argument := own.parameter.search(text)):
        yield NearMiss(argument.start(), f"the argument {argument[0]!r} is outside a call")


def _behind_payload(text: str, tag: str) -> int:
    """Where a tag stands behind what can end a payload; -1 where it does not."""
    start = text.find(tag)
    return start if text[: max(start, 0)].rstrip()[-1:] in ("}", "]", ")", ">") else -1


def _unbegun(text: str, own: DialectMarkup) -> Iterator[NearMiss]:
    """A call whose first tag was left out."""
    if own.begun is not None and (found := own.begun.search(text)):
        first = markup.shown(own.opening[1].removesuffix(own.head).strip())
        yield NearMiss(found.start(), f"{found[0]!r} must come after {first!r}", found[1])


def _nearly(text: str, own: DialectMarkup, schemas: Schemas, alone: bool) -> Iterator[NearMiss]:
    """Tags with nearly the letters of one that opens a call, before what could be a payload."""
    payload = _payload(tuple(schemas), alone)
    for found in _LIKE_A_TAG.finditer(text) if own.openers else ():
        letters = _letters(next(filter(None, found.groups())))
        alike = [tag for tag in own.openers if _alike(letters, _letters(tag))]
        if alike and payload.match(text, found.end()):
            right = next((tag for tag in alike if _letters(tag) == letters), alike[0])
            yield NearMiss(found.start(), f"{found[0]!r} does not begin a call; {right!r} does")


@lru_cache(maxsize=4096)
def _letters(tag: str) -> str:
    return "".join(_LETTERS.findall(tag)).casefold()


def _alike(letters: str, own: str) -> bool:
    """Whether two tags have the same letters, all but one, or one begins with the other."""
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
    """What can come behind a tag that opens a call; the end, where that may be torn."""
    offered = "|".join(rf"{re.escape(name)}\b" for name in names) or "(?!)"
    end = r"|\Z" if torn else ""
    before = r"\s*+(?:```\w*+\s*+)?(?:functions\.|call:)?"
    return re.compile(rf"{before}(?:[{{\[]\s*+(?:[\"'{{\[\w<]{end})|<?(?:{offered}){end})")
