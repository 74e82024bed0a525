r"""Find out how a chat template writes tool calls: read from its own rendering of marked calls.

Nothing is assumed: no tag, no key, no model's name. The rendering of one marked call, of two, and
of one after some text are laid side by side (here for the template of a Hermes model):

    header            open         payload                               close         after_last
    <|im_start|>...\n <tool_call>\n{"name": "zqfirst", "arguments": ...}\n</tool_call> <|im_end|>\n

What was read is tried at once: the rendering must parse back into the marked calls, or else the
template is refused. `rendering/calls/payloads.py` says what can stand between the delimiters,
`rendering/calls/dialect.py` reads a completion by the dialect.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gymnast.envs.rendering.calls import markup, probes
from gymnast.envs.rendering.calls.dialect import Dialect, read_calls
from gymnast.envs.rendering.calls.json_payloads import JsonCalls, NameThenJson
from gymnast.envs.rendering.calls.keyword_calls import KeywordCalls
from gymnast.envs.rendering.calls.markup import common_end, common_start
from gymnast.envs.rendering.calls.parameters import Parameters
from gymnast.envs.rendering.calls.payloads import Found, Sample
from gymnast.envs.rendering.template import shown
from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.envs.rendering.template.turns import Turns, call_end
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.errors import TemplateError

KINDS: tuple[Callable[[Sample], Found | None], ...] = (
    JsonCalls.derive,
    NameThenJson.derive,
    KeywordCalls.derive,
    Parameters.derive,
)


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


@dataclass(frozen=True)
class _Writer:
    """Renders an assistant's turn with calls, in one of the forms that templates take."""

    template: ChatTemplate
    turns: Turns
    text: SafeText
    announced: bool
    as_text: bool
    empty_content: str | None

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        return probes.tools() if self.announced else None

    @cached_property
    def opening(self) -> str:
        """What the generation prompt writes after the user's text; "" where it is refused."""
        try:
            prompt = self.template.render([probes.user()], self.tools, generation_prompt=True)
        except TemplateError:
            return ""
        return prompt[prompt.rfind(probes.USER) + len(probes.USER) :]

    def lead(self, region: str) -> int:
        """Where the header ends in a region: what comes after it, the model writes."""
        if self.opening and region.startswith(self.opening):
            return len(self.opening)
        return len(common_start(region, self.turns.header, self.added))

    def region(self, message: Mapping[str, Any]) -> str | None:
        """From the user's text to the end of the calls; None where the template refuses."""
        try:
            rendered = self.template.render(
                [probes.user(), message], self.tools, generation_prompt=False
            )
        except TemplateError:
            return None
        rendered = rendered[: call_end(rendered, self.turns, self.text)]
        return rendered[rendered.rfind(probes.USER) + len(probes.USER) :]

    def write(self, arguments: Mapping[str, Any]) -> str | None:
        """One call with other arguments than the marked ones."""
        message = probes.calling(
            1, content=self.empty_content, as_text=self.as_text, arguments=[arguments]
        )
        return self.region(message)

    def marked(self, count: int, content: str | None) -> _Marked | None:
        """Render marked calls; None where the template refuses or leaves some out."""
        region = self.region(probes.calling(count, content=content, as_text=self.as_text))
        if region is None or not _has_calls(region, count):
            return None
        return _Marked(region, self.recognise(region), self.lead(region))

    def recognise(self, region: str) -> Found | None:
        """What kind of payload the first marked call is, if one of those that are known."""
        sample = Sample(region, self.write, self.added)
        return next(filter(None, (derive(sample) for derive in KINDS)), None)

    @property
    def added(self) -> Mapping[str, int]:
        return self.text.added


