r"""Calls with keywords in one pair of brackets: as Python writes them, or in braces.

    [f(x='text', y=22), g()]        a list of Python calls; or one call without the list
    f{x:<|"|>text<|"|>,y:22}        braces, and strings in markup of the template's own
    f{x:<escape>22<escape>}         every value in quotes: its type is the schema's

Some templates write calls that are ambiguous: strings without quotes, unescaped quotes inside
strings, no comma between arguments. There, what a model would rightly write is read, and what the
template writes where it can be read in one way only. Markup around the payload, such as `call:`
before a name, belongs to the dialect; `literals.py` reads the values.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gymnast.envs.records.arguments import (
    argument_repetition,
    element_repetition,
    repeated_key,
)
from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.calls.argument_types import items_schema, property_schema, typed, types
from gymnast.envs.rendering.calls.literals import (
    CONSTANT,
    Notation,
    Word,
    constant,
    next_item,
    skip_space,
)
from gymnast.envs.rendering.calls.payloads import (
    Malformed,
    MarkedCall,
    Payload,
    PayloadMatch,
    Schemas,
)
from gymnast.types import ToolCall

_QUOTES = ("'", '"')
_NAME = re.compile(r"[^\s()\[\]{}'\",:=<>]++")
_KEYWORD = re.compile(r"([^\s,:=()\[\]{}'\"](?:[^,:=()\[\]{}'\"]*+))(:|=(?!=))")
_WITHOUT_COMMA = re.compile(rf"({CONSTANT.pattern})(?=\s*[^\W\d]\w*+\s*=(?!=))")
_CLOSING = {"(": ")", "{": "}"}
_LIST = {
    bracket: re.compile(rf"\s*+\[\s*+[^\W\d][\w.\-]*+{re.escape(bracket)}") for bracket in _CLOSING
}
_ONE_CALL = {
    bracket: re.compile(rf"\[?\s*+[^\W\d][\w.\-]*+{re.escape(bracket)}") for bracket in _CLOSING
}


def _marked_call() -> re.Pattern[str]:
    """The marked call in a rendering: its brackets, its sign, its quotes and its comma."""
    (key, text), (other, number) = probes.ARGUMENTS[0].items()
    return re.compile(
        rf"{probes.NAMES[0]}\s*(?P<opening>[({{])\s*{key}\s*(?P<assign>[=:])\s*"
        rf"(?P<quote>[^\w\s]\S*?|){text}(?P=quote)(?P<comma>\s*,|)\s*"
        rf"{other}\s*(?P=assign)\s*(?P<of_number>(?P=quote)|){number}(?P=of_number)\s*[)}}]"
    )


def _escapes(call: MarkedCall, quote: str) -> bool:
    text = f"Zq{quote}one"
    rendered = call.write({next(iter(probes.ARGUMENTS[0])): text})
    return rendered is None or f"{quote}{text}{quote}" not in rendered


@dataclass(frozen=True)
class KeywordCalls(Payload):
    """Calls of the form name, bracket, keywords with values, bracket.

    Attributes:
        opening: The bracket after a name, "(" or "{".
        assign: The sign between a keyword and its value, "=" or ":".
        notation: How strings are written.
        escaped: Whether the template escapes a quote in a string.
        quoted: Whether every value is in quotes, a number too.
        comma: Whether the template writes commas between arguments.
        listed: Whether the template writes a list.
    """

    label: ClassVar[str] = "keywords in brackets"

    opening: str
    assign: str
    notation: Notation
    escaped: bool = True
    quoted: bool = False
    comma: bool = True
    listed: bool = False

    @classmethod
    def recognise(cls, call: MarkedCall) -> PayloadMatch | None:
        """Find the marked name, and the marked arguments in brackets after it."""
        match = _marked_call().search(call.text)
        if match is None:
            return None
        quote = match["quote"]
        payload = cls(
            opening=match["opening"],
            assign=match["assign"],
            notation=Notation("" if quote in _QUOTES else quote, bare=not quote),
            escaped=quote not in _QUOTES or _escapes(call, quote),
            quoted=bool(quote and match["of_number"]),
            comma=bool(match["comma"]),
        )
        before = call.text[: match.start()].rstrip()
        if before.endswith("["):
            listed, start = replace(payload, listed=True), len(before) - 1
            try:
                return PayloadMatch(listed, start, listed.read(call.text, start, {}, "")[1])
            except Malformed:  # a bracket of the template's markup
                pass
        return PayloadMatch(payload, match.start(), match.end())

    def read(
        self, text: str, start: int, schemas: Schemas, close: str
    ) -> tuple[list[ToolCall], int]:
        """Read one call, or a list of them."""
        position = skip_space(text, start)
        if not text.startswith("[", position):
            call, end = self._read_call(text, position, schemas)
            return [call], end
        calls: list[ToolCall] = []
        position = skip_space(text, position + 1)
        while not text.startswith("]", position):
            call, position = self._read_call(text, position, schemas)
            calls.append(call)
            position = next_item(text, position, "]")
        if not calls:
            raise Malformed(position, "the list has no call in it")
        return calls, position + 1

    def begins(self, text: str, start: int) -> bool:
        """Whether a list with a name and its bracket begins here; a bare name is ordinary text."""
        return self.listed and _LIST[self.opening].match(text, start) is not None

    def continues(self, text: str, start: int) -> bool:
        """Whether a list, or a name and its bracket, begins here."""
        return _ONE_CALL[self.opening].match(text, start) is not None

    def _read_call(self, text: str, start: int, schemas: Schemas) -> tuple[ToolCall, int]:
        match = _NAME.match(text, start)
        name = match[0] if match else ""
        position = skip_space(text, start + len(name))
        if not name:
            raise Malformed(start, f"expected the tool's name and {self.opening!r}")
        if not text.startswith(self.opening, position):
            rule = f"expected {self.opening!r} after the tool's name {name[:40]!r}"
            raise Malformed(position, rule, name)
        arguments = _Arguments(self, schemas.get(name))
        try:
            end = arguments.read(text, position + 1)
        except Malformed as error:
            raise Malformed(error.position, str(error), name) from error
        return ToolCall("", name, arguments.values, arguments.error), end


class _Arguments:
    """The arguments of one call, while they are read.

    Attributes:
        values: The values by name.
        error: The first fault after which the rest can still be read, or None.
    """

    def __init__(self, syntax: KeywordCalls, schema: Mapping[str, Any] | None) -> None:
        self.values: dict[str, Any] = {}
        self.error: str | None = None
        self._syntax = syntax
        self._schema = schema
        self._named = False

    def read(self, text: str, position: int) -> int:
        """Read up to the closing bracket; return where it ends."""
        close = _CLOSING[self._syntax.opening]
        position = skip_space(text, position)
        while not text.startswith(close, position):
            begin = position
            key, position = self._read_key(text, begin)
            value, position, comma = self._read_value(text, position)
            self._add(key, value, begin)
            position = self._next(text, position, close, comma=comma)
        if self.error:
            self.values = {}
        return position + 1

    def _read_key(self, text: str, start: int) -> tuple[str | None, int]:
        """The keyword that begins here, or None, and where the value begins."""
        assign = self._syntax.assign
        string = self._syntax.notation.read_string(text, start)
        if string is not None:
            sign = skip_space(text, string[1])
            if not text.startswith(assign, sign):
                return None, start
            return string[0], skip_space(text, sign + 1)
        match = _KEYWORD.match(text, start)
        if match is None or match[2] != assign:
            if assign == ":":
                raise Malformed(start, "expected an argument, KEY:VALUE")
            return None, start
        return match[1].rstrip(), skip_space(text, match.end())

    def _read_value(self, text: str, start: int) -> tuple[Any, int, bool]:
        """A value, where it ends, and whether the next keyword needs a comma before it."""
        joined = None if self._syntax.comma else _WITHOUT_COMMA.match(text, start)
        if joined:
            return Word(joined[1]), joined.end(), False
        value, end = self._syntax.notation.read(text, start)
        if isinstance(value, str) and not self._syntax.escaped:
            value, end = self._beyond_quotes(text, start, value, end)
        return value, end, self._syntax.comma or isinstance(value, Word)

    def _beyond_quotes(self, text: str, start: int, value: str, end: int) -> tuple[str, int]:
        """A string with unescaped quotes in it: it ends where something can follow it."""
        close, quote = _CLOSING[self._syntax.opening], text[start]
        following = skip_space(text, end)
        if following == len(text) or text[following] in ",)]}":
            return value, end
        closing = re.compile(rf"{quote}(?=\s*+(?:{re.escape(close)}|,\s*+{_KEYWORD.pattern}))")
        match = closing.search(text, end)
        return (text[start + 1 : match.start()], match.end()) if match else (value, end)

    def _next(self, text: str, position: int, close: str, *, comma: bool) -> int:
        following = skip_space(text, position)
        if not comma and _KEYWORD.match(text, following):
            return following
        return next_item(text, position, close)

    def _add(self, key: str | None, value: Any, position: int) -> None:
        rule = ""
        if key is None and self._named:
            rule = "an argument without a name comes after one with a name"
            if self._syntax.notation.bare:
                rule += "; put a string with a comma in it in quotes"
        elif key is None:
            key = self._name_by_position()
        else:
            self._named = True
        if key is None:
            rule = rule or "an argument has no name; write KEY=VALUE"
        elif key in self.values:
            rule = argument_repetition(key)
        else:
            self.values[key] = self._fit(value, property_schema(self._schema, key))
            if (element := repeated_key([value, self.values[key]])) is not None:
                rule = element_repetition(element)
        if rule and self.error is None:
            self.error = f"at character {position}: {rule}"

    def _name_by_position(self) -> str | None:
        """The name of the next argument in the schema's order, as in Python."""
        properties = (self._schema or {}).get("properties")
        if not isinstance(properties, Mapping):
            return None
        return next((name for name in properties if name not in self.values), None)

    def _fit(self, value: Any, schema: Mapping[str, Any] | None, inside: bool = False) -> Any:
        """A value in the type that its schema gives."""
        if isinstance(value, Word):
            if self._syntax.notation.bare:
                return typed(value.text, schema)
            return None if constant(value.text) is None else typed(value.text, schema)
        if isinstance(value, str):
            # Where numbers are quoted as well, only the schema tells them from text.
            known = schema is not None or not inside
            is_text = schema is not None and "string" in types(schema)
            return typed(value, schema) if self._syntax.quoted and known and not is_text else value
        if isinstance(value, list):
            return [self._fit(item, items_schema(schema), True) for item in value]
        return {
            key: self._fit(item, property_schema(schema, key), True) for key, item in value.items()
        }
