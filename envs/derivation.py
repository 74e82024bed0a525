r"""Find out how a chat template writes tool calls: read from its own rendering of marked calls.

Nothing is assumed: no tag, no key, no model's name. The rendering of one marked call, of two, and
of one after some text are laid side by side (here for the template of a Hermes model):

    header            open         payload                               close         after_last
    <|im_start|>...\n <tool_call>\n{"name": "zqfirst", "arguments": ...}\n</tool_call> <|im_end|>\n

What was read is tried at once: the rendering must parse back into the marked calls, or else the
template is refused. `payloads.py` knows what can stand between the delimiters, `parsing.py` reads
a completion by the dialect.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gymnast.envs import probes
from gymnast.envs.chat_template import ChatTemplate
from gymnast.envs.parsing import Dialect, read_calls
from gymnast.envs.payloads import KINDS, Found
from gymnast.envs.safe_text import SafeText
from gymnast.envs.turns import Turns, call_end, common_start
from gymnast.errors import TemplateError


@dataclass(frozen=True)
class _Marked:
    """A rendering of marked calls, from the end of the user's text to the end of the calls."""

    region: str
    found: Found | None
    lead: int  # where the assistant's header ends in `region`

    @property
    def before(self) -> str:
        return self.region[self.lead : self.found.start] if self.found else ""

    @property
    def after(self) -> str:
        return self.region[self.found.end :] if self.found else ""


def derive(template: ChatTemplate, turns: Turns, text: SafeText) -> Dialect | None:
    """Read a template's dialect; None where it writes no calls, or tells of no tools.

    Args:
        template: The template.
        turns: How it brackets an assistant's turn.
        text: The tokenizer: markup is never cut inside one of its added tokens.

    Raises:
        TemplateError: If the template writes calls in a way that is not understood. The message
            shows the rendering.
    """
    if not _tells_of_tools(template):
        return None
    seen = ""
    for as_text, content in ((False, ""), (False, None), (True, ""), (True, None)):
        if as_text and seen and str(probes.ARGUMENTS[0]) not in seen:
            break  # it takes an object and writes it its own way; a string would mislead us
        # One call, one after some text, and two.
        one, after_text, two = (
            _marked(template, turns, text, probes.calling(count, content=said, as_text=as_text))
            for count, said in ((1, content), (1, probes.TEXT), (2, content))
        )
        if one is None:
            continue
        seen = seen or one.region
        if one.found is None:
            continue
        dialect = replace(
            _compare(one, two, after_text, text.added),
            as_text=as_text,
            empty_content=content,
            several=two is not None,
        )
        read_back = _reads_back(dialect, one, 1) and (two is None or _reads_back(dialect, two, 2))
        if read_back and not _leaves_turn(dialect, turns, text):
            return dialect
    if not seen:
        return None
    raise TemplateError(
        f"the chat template of {template.tokenizer!r} writes a call of "
        f"{probes.NAMES[0]}({probes.ARGUMENTS[0]}) as {seen!r}, in which no JSON object (or name "
        "and JSON object) with this name and these arguments could be found, or read back; pass a "
        "parser, Renderer(tokenizer, parser='module:function'), or another chat_template"
    )


def _tells_of_tools(template: ChatTemplate) -> bool:
    try:
        shown = template.render([probes.user()], probes.tools(), generation_prompt=True)
    except TemplateError:
        return False
    return probes.NAMES[0] in shown


def _marked(
    template: ChatTemplate, turns: Turns, text: SafeText, message: dict[str, Any]
) -> _Marked | None:
    """Render a message with marked calls; None where the template refuses or leaves them out."""
    try:
        rendered = template.render(
            [probes.user(), message], probes.tools(), generation_prompt=False
        )
    except TemplateError:
        return None
    rendered = rendered[: call_end(rendered, turns, text)]
    region = rendered[rendered.rfind(probes.USER) + len(probes.USER) :]
    if not _has_calls(region, message):
        return None
    found = next(filter(None, (recognise(region) for recognise in KINDS)), None)
    return _Marked(region, found, len(_common_start(region, turns.header, text.added)))


def _has_calls(region: str, message: dict[str, Any]) -> bool:
    """Whether every marked call is there; some templates write the first and leave the rest."""
    marked = probes.ARGUMENTS[: len(message["tool_calls"])]
    return all(str(value) in region for arguments in marked for value in arguments.values())


