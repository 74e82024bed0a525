"""Cut a turn into the regions of a response template, however broken what the model wrote is.

Transformers' `parse_response` raises at the first region that cannot be read, and keeps only the
last region of a field. Here its parser is fed directly and its events are collected: a region that
it cannot read becomes one with a `fault`, and the regions before and after it are read as well.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from gymnast.envs.rendering.calls.payloads import Tools

CALLS = "tool_calls"
"""The field of a response template that holds calls."""

_TORN = "the turn ends inside the call"
_MAX_RULE = 160  # characters shown of what the parser says


@dataclass(frozen=True)
class Region:
    """A stretch of a turn that belongs to one field, with what the parser read in it.

    Attributes:
        field: The field's name.
        value: What the parser read; the region's text where it could not.
        body: The region's text.
        position: Where the text begins in the turn, in characters.
        fault: The rule that it breaks, or "".
    """

    field: str
    value: Any
    body: str
    position: int = 0
    fault: str = ""


@dataclass(frozen=True)
class RegionReader:
    """Reads the regions of turns.

    Attributes:
        spec: The response template, as Transformers loads it.
    """

    spec: Any

    def read(self, text: str, before: str, tools: Tools) -> list[Region]:
        """The regions of a turn, in order. Nothing that a model can write raises.

        Args:
            text: The completion.
            before: The turn so far, which the context holds.
            tools: The schemas that were offered.
        """
        regions: list[Region] = []
        start = 0
        while start < len(text):
            try:
                return regions + self._up_to_end(text, start, before, tools)
            except Exception:  # Whatever the parser raises for what a model wrote.
                more, start = self._up_to_fault(text, start, before, tools)
                regions += more
                before = ""  # After a region the parser is where it begins without a context.
        return regions

    def _parser(self, before: str, tools: Tools) -> Any:
        schemas = [dict(tool) for tool in tools or ()]
        try:
            return ResponseParser(self.spec, prefix=before, tools=schemas)
        except Exception:  # The context has a region in it that cannot be read.
            return ResponseParser(self.spec, prefix="", tools=schemas)

    def _up_to_end(self, text: str, start: int, before: str, tools: Tools) -> list[Region]:
        progress = _Progress(self._parser(before, tools), text, start)
        progress.feed(len(text))
        progress.finish()
        last = progress.regions[-1] if progress.regions else None
        if last is not None and self._is_torn(text, last.field, last.body):
            progress.regions[-1] = replace(last, fault=_TORN)
        return progress.regions

    def _up_to_fault(
        self, text: str, start: int, before: str, tools: Tools
    ) -> tuple[list[Region], int]:
        """The regions up to and including one that cannot be read, and where to go on.

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

    def _broken(self, progress: "_Progress", error: Exception) -> tuple[Region, int]:
        """The region that cannot be read, and where it ends."""
        text, body, name = progress.text, progress.body, progress.field
        begin = max(text.rfind(body, progress.closed, progress.fed), progress.closed)
        if not body or name in (None, self.spec.implicit):  # It was opened and read in one go,
            if name is not None and body:  # ... and what was open before it was closed.
                progress.regions.append(Region(name, body.strip(), body, begin))
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
        region = Region(name, body, body, begin + inside, rule)
        return region, closed.end() if closed is not None else len(text)

    def _is_torn(self, text: str, name: str, body: str) -> bool:
        """Whether a turn ends inside a call that its template would have closed."""
        if name != CALLS or not text.endswith(body):
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
        self.regions: list[Region] = []
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
                # The parser gives no positions: its body's first place after the last region's.
                begin = max(self.text.find(self.body, self.closed), self.closed)
                self.regions.append(Region(event["field"], event["value"], self.body, begin))
                self.closed = begin + len(self.body)
                self.field, self.body = None, ""
            elif event["type"] == "region_open":
                self.field, self.body = event["field"], ""
            else:
                self.body += event["text"]


def _explained(error: Exception, body: str) -> tuple[int, str]:
    """Where in a region's body an error is, as far as it says, and the rule that was broken."""
    cause = error.__cause__
    if isinstance(cause, json.JSONDecodeError):
        return (cause.pos if cause.doc == body else 0), f"not JSON: {cause.msg}"
    if isinstance(error, RecursionError):
        return 0, "nested too deeply"
    lines = str(error).splitlines() or [type(error).__name__]
    return 0, lines[0][:_MAX_RULE]