def derive(template: ChatTemplate, turns: Turns, text: SafeText) -> Dialect | None:
    """Read a template's dialect; None where it writes no calls.

    Args:
        template: The template.
        turns: How it brackets an assistant's turn.
        text: The tokenizer: markup is never cut inside one of its added tokens.

    Raises:
        TemplateError: If the template writes calls in a way that is not understood. The message
            shows the rendering.
    """
    without_system = _tells_of_tools(template)
    announced = without_system or _tells_of_tools(template, probes.system(""))
    seen = ""
    for as_text, content in ((False, ""), (False, None), (True, ""), (True, None)):
        if as_text and seen and str(probes.ARGUMENTS[0]) not in seen:
            break  # it takes an object and writes it its own way; a string would mislead us
        writer = _Writer(template, turns, text, announced, as_text, content)
        one = writer.marked(1, content)
        if one is None:
            continue
        seen = seen or one.region
        if one.found is None:
            continue
        dialect = _dialect(writer, one)
        if dialect is not None:
            dialect = replace(dialect, needs_system=announced and not without_system)
            before = [probes.system("")] * dialect.needs_system
            return shown.with_word_asked_for(dialect, _prompt(template, *before))
    if not seen:
        return None
    raise TemplateError(
        f"the chat template of {template.tokenizer!r} writes a call of "
        f"{probes.NAMES[0]}({probes.ARGUMENTS[0]}) as {seen!r}, in which no kind of call that is "
        "known (a JSON object, a name and a JSON object, parameters in markup, keywords in "
        "brackets) could be found, or read back, before what ends a turn; pass a parser, "
        "Renderer(tokenizer, parser='module:function'), or another chat_template"
    )


def _dialect(writer: _Writer, one: _Marked) -> Dialect | None:
    """Compare one call, one after some text, and two; None where they do not read back."""
    after_text, two = writer.marked(1, probes.TEXT), writer.marked(2, writer.empty_content)
    compared = _compare(one, two, after_text, writer)
    dialect = replace(
        compared,
        example=_example(compared, writer),
        as_text=writer.as_text,
        announced=writer.announced,
        empty_content=writer.empty_content,
        several=two is not None,
    )
    written = _model_writes(dialect, one)
    if dialect.close.startswith(one.after.strip()):  # its last token was taken for the turn's end
        written = written[: len(written) - len(one.after)] + dialect.close
    read_back = _reads_back(dialect, written, 1) and (
        two is None or _reads_back(dialect, _model_writes(dialect, two), 2)
    )
    return dialect if read_back and not _leaves_turn(one, writer) else None


def _example(dialect: Dialect, writer: _Writer) -> str:
    """One call with one argument, to show to a model; "" where the template refuses it."""
    key, value = next(iter(probes.ARGUMENTS[0].items()))
    region = writer.write({key: value})
    return "" if region is None else shown.example(dialect, region[writer.lead(region) :])


def _model_writes(dialect: Dialect, marked: _Marked) -> str:
    return (dialect.open if dialect.prewritten else "") + marked.region[marked.lead :]


def _tells_of_tools(template: ChatTemplate, *before: Mapping[str, Any]) -> bool:
    return probes.NAMES[0] in _prompt(template, *before)


def _prompt(template: ChatTemplate, *before: Mapping[str, Any]) -> str:
    try:
        return template.render([*before, probes.user()], probes.tools(), generation_prompt=True)
    except TemplateError:
        return ""


def _has_calls(region: str, count: int) -> bool:
    """Whether every marked call is there; some templates write the first and leave the rest."""
    marked = probes.ARGUMENTS[:count]
    return all(str(value) in region for arguments in marked for value in arguments.values())


