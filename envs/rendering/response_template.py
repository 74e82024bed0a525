"""Reading a completion by the tokenizer's own `response_template`, with Transformers' own parser.

A response template says where the regions of a turn begin and end, and how each is read:

    Let me add.<tool_call>{"name": "add", ...}</tool_call><|im_end|>
    content    tool_calls                                 ends the content

Transformers' `parse_response` raises at the first region that cannot be read, and keeps only the
last region of a field. So the parser that it runs is run here, and its events are collected: a
broken call becomes a `ToolCall` with an `error`, and what is before and after it is read as well.

Left out: the ids that calls get (`renderer.py`), and templates that come without a response
template (`rendering/calls/dialect.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jmespath
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.content_parsers import CONTENT_PARSERS, parse_content
from transformers.utils.chat_parsing.response_templates import load_response_template

from gymnast.envs.rendering.calls.payloads import Malformed, read_arguments
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.errors import TemplateError
from gymnast.types import ToolCall

Tools = Sequence[Mapping[str, Any]] | None

_CALLS = "tool_calls"
_REASONING = frozenset({"reasoning_content", "reasoning", "thinking"})
_NAME = jmespath.compile("not_null(function.name, name, tool_name)")
_ARGUMENTS = jmespath.compile(
    "not_null(function.arguments, function.parameters, arguments, parameters)"
)
_ID = jmespath.compile("not_null(id, function.id, tool_call_id)")
_TORN = "the turn ends inside of the call"
_MAX_RULE = 160  # characters shown of what a parser says
_TAIL = 64  # tokens of the context that are decoded at first


@dataclass(frozen=True)
class Parsed:
    """What an assistant's turn says.

    Attributes:
        content: What is outside of reasoning and calls, without the stop token.
        reasoning: What the template marks as reasoning.
        calls: The calls in order. One that could not be read has an `error`. Ids are as the model
            wrote them, "" where it wrote none.
    """

    content: str
    reasoning: str
    calls: list[ToolCall]


@dataclass(frozen=True)
class _Region:
    """A stretch of the turn that belongs to one field, and what the parser made of it.

    Attributes:
        field: The field's name.
        value: What the parser read; its text where it could not.
        body: Its text.
        position: Where that begins in the turn, in characters.
        fault: The rule it breaks, or "".
    """

    field: str
    value: Any
    body: str
    position: int = 0
    fault: str = ""


@dataclass(frozen=True)
class ResponseTemplate:
    """The response template of one tokenizer.

    Attributes:
        spec: The template, as Transformers loads it.
        text: The tokenizer.
        prompt: A rendering that ends where the assistant's turn begins; stands for the context
            where none is given.
    """

    spec: Any
    text: SafeText
    prompt: str

    @classmethod
    def of(cls, tokenizer: Any, text: SafeText, prompt: str) -> "ResponseTemplate | None":
        """Take the response template from a tokenizer; None where it carries none.

        Args:
            tokenizer: A tokenizer of Transformers.
            text: Its text side.
            prompt: A conversation rendered with the generation prompt.

        Raises:
            TemplateError: If the template is not a valid one, or its start is not in the prompt.
        """
        source = getattr(tokenizer, "response_template", None)
        if source is None:
            return None
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        try:
            spec = load_response_template(source)
            for field in spec.fields.values():
                _check_content(field.name, field.content, field.content_args)
        except Exception as error:  # Whatever an ill-formed template makes the loader raise.
            raise TemplateError(
                f"the response_template of tokenizer {name!r} is not valid: {error}; mend it, or "
                "set tokenizer.response_template = None to derive the calls from the chat template"
            ) from error
        if spec.start_anchor_re.search(prompt) is None:
            raise TemplateError(
                f"the response_template of tokenizer {name!r} begins a turn at "
                f"{spec.start_anchor_re.pattern!r}, which its chat template does not write; it "
                f"writes {prompt!r}. Mend one of the two, or set tokenizer.response_template = None"
            )
        # A turn that lacks a field is the model's to write, and no reason to raise.
        fields = {key: replace(field, optional=True) for key, field in spec.fields.items()}
        return cls(replace(spec, fields=fields), text, prompt)

    @property
    def has_calls(self) -> bool:
        """Whether the template reads calls at all."""
        return _CALLS in self.spec.fields

    def read(
        self,
        completion_ids: Sequence[int],
        context_ids: Sequence[int] = (),
        tools: Tools = None,
        stop_ids: Sequence[int] = (),
    ) -> Parsed:
        """Read what the policy sampled. Nothing that it can write raises.

        Args:
            completion_ids: The sampled ids, the stop id included: many templates need it to see
                where a region ends.
            context_ids: What the policy saw. Its end may have opened a region (`<think>`).
            tools: The schemas that were offered; arguments written as text take their types.
            stop_ids: The ids that end a turn; one at the end is not content.
        """
        text = self.text.decode(completion_ids)
        ended = len(completion_ids) > 0 and completion_ids[-1] in stop_ids
        stop = self.text.decode(completion_ids[-1:]) if ended else ""
        # A turn in which the template recognises nothing is all content.
        regions = self._regions(text, self._turn_so_far(context_ids), tools) or [
            _Region("content", text, text)
        ]
        said = regions[-1].value
        if stop and isinstance(said, str) and said.endswith(stop):
            regions[-1] = replace(regions[-1], value=said.removesuffix(stop).rstrip())
        calls = [one for region in regions if region.field == _CALLS for one in _single(region)]
        return Parsed(
            content=self._said(regions, frozenset({"content"})),
            reasoning=self._said(regions, _REASONING),
            calls=[_as_call(region, number) for number, region in enumerate(calls, start=1)],
        )

    def _said(self, regions: Sequence[_Region], names: frozenset[str]) -> str:
        """The text of some fields, all their regions together."""
        parts: list[str] = []
        joint = "\n"
        for region in regions:
            if region.field in names:
                value = region.value
                parts.append(value if isinstance(value, str) else json.dumps(value))
                field = self.spec.fields.get(region.field)
                joint = joint if field is None or field.join is None else field.join
        return joint.join(part for part in parts if part)

    def _turn_so_far(self, context_ids: Sequence[int]) -> str:
        """The context's text from the last start of a turn; only that much of it is decoded."""
        size = _TAIL
        while True:
            tail = self.text.decode(context_ids[-size:]) if len(context_ids) else self.prompt
            starts = list(self.spec.start_anchor_re.finditer(tail))
            if starts:
                return tail[starts[-1].start() :]
            if size >= len(context_ids):
                return ""
            size *= 8

    def _parser(self, before: str, tools: Tools) -> Any:
        schemas = [dict(tool) for tool in tools or ()]
        try:
            return ResponseParser(self.spec, prefix=before, tools=schemas)
        except Exception:  # The context has a region in it that cannot be read.
            return ResponseParser(self.spec, prefix="", tools=schemas)

    def _regions(self, text: str, before: str, tools: Tools) -> list[_Region]:
        """The regions of a turn, in order."""
        regions: list[_Region] = []
        start = 0
        while start < len(text):
            try:
                return regions + self._up_to_end(text, start, before, tools)
            except Exception:  # Whatever the parser raises for what a model wrote.
                read, start = self._up_to_fault(text, start, before, tools)
                regions += read
                before = ""  # Behind a region the parser is where it begins without a context.
        return regions

    def _up_to_end(self, text: str, start: int, before: str, tools: Tools) -> list[_Region]:
        progress = _Progress(self._parser(before, tools), text, start)
        progress.feed(len(text))
        progress.finish()
        last = progress.regions[-1] if progress.regions else None
        if last is not None and self._is_torn(text, last.field, last.body):
            progress.regions[-1] = replace(last, fault=_TORN)
        return progress.regions

    def _up_to_fault(
        self, text: str, start: int, before: str, tools: Tools
    ) -> tuple[list[_Region], int]:
        """The regions up to one that cannot be read, that one too, and where to go on behind it.

        The parser does not say where it was when it raised. So it gets one character at a time.
        """
        progress = _Progress(self._parser(before, tools), text, start)
        try:
            for end in range(start, len(text)):
                progress.feed(end + 1)
            progress.finish()
        except Exception as error:  # As above.
            region, end = self._broken(progress, error)
            return [*progress.regions, region], max(end, start + 1)
        return progress.regions, len(text)

    def _broken(self, progress: "_Progress", error: Exception) -> tuple[_Region, int]:
        """The region that cannot be read, and where it ends."""
        text, body, name = progress.text, progress.body, progress.field
        begin = max(text.rfind(body, progress.closed, progress.fed), progress.closed)
        if not body or name in (None, self.spec.implicit):  # It was opened and read in one go,
            if name is not None and body:  # ... and what was open before it was closed.
                progress.regions.append(_Region(name, body.strip(), body, begin))
            opened = [
                (match.end(), field.name)
                for field in self.spec.fields.values()
                if field.open_re is not None
                for match in field.open_re.finditer(text, progress.closed, progress.fed)
            ]
            begin, name = max(opened, default=(progress.closed, name or "content"))
            body = ""
        close = self.spec.fields[name].close_re if name in self.spec.fields else None
        closed = close.search(text, begin + len(body)) if close is not None else None
        inside, rule = _explained(error, body)
        if closed is None and self._is_torn(text, name, body):
            rule = _TORN
        region = _Region(name, body, body, begin + inside, rule)
        return region, closed.end() if closed is not None else len(text)

    def _is_torn(self, text: str, name: str, body: str) -> bool:
        """Whether a turn ends inside of a call that its template would have closed."""
        if name != _CALLS or not text.endswith(body):
            return False
        field, begin = self.spec.fields[name], len(text) - len(body)
        if field.close_re is None or field.close_re.search(text, begin) is not None:
            return False
        # An empty body is at the end of any text.
        opened = field.open_re.finditer(text) if field.open_re is not None else ()
        return bool(body) or any(match.end() == begin for match in opened)