def _compare(
    one: _Marked, two: _Marked | None, after_text: _Marked | None, added: Mapping[str, int]
) -> Dialect:
    assert one.found is not None
    opening, closing = one.before, one.after
    if after_text is not None and after_text.found and probes.TEXT in after_text.before:
        gap = after_text.before.rpartition(probes.TEXT)[2]
        opening = _common_end(opening, gap, added)
    between = _between(two)
    call_open = _common_end(opening, between, added) if between.strip() else opening
    call_close = _common_start(closing, between, added) if between.strip() else closing
    if not call_open.strip():  # several payloads in one pair of delimiters
        call_open, call_close = opening, closing
    else:
        between = ""
    section_close = closing.removeprefix(call_close).strip()
    return Dialect(
        one.found.payload,
        open=_from_last_token(call_open, added).strip(),
        close=call_close.strip(),
        between=between.strip(),
        # Markup before the calls with none after them is a thought's, not a section's.
        section_open=opening.removesuffix(call_open).strip() if section_close else "",
        section_close=section_close,
    )


def _between(two: _Marked | None) -> str:
    """What stands between two calls, where they are two payloads."""
    if two is None or two.found is None or probes.NAMES[1] not in two.after:
        return ""
    for recognise in KINDS:
        second = recognise(_second_as_first(two.after))
        if second is not None:
            return _second_as_first(two.after)[: second.start]
    return ""


def _second_as_first(text: str) -> str:
    """The second marked call, renamed to the first, so that the same search finds it."""
    renamed = dict(
        zip(probes.NAMES[1:] + probes.IDS[1:], (probes.NAMES[0], probes.IDS[0]), strict=True)
    )
    for key, value in probes.ARGUMENTS[1].items():
        renamed[str(value)] = str(probes.ARGUMENTS[0][key])
    for second, first in renamed.items():
        text = text.replace(second, first)
    return text


def _leaves_turn(dialect: Dialect, turns: Turns, text: SafeText) -> bool:
    """Whether the delimiters hold what brackets turns, or an id: then they were misread."""
    markup = f"{dialect.section_open} {dialect.open} {dialect.close} {dialect.section_close}"
    brackets = turns.closing | turns.opening | set(text.encode(turns.header, inside=True))
    tokens = filter(text.is_added, text.encode(markup, inside=True))
    return probes.IDS[0] in markup or not brackets.isdisjoint(tokens)


def _reads_back(dialect: Dialect, marked: _Marked, count: int) -> bool:
    _, calls = read_calls(marked.region[marked.lead :], dialect)
    expected = list(zip(probes.NAMES, probes.ARGUMENTS, strict=True))[:count]
    read = [(call.name, call.arguments) for call in calls if call.error is None]
    return len(calls) == count and read == expected


def _inside_token(text: str, cut: int, added: Mapping[str, int]) -> bool:
    """Whether cutting a text here would cut an added token."""
    return any(
        start < cut < start + len(token) for token in added for start in _occurrences(text, token)
    )


def _occurrences(text: str, token: str) -> Iterator[int]:
    return (match.start() for match in re.finditer(re.escape(token), text))


def _common_start(text: str, other: str, added: Mapping[str, int]) -> str:
    """What two texts begin with, up to a sensible place to cut `text`."""
    common = common_start(text, other)
    if len(common) == len(text) or len(common) == len(other):
        return common
    # An opening bracket at the end belongs to what comes after: "</call><" | "/calls>".
    common = re.sub(r"[<\[({][^\w\s>\])}]*\Z", "", common)
    while _inside_token(text, len(common), added):
        common = common[:-1]
    return common


def _common_end(text: str, other: str, added: Mapping[str, int]) -> str:
    """What two texts end with, down to a sensible place to cut `text`."""
    common = common_start(text[::-1], other[::-1])[::-1]
    if len(common) == len(text) or len(common) == len(other):
        return common
    common = re.sub(r"\A[^\w\s<\[({]*[>\])}]", "", common)
    while _inside_token(text, len(text) - len(common), added):
        common = common[1:]
    return common


def _from_last_token(text: str, added: Mapping[str, int]) -> str:
    """The part that a model cannot do without: what comes before may be a thought's markup."""
    starts = [start for token in added for start in _occurrences(text, token)]
    return text[max(starts) :] if starts else text