def _compare(
    one: _Marked, two: _Marked | None, after_text: _Marked | None, writer: _Writer
) -> Dialect:
    """Lay the renderings side by side: what they share is markup of a call, or of all calls."""
    assert one.found is not None
    lead_in, gap, opening = "", "", one.before
    if after_text is not None and after_text.found and probes.TEXT in after_text.before:
        lead_in, _, gap = after_text.before.rpartition(probes.TEXT)
        opening = common_end(opening, gap, writer.added)
    between, closing = _after_first(two, writer)
    if between.strip():
        cuts = _cut_several(one, opening, closing, between, writer.added)
    else:
        cuts = _Cuts(_from_last_token(opening, writer.added), one.after)
    # Markup before the calls with none after them is a thought's, not a section's.
    section_close = (closing if between.strip() else one.after).removeprefix(cuts.close)
    section_open = opening.removesuffix(cuts.open) if section_close.strip() else ""
    other = opening.removesuffix(cuts.open).removesuffix(section_open)
    gap = gap.removesuffix(cuts.open).removesuffix(section_open)
    beside = {part.strip() for part in (lead_in, cuts.joint, other, gap, one.found.header)}
    return Dialect(
        one.found.payload,
        open=markup.generalised(cuts.open.strip()),
        close=markup.generalised(cuts.close.strip()),
        between=markup.generalised(cuts.between.strip()),
        section_open=markup.generalised(section_open.strip()),
        section_close=markup.generalised(section_close.strip()),
        beside=tuple(sorted(map(markup.generalised, filter(None, beside)), key=len, reverse=True)),
        prewritten=cuts.prewritten,
    )


@dataclass(frozen=True)
class _Cuts:
    """Where the markup of one call begins and ends.

    Attributes:
        open: What comes before every call.
        close: What comes after every call.
        between: What separates calls where `open` and `close` enclose all of them.
        joint: What stands between the `close` of one call and the `open` of the next.
        prewritten: Whether the generation prompt has written the first `open`.
    """

    open: str
    close: str
    between: str = ""
    joint: str = ""
    prewritten: bool = False


def _cut_several(
    one: _Marked, opening: str, closing: str, between: str, added: Mapping[str, int]
) -> _Cuts:
    """Tell a call's markup by what stands between two calls.

    Args:
        one: A rendering of one call.
        opening: What the model writes before the first call.
        closing: What it writes after the last.
        between: What it writes between two.
        added: The tokenizer's added tokens.
    """
    close = common_start(closing, between, added)
    rest = between[len(close) :]
    if not opening.strip():  # then the generation prompt may have written it
        open_ = common_end(one.region[: one.lead], rest, added)
        if open_.strip():
            return _Cuts(open_, close, joint=rest.removesuffix(open_), prewritten=True)
    open_ = common_end(opening, rest, added)
    if not open_.strip():  # several payloads in one pair of delimiters
        return _Cuts(opening, closing, between=between)
    return _Cuts(open_, close, joint=rest.removesuffix(open_))


def _after_first(two: _Marked | None, writer: _Writer) -> tuple[str, str]:
    """What stands between two calls, and after the second, where they are two payloads."""
    if two is None or two.found is None or probes.NAMES[1] not in two.after:
        return "", ""
    after = _second_as_first(two.after)
    second = writer.recognise(after)
    return (after[: second.start], after[second.end :]) if second is not None else ("", "")


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


def _leaves_turn(one: _Marked, writer: _Writer) -> bool:
    """Whether what ends a turn comes before a call's end: then sampling would stop too soon."""
    written = writer.text.encode(one.region[one.lead :], inside=True)
    return not (writer.turns.closing | writer.turns.opening).isdisjoint(written)


def _reads_back(dialect: Dialect, written: str, count: int) -> bool:
    """Whether a rendering of the marked calls gives these calls, and no text beside them."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in probes.tools()}
    content, calls = read_calls(written, dialect, schemas)
    expected = list(zip(probes.NAMES, probes.ARGUMENTS, strict=True))[:count]
    read = [(call.name, call.arguments) for call in calls if call.error is None]
    return not content and len(calls) == count and read == expected


def _from_last_token(text: str, added: Mapping[str, int]) -> str:
    """The part that a model cannot do without: what comes before may be a thought's markup."""
    starts = [text.rfind(token) for token in added]
    return text[max([0, *starts]) :]
