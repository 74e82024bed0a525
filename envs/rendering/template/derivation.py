r"""Find out how a chat template writes tool calls, from its own rendering of marked calls.

Nothing is assumed: no tag, no key, no model's name. The renderings of one marked call, of two, and
of one after some text are laid side by side (here for the template of a Hermes model):

    header            open         payload                               close         after_last
    <|im_start|>...\n <tool_call>\n{"name": "zqfirst", "arguments": ...}\n</tool_call> <|im_end|>\n

The result is tried at once: the rendering must parse back into the marked calls, or else the
template is refused. `rendering/calls/kinds.py` lists what can stand between the delimiters;
`rendering/dialects/dialect.py` reads completions.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gymnast.envs.rendering.calls import kinds, markup, probes
from gymnast.envs.rendering.calls.markup import common_end, common_start
from gymnast.envs.rendering.dialects.dialect import Dialect, read_calls
from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.envs.rendering.template.marked_calls import CallRenderer, MarkedTurn
from gymnast.envs.rendering.template.turns import TurnMarkup
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.errors import TemplateError


def derive_dialect(template: ChatTemplate, turns: TurnMarkup, text: SafeText) -> Dialect | None:
    """Derive a template's dialect; None where it writes no calls.

    Args:
        template: The template.
        turns: How it brackets an assistant's turn.
        text: The tokenizer: markup is never cut inside one of its added tokens.

    Raises:
        TemplateError: If the template writes calls in a way that is not understood. The message
            shows the rendering.
    """
    without_system = _announces_tools(template)
    announced = without_system or _announces_tools(template, probes.system(""))
    rendering = ""
    for as_text, content in ((False, ""), (False, None), (True, ""), (True, None)):
        if as_text and rendering and str(probes.ARGUMENTS[0]) not in rendering:
            break  # it takes an object and writes it its own way; a string would mislead us
        renderer = CallRenderer(template, turns, text, announced, as_text, content)
        one = renderer.marked(1, content)
        if one is None:
            continue
        rendering = rendering or one.text
        if one.first is None:
            continue
        dialect = _dialect(renderer, one)
        if dialect is not None:
            dialect = replace(dialect, needs_system=announced and not without_system)
            before = [probes.system("")] * dialect.needs_system
            return _with_leading_word(dialect, _prompt(template, *before))
    if not rendering:
        return None
    raise TemplateError(
        f"the chat template of {template.tokenizer!r} writes a call of "
        f"{probes.NAMES[0]}({probes.ARGUMENTS[0]}) as {rendering!r}: no known kind of call "
        f"({kinds.labels()}) can be recognised there and read back before the turn's end. Pass a "
        "parser, Renderer(tokenizer, parser='module:function'), or another chat_template"
    )


def _dialect(renderer: CallRenderer, one: MarkedTurn) -> Dialect | None:
    """Compare one call, one after text, and two; None where they do not read back."""
    after_text = renderer.marked(1, probes.TEXT)
    two = renderer.marked(2, renderer.empty_content)
    compared = _compare(one, two, after_text, renderer)
    dialect = replace(
        compared,
        example=_example(compared, renderer),
        as_text=renderer.as_text,
        announced=renderer.announced,
        empty_content=renderer.empty_content,
        several=two is not None,
    )
    written = _completion(dialect, one)
    if dialect.close.startswith(one.after.strip()):  # its last token was taken for the turn's end
        written = written[: len(written) - len(one.after)] + dialect.close
    read_back = _reads_back(dialect, written, 1) and (
        two is None or _reads_back(dialect, _completion(dialect, two), 2)
    )
    return dialect if read_back and not _leaves_turn(one, renderer) else None


def _completion(dialect: Dialect, turn: MarkedTurn) -> str:
    """A marked turn as `read_calls` gets it."""
    return (dialect.open if dialect.prewritten else "") + turn.written


def _example(dialect: Dialect, renderer: CallRenderer) -> str:
    """A call of `TOOL` with `KEY` and `VALUE`, for a model to see; "" where it is refused."""
    key, value = next(iter(probes.ARGUMENTS[0].items()))
    rendered = renderer.write({key: value})
    if rendered is None:
        return ""
    written = rendered[renderer.header_end(rendered) :]
    begin = markup.pattern(dialect.section_open or dialect.open).search(written)
    if begin and not dialect.prewritten:
        written = written[begin.start() :]
    for mark, word in ((probes.NAMES[0], "TOOL"), (key, "KEY"), (value, "VALUE")):
        written = written.replace(mark, word)
    written = written.replace(probes.IDS[0], "call00001").strip()
    last = (dialect.section_close or dialect.close).split()[-1:]
    if not last or written.endswith(last[0]):
        return written
    # Some templates forget the end of a single call.
    ends = dialect.close + dialect.section_close
    there = next(n for n in range(len(ends), -1, -1) if written.endswith(ends[:n]))
    return written + ends[there:]


def _with_leading_word(dialect: Dialect, prompt: str) -> Dialect:
    """The dialect with the word that the prompt wants before a list of calls without delimiters.

    Some templates tell the model to write `functools[{"name": ...`, and leave the word out of
    earlier turns.
    """
    if dialect.open or not dialect.announced:
        return dialect
    for word in re.finditer(r"(?<![^\s\"'`*(])(\w+)(?=\[)", prompt):
        if dialect.payload.begins(prompt, word.end()):
            example = f"{word[1]}[{dialect.example}]"
            return replace(dialect, leading_word=word[1], example=example)
    return dialect


def _announces_tools(template: ChatTemplate, *before: Mapping[str, Any]) -> bool:
    return probes.NAMES[0] in _prompt(template, *before)


def _prompt(template: ChatTemplate, *before: Mapping[str, Any]) -> str:
    try:
        return template.render([*before, probes.user()], probes.tools(), generation_prompt=True)
    except TemplateError:
        return ""


def _compare(
    one: MarkedTurn,
    two: MarkedTurn | None,
    after_text: MarkedTurn | None,
    renderer: CallRenderer,
) -> Dialect:
    """Lay the renderings side by side: what they share is the markup of each call, or of all."""
    assert one.first is not None
    added = renderer.text.added
    lead_in, gap, opening = "", "", one.before
    if after_text is not None and after_text.first and probes.TEXT in after_text.before:
        lead_in, _, gap = after_text.before.rpartition(probes.TEXT)
        opening = common_end(opening, gap, added)
    between, closing = _after_first(two, renderer)
    if between.strip():
        cuts = _cut_several(one, opening, closing, between, added)
    else:
        cuts = _Cuts(_from_last_token(opening, added), one.after)
    # Markup before the calls, with none after them, belongs to a thought and not to a section.
    section_close = (closing if between.strip() else one.after).removeprefix(cuts.close)
    section_open = opening.removesuffix(cuts.open) if section_close.strip() else ""
    other = opening.removesuffix(cuts.open).removesuffix(section_open)
    gap = gap.removesuffix(cuts.open).removesuffix(section_open)
    beside = {part.strip() for part in (lead_in, cuts.joint, other, gap, one.first.header)}
    return Dialect(
        one.first.payload,
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
    one: MarkedTurn, opening: str, closing: str, between: str, added: Mapping[str, int]
) -> _Cuts:
    """Tell the markup of a call from what stands between two calls.

    Args:
        one: A rendering of one call.
        opening: What the model writes before the first call.
        closing: What it writes after the last call.
        between: What it writes between two calls.
        added: The tokenizer's added tokens.
    """
    close = common_start(closing, between, added)
    rest = between[len(close) :]
    if not opening.strip():  # then the generation prompt may have written it
        open_ = common_end(one.text[: one.header_end], rest, added)
        if open_.strip():
            return _Cuts(open_, close, joint=rest.removesuffix(open_), prewritten=True)
    open_ = common_end(opening, rest, added)
    if not open_.strip():  # several payloads in one pair of delimiters
        return _Cuts(opening, closing, between=between)
    return _Cuts(open_, close, joint=rest.removesuffix(open_))


def _after_first(two: MarkedTurn | None, renderer: CallRenderer) -> tuple[str, str]:
    """The text between two calls and after the second; "" twice where they share a payload."""
    if two is None or two.first is None or probes.NAMES[1] not in two.after:
        return "", ""
    after = _second_as_first(two.after)
    second = renderer.recognise(after)
    return (after[: second.start], after[second.end :]) if second is not None else ("", "")


def _second_as_first(text: str) -> str:
    """The second marked call with the words of the first, so that it is recognised alike."""
    renamed = dict(
        zip(probes.NAMES[1:] + probes.IDS[1:], (probes.NAMES[0], probes.IDS[0]), strict=True)
    )
    for key, value in probes.ARGUMENTS[1].items():
        renamed[str(value)] = str(probes.ARGUMENTS[0][key])
    for second, first in renamed.items():
        text = text.replace(second, first)
    return text


def _leaves_turn(one: MarkedTurn, renderer: CallRenderer) -> bool:
    """Whether a stop token comes before a call's end: sampling would stop too soon."""
    written = renderer.text.encode(one.written, inside=True)
    return not (renderer.turns.closing | renderer.turns.opening).isdisjoint(written)


def _reads_back(dialect: Dialect, written: str, count: int) -> bool:
    """Whether the marked calls, and no text beside them, are read from their rendering."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in probes.tools()}
    content, calls = read_calls(written, dialect, schemas)
    expected = list(zip(probes.NAMES, probes.ARGUMENTS, strict=True))[:count]
    read = [(call.name, call.arguments) for call in calls if call.error is None]
    return not content and len(calls) == count and read == expected


def _from_last_token(text: str, added: Mapping[str, int]) -> str:
    """The last token and what follows it: what comes before may be the markup of a thought."""
    starts = [text.rfind(token) for token in added]
    return text[max([0, *starts]) :]
