"""Split a completion's text into its content and its calls.

A `Dialect` describes how one chat template writes calls; `rendering/template/derivation.py` derives
it from the template. `read_calls` raises for nothing that a model can write: a call that cannot be
read becomes a `ToolCall` whose `error` says where it breaks which rule, and what would be right. So
does text that is nearly a call (`near_misses.py`).
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from gymnast.envs.rendering.calls import markup
from gymnast.envs.rendering.calls.literals import skip_space
from gymnast.envs.rendering.calls.payloads import Malformed, Payload, Schemas
from gymnast.envs.rendering.dialects import near_misses
from gymnast.types import ToolCall

_SEPARATORS = (";", ",")  # models write them between calls where the template does not
_LAST_SEPARATOR = re.compile(r"[;,]\s*+\Z")


@dataclass(frozen=True)
class Dialect:
    """How calls are written in an assistant's turn.

    Markup may hold the placeholders of `calls/markup.py`.

    Attributes:
        payload: The kind of payload.
        open: What comes right before a payload; "" where a call is known by being the turn.
        close: What comes right after it.
        between: What separates payloads that share one `open` and `close`.
        section_open: What comes once before the first `open`.
        section_close: What comes once after the last `close`.
        beside: Other markup that the template writes between text and calls, or between calls.
        several: Whether the template writes several calls in a turn.
        as_text: Whether the template takes a call's arguments as a JSON string.
        empty_content: The content that the template takes where there is none: "" or None.
        announced: Whether the template itself tells the model of the tools.
        needs_system: Whether it does so only in a system message.
        prewritten: Whether the generation prompt ends with `open`.
        answer: What follows `open` where text comes instead of a call.
        leading_word: A word before calls that the template asks for, but leaves out; or "".
        example: A well-formed call of `TOOL` with `KEY` and `VALUE`, for a model to see.
    """

    payload: Payload
    open: str
    close: str
    between: str = ""
    section_open: str = ""
    section_close: str = ""
    several: bool = True
    as_text: bool = False
    empty_content: str | None = ""
    announced: bool = True
    needs_system: bool = False
    prewritten: bool = False
    answer: str = ""
    beside: tuple[str, ...] = ()
    leading_word: str = ""
    example: str = ""


def read_calls(
    text: str, dialect: Dialect, schemas: Schemas | None = None
) -> tuple[str, list[ToolCall]]:
    """Split a completion into its text and its calls.

    Args:
        text: The completion, added tokens included, without its stop token.
        dialect: How calls are written.
        schemas: The parameters' schemas by tool name, for dialects that write no types.

    Returns:
        The text outside of the calls, and the calls in order. Ids are as the model wrote them, ""
        where it wrote none.
    """
    schemas = schemas or {}
    read = _read_delimited if dialect.open else _read_bare
    parts = read(text, dialect, schemas)
    alone = not any(part.calls for part in parts)
    parts = [_with_near_miss(part, dialect, schemas, alone=alone) for part in parts]
    calls = [call for part in parts for call in part.calls]
    if not calls and not dialect.prewritten:
        return text, []
    content = "\n".join(filter(None, (_without_markup(part.text, dialect) for part in parts)))
    return content, [_explained(call, n, dialect) for n, call in enumerate(calls, start=1)]


def read_near_miss(
    text: str, dialect: Dialect, schemas: Schemas | None = None
) -> tuple[str, list[ToolCall]]:
    """Look for a near miss in text in which another parser read no calls.

    Returns:
        The text before it, and a call with its error; or the whole text, and no call.
    """
    part = _with_near_miss(_Part(0, text, []), dialect, schemas or {}, alone=True)
    if not part.calls:
        return text, []
    return part.text.rstrip(), [_explained(call, 1, dialect) for call in part.calls]


@dataclass(frozen=True)
class _Part:
    """A stretch of text, and the calls right after it.

    Attributes:
        start: Where it begins in the completion.
        text: The text.
        calls: The calls.
    """

    start: int
    text: str
    calls: list[ToolCall]


def _with_near_miss(part: _Part, dialect: Dialect, schemas: Schemas, *, alone: bool) -> _Part:
    """The part, its text cut where something begins that is nearly a call."""
    text = part.text if alone else _without_markup(part.text, dialect)
    miss = near_misses.find(text, _dialect_markup(dialect), schemas, alone=alone)
    if miss is None:
        return part
    position = part.start + max(part.text.find(text[miss.start :]), 0)
    call = ToolCall("", miss.name, {}, f"at character {position}: {miss.rule}")
    return _Part(part.start, text[: miss.start], [call, *part.calls])


@lru_cache(maxsize=256)
def _dialect_markup(dialect: Dialect) -> near_misses.DialectMarkup:
    return near_misses.DialectMarkup(
        dialect.payload.markup,
        opening=(dialect.section_open, dialect.open),
        closing=(dialect.close, dialect.section_close),
        other=(*dialect.beside, dialect.answer),
    )


def _explained(call: ToolCall, number: int, dialect: Dialect) -> ToolCall:
    if call.error is None:
        return call
    error = f"call {number} could not be read {call.error}; write {dialect.example}"
    return replace(call, error=error)


def _without_markup(part: str, dialect: Dialect) -> str:
    for tag in (dialect.section_open, dialect.section_close):
        if tag:
            part = markup.pattern(tag).sub("", part)
    part = part.strip()
    for tag in dialect.beside:
        part = _without_ends(part, markup.pattern(tag))
    return part


def _without_ends(part: str, tag: re.Pattern[str]) -> str:
    """The text without this markup at its start and its end."""
    if at_start := tag.match(part):
        part = part[at_start.end() :].lstrip()
    for match in tag.finditer(part):
        if match.end() == len(part):
            return part[: match.start()].rstrip()
    return part


def _read_delimited(text: str, dialect: Dialect, schemas: Schemas) -> list[_Part]:
    parts, position = [], 0
    while match := markup.pattern(dialect.open).search(text, position):
        begin, before = position, text[position : match.start()]
        if dialect.answer and (answer := markup.pattern(dialect.answer).match(text, match.end())):
            parts.append(_Part(begin, before, []))
            position = answer.end()
            continue
        read, position = _read_block(text, match.end(), dialect, schemas)
        parts.append(_Part(begin, before, [_with_id(call, match) for call in read]))
    return [*parts, _Part(position, text[position:], [])]


def _read_bare(text: str, dialect: Dialect, schemas: Schemas) -> list[_Part]:
    """Without a delimiter, only the turn's start or the leading word tells a call from text."""
    parts: list[_Part] = []
    start, end = skip_space(text, 0), 0
    begins = dialect.payload.begins(text, start)
    if begins and not _dialect_markup(dialect).loose.is_data(text, start, schemas):
        calls, end = _read_block(text, start, dialect, schemas)
        parts.append(_Part(0, "", calls))
    for word in re.finditer(re.escape(dialect.leading_word), text) if dialect.leading_word else ():
        start = skip_space(text, word.end())
        if word.start() >= end and dialect.payload.begins(text, start):
            before, begin = text[end : word.start()], end
            calls, end = _read_block(text, start, dialect, schemas)
            parts.append(_Part(begin, before, calls))
    return [*parts, _Part(end, text[end:], [])]


