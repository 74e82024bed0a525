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

from gymnast.envs import probes
from gymnast.envs.chat_template import ChatTemplate
from gymnast.envs.dialect import Dialect
from gymnast.envs.parsing import read_calls
from gymnast.envs.payloads import KINDS, Found
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


def derive(template: ChatTemplate, turns: Turns, added: Mapping[str, int]) -> Dialect | None:
    """Read a template's dialect; None where it writes no calls, or tells of no tools.

    Args:
        template: The template.
        turns: How it brackets an assistant's turn.
        added: The tokenizer's added tokens: markup is never cut inside one.

    Raises:
        TemplateError: If the template writes calls in a way that is not understood. The message
            shows the rendering.
    """
    if not _tells_of_tools(template):
        return None
    seen = ""
    for as_text, content in ((False, ""), (False, None), (True, ""), (True, None)):

        def mark(count: int, text: str | None, as_text: bool = as_text) -> _Marked | None:
            message = probes.calling(count, content=text, as_text=as_text)
            return _marked(template, turns, added, message)

        one = mark(1, content)
        if one is None:
            continue
        seen = seen or one.region
        if one.found is None:
            continue
        dialect = _compare(one, mark(2, content), mark(1, probes.TEXT), added)
        dialect = replace(dialect, as_text=as_text, empty_content=content)
        if all(_reads_back(dialect, mark(count, content), count) for count in (1, 2)):
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
    template: ChatTemplate, turns: Turns, added: Mapping[str, int], message: dict[str, object]
) -> _Marked | None:
    """Render a message with marked calls; None where the template refuses or leaves them out."""
    try:
        text = template.render([probes.user(), message], probes.tools(), generation_prompt=False)
    except TemplateError:
        return None
    region = text[text.rfind(probes.USER) + len(probes.USER) :]
    region = region[: call_end(region, turns.after_last, added)]
    if not all(str(value) in region for value in probes.ARGUMENTS[0].values()):
        return None
    found = next(filter(None, (recognise(region) for recognise in KINDS)), None)
    return _Marked(region, found, len(_common_start(region, turns.header, added)))


def _compare(
    one: _Marked, two: _Marked | None, after_text: _Marked | None, added: Mapping[str, int]
) -> Dialect:
    assert one.found is not None
    opening, closing = one.before, one.after
    if after_text is not None and after_text.found and probes.TEXT in after_text.before:
        gap = after_text.before.rpartition(probes.TEXT)[2]
        opening = _common_end(opening, gap, added)
    opening = _from_last_token(opening, added)
    dialect = Dialect(one.found.payload, opening.strip(), closing.strip())
    between = _between(two)
    if not between.strip():
        return dialect
    call_open = _common_end(opening, between, added)
    call_close = _common_start(closing, between, added)
    if not call_open.strip():  # several payloads in one pair of delimiters
        return replace(dialect, between=between.strip())
    return replace(
        dialect,
        open=call_open.strip(),
        close=call_close.strip(),
        section_open=opening.removesuffix(call_open).strip(),
        section_close=closing.removeprefix(call_close).strip(),
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
    first, second = (list(arguments.items()) for arguments in probes.ARGUMENTS)
    text = text.replace(probes.NAMES[1], probes.NAMES[0]).replace(probes.IDS[1], probes.IDS[0])
    return text.replace(str(second[0][1]), str(first[0][1]))


def _reads_back(dialect: Dialect, marked: _Marked | None, count: int) -> bool:
    if marked is None:  # the template refuses several calls in one turn
        return count > 1
    _, calls = read_calls(marked.region[marked.lead :], dialect)
    expected = list(zip(probes.NAMES, probes.ARGUMENTS, strict=True))[:count]
    return [(call.name, call.arguments) for call in calls] == expected and not any(
        call.error for call in calls
    )


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