class _Progress:
    """A parser under way: the regions that it has closed, and the one that is open.

    Args:
        parser: A fresh parser.
        text: The whole turn.
        start: Where in it the parser begins.

    Attributes:
        regions: The regions that are closed.
        closed: Where the last of them ends in the text.
        field: The field of the open region, if one is.
        body: The text of the open region.
        fed: How far in the text the parser is.
    """

    def __init__(self, parser: Any, text: str, start: int) -> None:
        self.text = text
        self.regions: list[_Region] = []
        self.field: str | None = None
        self.body = ""
        self._parser = parser
        self.fed = self.closed = start
        self._take(parser.initial_events)
        self.regions.clear()  # What the context closed, the model did not write.
        self.closed = start

    def feed(self, end: int) -> None:
        """Give the parser the text up to `end`."""
        begin, self.fed = self.fed, end
        self._take(self._parser.feed(self.text[begin:end]))

    def finish(self) -> None:
        """Tell the parser that the turn is over."""
        self._take(self._parser.finalize()[1])

    def _take(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            if event["type"] == "region_close":
                # The parser gives no positions: its body's first place behind the last region's.
                begin = max(self.text.find(self.body, self.closed), self.closed)
                self.regions.append(_Region(event["field"], event["value"], self.body, begin))
                self.closed = begin + len(self.body)
                self.field, self.body = None, ""
            elif event["type"] == "region_open":
                self.field, self.body = event["field"], ""
            else:
                self.body += event["text"]


def _check_content(name: str, kind: str, arguments: Mapping[str, Any]) -> None:
    """Try what the loader takes on trust.

    Raises:
        ValueError: If the field's content could never be read.
    """
    if kind not in CONTENT_PARSERS:
        raise ValueError(f"field {name!r}: {kind!r} is not a content parser")
    if kind == "xml-inline":
        pattern = arguments.get("tag_pattern") or ""
        if "(?P<key>" not in pattern or "(?P<value>" not in pattern:
            raise ValueError(f"field {name!r}: tag_pattern needs the groups 'key' and 'value'")
    if kind in ("json", "xml-inline", "kv-lines"):
        parse_content("{}", kind, dict(arguments))
    if inner := arguments.get("value_parser"):
        _check_content(name, inner.get("name", "text"), inner.get("args", {}))


def _explained(error: Exception, body: str) -> tuple[int, str]:
    """Where in a region's body an error is, as far as it says, and the rule that was broken."""
    cause = error.__cause__
    if isinstance(cause, json.JSONDecodeError):
        return (cause.pos if cause.doc == body else 0), f"not JSON: {cause.msg}"
    if isinstance(error, RecursionError):
        return 0, "nested too deeply"
    lines = str(error).splitlines() or [type(error).__name__]
    return 0, lines[0][:_MAX_RULE]


def _single(region: _Region) -> list[_Region]:
    """One region a call; some templates put all calls of a turn into one."""
    if region.fault or not isinstance(region.value, list):
        return [region]
    return [replace(region, value=value) for value in region.value]


def _as_call(region: _Region, number: int) -> ToolCall:
    name, call_id = _NAME.search(region.value), _ID.search(region.value)
    name = name.strip() if isinstance(name, str) else ""
    try:
        arguments = _arguments(region, name)
    except Malformed as error:
        where = f"call {number} could not be read at character {error.position}"
        return ToolCall("", name, {}, f"{where}: {error}")
    return ToolCall(str(call_id) if isinstance(call_id, str | int) else "", name, arguments)


def _arguments(region: _Region, name: str) -> dict[str, Any]:
    """The arguments of a call that breaks no rule.

    Raises:
        Malformed: If it breaks one.
    """
    rule = region.fault
    if not rule and not isinstance(region.value, dict):
        rule = f"a call must be an object, not {type(region.value).__name__}"
    if not rule and not name:
        rule = "a call must have its tool's name, a string"
    if rule:
        raise Malformed(region.position, rule, name)
    arguments = read_arguments(_ARGUMENTS.search(region.value), region.position, name)
    try:
        json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError) as error:
        rule = "the arguments hold NaN or Infinity, or are nested too deeply"
        raise Malformed(region.position, rule, name) from error
    return arguments