def _with_id(call: ToolCall, opening: re.Match[str]) -> ToolCall:
    """The call with the id in its opening markup, if there is one."""
    return replace(call, id=opening[1]) if opening.groups() and not call.id else call


def _read_block(
    text: str, start: int, dialect: Dialect, schemas: Schemas
) -> tuple[list[ToolCall], int]:
    """Read the payloads from `start` to the closing delimiter."""
    calls: list[ToolCall] = []
    position = skip_space(text, start)
    try:
        while True:
            read, position = dialect.payload.read(text, position, schemas, dialect.close)
            calls += read
            following = _next_payload(text, position, dialect)
            if following is None:
                break
            position = following
        position = skip_space(text, position)
        if not dialect.close:
            last = _LAST_SEPARATOR.match(text, position)
            return calls, last.end() if last else position
        close = markup.pattern(dialect.close).match(text, position)
        if close is None:
            name = calls.pop().name if calls else ""
            raise Malformed(
                position, f"expected {markup.shown(dialect.close)!r} after the call", name
            )
        return calls, close.end()
    except Malformed as error:
        calls.append(ToolCall("", error.name, {}, f"at character {error.position}: {error}"))
        return calls, _resume(text, position, dialect)


def _next_payload(text: str, position: int, dialect: Dialect) -> int | None:
    """Where another payload begins after the same opening delimiter, if one does."""
    position = skip_space(text, position)
    if dialect.between and text.startswith(dialect.between, position):
        position = skip_space(text, position + len(dialect.between))
    elif text.startswith(_SEPARATORS, position):
        position = skip_space(text, position + 1)
    another = dialect.payload.continues if dialect.close else dialect.payload.begins
    return position if another(text, position) else None


def _resume(text: str, start: int, dialect: Dialect) -> int:
    """Where to go on after a broken block: after its end, or else at the start of the next.

    Args:
        text: The whole completion.
        start: How far it could be read.
        dialect: How calls are written.
    """
    begins = markup.pattern(dialect.open).search(text, start) if dialect.open else None
    limit = begins.start() if begins else len(text)
    close = markup.pattern(dialect.close).search(text, start, limit) if dialect.close else None
    if close:
        return close.end()
    # A policy that repeats the opening and nothing else broke one call, not a thousand.
    while begins:
        limit = begins.start()
        begins = markup.pattern(dialect.open).match(text, skip_space(text, begins.end()))
    return limit
