r"""Calls that write every argument in markup of its own, as text.

    <function=add>\n<parameter=a>\n1\n</parameter>\n</function>
    add<arg_key>a</arg_key><arg_value>1</arg_value>
    add">  <parameter name="a" string="false">1</parameter>

One call is the tool's name, `after_name`, and for each argument `open`, its key, `assign`, its
value, `close`. A value has no quotes and no escapes: its type comes from the tool's schema, or from
an attribute where the template writes one (`string="true"`). Lists and objects are JSON, or markup
of the same kind again (`<a><item>1</item></a>`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from gymnast.envs.records.arguments import (
    argument_repetition,
    element_repetition,
    repeated_key,
)
from gymnast.envs.rendering.calls import markup, probes
from gymnast.envs.rendering.calls.argument_types import items_schema, property_schema, typed, types
from gymnast.envs.rendering.calls.literals import DEPTH, skip_space
from gymnast.envs.rendering.calls.payloads import (
    Malformed,
    MarkedCall,
    Payload,
    PayloadMarkup,
    PayloadMatch,
    Schemas,
)
from gymnast.types import ToolCall

_ATTRIBUTE = "\ue0f4"  # in `assign`: the word that gives the type of the value
_KEYS = tuple(probes.ARGUMENTS[0])
# No white space can match in two ways: a model may write thousands of spaces.
_KEY_TEXT = r"\s*+([^{ends}\n]{{0,200}}?[^{ends}\s])\s*+"
_ENTITIES = {"&quot;": '"', "&apos;": "'", "&#39;": "'", "&#34;": '"', "&lt;": "<", "&gt;": ">"}
_LONGEST_NAME = 256  # characters within which a tool's name, its markup included, must end


@dataclass(frozen=True)
class Parameters(Payload):
    """A tool's name, and each argument in markup of its own.

    Attributes:
        after_name: What follows the tool's name.
        open: What comes before an argument's key.
        assign: What stands between a key and its value.
        close: What follows a value; it may hold the key.
        text_word: The attribute's word for a string, where `assign` has an attribute.
        before, after: White space that the template adds around a value.
        enclosure: What the template puts around a text that looks like markup.
        item: The key of a list's items; "" where lists are JSON.
        entities: Whether names and keys are written with XML entities.
    """

    label: ClassVar[str] = "parameters in markup"

    after_name: str
    open: str
    assign: str
    close: str
    text_word: str = ""
    before: str = ""
    after: str = ""
    enclosure: tuple[str, str] = ("", "")
    item: str = ""
    entities: bool = False

    @classmethod
    def recognise(cls, call: MarkedCall) -> PayloadMatch | None:
        """Cut the marked call at its name, keys and values; what is left is markup."""
        parts = _split(call.text)
        if parts is None:
            return None
        start, header, assign, between, assign_number, last, end_text = parts
        open_ = markup.common_end(header, between, call.added)
        close = between.removesuffix(open_).rstrip()
        if not (close.strip() and open_.strip() and end_text.startswith(close)):
            return None
        text_word = ""
        if assign != assign_number:
            assign, text_word = _with_attribute(assign, assign_number)
            if not text_word:
                return None
        payload = cls(
            after_name=markup.generalised(header.removesuffix(open_).strip()),
            open=open_.strip(),
            assign=assign.strip(),
            close=close.strip(),
            text_word=text_word,
            before=assign[len(assign.rstrip()) :],
            after=close[: len(close) - len(close.lstrip())],
        )
        payload = replace(
            payload,
            enclosure=_enclosure(call, payload),
            item=_item(call, payload),
            entities="Zq&amp;one" in (call.write({"Zq&one": "Zq"}) or ""),
        )
        return PayloadMatch(payload, start, last + len(close.replace(markup.KEY, _KEYS[1])))

    def read(
        self, text: str, start: int, schemas: Schemas, close: str
    ) -> tuple[list[ToolCall], int]:
        """Read one call with all of its arguments."""
        name, position = self._read_name(text, start, close)
        arguments: dict[str, Any] = {}
        try:
            while opening := self._next_parameter(text, position, close):
                key, value, position = self._read_parameter(
                    text, opening.end(), schemas.get(name), close
                )
                if key in arguments:
                    raise Malformed(opening.start(), argument_repetition(key))
                if (element := repeated_key(value)) is not None:  # in a value that is JSON
                    raise Malformed(opening.start(), element_repetition(element))
                arguments[key] = value
        except Malformed as error:
            raise Malformed(error.position, str(error), name) from error
        return [ToolCall("", name, arguments)], position

    @property
    def markup(self) -> PayloadMarkup:
        """What stands around names, keys and values."""
        return PayloadMarkup(self.after_name, self.open, self.assign, self.close)

    def _read_name(self, text: str, start: int, close: str) -> tuple[str, int]:
        limit = min(start + _LONGEST_NAME, len(text))
        for tag in (self.open, close):
            end = markup.pattern(tag).search(text, start, limit) if tag else None
            limit = end.start() if end else limit
        after = markup.pattern(self.after_name) if self.after_name else None
        header = after.search(text, start, limit) if after else None
        name = text[start : header.start() if header else limit].strip()
        if after and header is None:
            rule = f"the tool's name must be followed by {markup.shown(self.after_name)!r}"
            raise Malformed(start, rule, name if len(name.split()) == 1 else "")
        if len(name.split()) != 1:
            raise Malformed(start, "a call must begin with the tool's name")
        return self._unescaped(name), header.end() if header else limit

    def _next_parameter(self, text: str, position: int, close: str) -> re.Match[str] | None:
        position = skip_space(text, position)
        if close and markup.pattern(close).match(text, position):
            return None
        return markup.pattern(self.open).match(text, position)

    def _read_parameter(
        self, text: str, start: int, tool: Mapping[str, Any] | None, close: str
    ) -> tuple[str, Any, int]:
        assignment = _key_pattern(self.assign).match(text, start)
        if assignment is None:
            shown = self.assign.replace(_ATTRIBUTE, self.text_word)
            raise Malformed(start, f"an argument's key must be followed by {shown!r}")
        key = self._unescaped(assignment[1])
        schema = property_schema(tool, key)
        if self.item and self._is_nested(text, assignment.end()):
            value, end = self._read_nested(text, assignment.end(), key, schema, DEPTH)
            return key, value, end
        inside, outside = self.enclosure
        begin = assignment.end()
        if inside and text.startswith(inside, skip_space(text, begin)):
            begin = max(text.find(outside, begin), begin)
        end_match = self._value_end(text, begin, key, close)
        value = text[assignment.end() : end_match.start()]
        value = value.removeprefix(self.before).removesuffix(self.after)
        core = value.strip()
        if inside and core.startswith(inside) and core.endswith(outside):
            core = core[len(inside) : -len(outside)]
            return key, core if "string" in types(schema) else typed(core, schema), end_match.end()
        if self._holds_argument(value, text.startswith(self.before, assignment.end())):
            raise self._not_closed(assignment.end(), key)
        if self.text_word and assignment[2] == self.text_word:
            return key, value, end_match.end()
        return key, self._typed(value, schema), end_match.end()

    def _unescaped(self, word: str) -> str:
        if not self.entities:
            return word
        for entity, character in _ENTITIES.items():
            word = word.replace(entity, character)
        return word.replace("&amp;", "&")

    def _holds_argument(self, value: str, spaced: bool) -> bool:
        """Whether another argument begins inside a value, because the value's end is missing.

        Args:
            value: The value.
            spaced: Whether `before` stands before it; then it stands before the other's as well.
        """
        before = self.before if spaced else ""
        for opening in markup.pattern(self.open).finditer(value):
            assignment = _key_pattern(self.assign).match(value, opening.end())
            if assignment is not None and value.startswith(before, assignment.end()):
                return True
        return False

    def _typed(self, value: str, schema: Any) -> Any:
        if self.item and not value and types(schema) in ({"array"}, {"object"}):
            return [] if types(schema) == {"array"} else {}
        return typed(value, schema)

    def _value_end(self, text: str, start: int, key: str, close: str) -> re.Match[str]:
        """Where a value ends: at the first `close` that more of the call follows."""
        end = _followed(self.close, key, (self.open, close)).search(text, start)
        end = end or markup.pattern(self.close, key).search(text, start)
        if end is None:
            raise self._not_closed(start, key)
        return end

    def _is_nested(self, text: str, start: int) -> bool:
        start = skip_space(text, start)
        opened = markup.pattern(self.open).match(text, start)
        closed = markup.pattern(self.close).match(text, start)
        return opened is not None and closed is None

    def _read_nested(
        self, text: str, start: int, key: str, schema: Any, depth: int
    ) -> tuple[Any, int]:
        """Read the elements of a list or an object, up to the `close` of its key."""
        if depth == 0:
            raise Malformed(start, "the argument is nested too deeply")
        names: set[str] = set()
        children: list[tuple[str, Any]] = []
        repeated: tuple[int, str] | None = None
        position = skip_space(text, start)
        while self._is_nested(text, position):
            name, value, end = self._read_element(text, position, schema, depth)
            if name in names and name != self.item:
                repeated = repeated or (position, name)
            names.add(name)
            children.append((name, value))
            position = skip_space(text, end)
        closing = markup.pattern(self.close, key).match(text, position)
        if closing is None:
            raise self._not_closed(position, key)
        is_list = types(schema) == {"array"} or (
            types(schema) != {"object"} and names == {self.item}
        )
        if is_list:
            return [value for _, value in children], closing.end()
        if repeated is not None:
            raise Malformed(repeated[0], element_repetition(repeated[1]))
        return dict(children), closing.end()

    def _read_element(self, text: str, start: int, schema: Any, depth: int) -> tuple[str, Any, int]:
        """Read one element of a list or an object; return its key, its value, and its end."""
        opening = markup.pattern(self.open).match(text, start)
        assignment = opening and _key_pattern(self.assign).match(text, opening.end())
        if assignment is None or assignment[1].split() != [
            assignment[1]
        ]:  # but, say, the next call
            raise Malformed(start, "an element must begin with its key, one word")
        key, begin = assignment[1], assignment.end()
        part = items_schema(schema) if key == self.item else property_schema(schema, key)
        if self._is_nested(text, begin):
            return key, *self._read_nested(text, begin, key, part, depth - 1)
        end = markup.pattern(self.close, key).search(text, begin)
        if end is None:
            raise self._not_closed(start, key)
        return key, self._typed(text[begin : end.start()], part), end.end()

    def _not_closed(self, position: int, key: str) -> Malformed:
        shown = self.close.replace(markup.KEY, key)
        return Malformed(position, f"the argument {key!r} is not closed by {shown!r}")


def _enclosure(call: MarkedCall, payload: Parameters) -> tuple[str, str]:
    """What the template puts around a text with markup and line breaks in it."""
    text = 'Zq <b> & "q"\nZq'
    region = call.write({_KEYS[0]: text}) or ""
    begin = region.find(text)
    if begin < 0:
        return "", ""
    key = _key_before(region, begin, payload)
    closed = markup.pattern(payload.close, _KEYS[0]).search(region, begin + len(text))
    if key is None or closed is None:
        return "", ""
    before, after = region[key.end() : begin], region[begin + len(text) : closed.start()]
    return (before.strip(), after.strip()) if before.strip() and after.strip() else ("", "")


def _item(call: MarkedCall, payload: Parameters) -> str:
    """The key of a list's items, where they have markup of their own; else ""."""
    region = call.write({_KEYS[0]: ["Zqone", "Zqtwo"]}) or ""
    begin = region.find("Zqone")
    key = _key_before(region, begin, payload)
    return key[1] if key is not None and key.end() == begin and key[1] != _KEYS[0] else ""


def _key_before(region: str, value: int, payload: Parameters) -> re.Match[str] | None:
    """The key and assignment of the argument or item whose value begins at `value`."""
    opened = [match.end() for match in markup.pattern(payload.open).finditer(region, 0, value)]
    return _key_pattern(payload.assign).match(region, opened[-1]) if opened else None


def _split(region: str) -> tuple[int, str, str, str, str, int, str] | None:
    """Cut the marked call at its name, keys and values.

    Returns:
        Where the name starts; the text between name and key, key and text, text and next key, key
        and number; where the number ends, and the text after it. None if they come in another
        order.
    """
    (key, text), (next_key, number) = (
        (name, str(value)) for name, value in probes.ARGUMENTS[0].items()
    )
    first_key = region.find(key, region.find(probes.NAMES[0]))
    start = region.rfind(probes.NAMES[0], 0, max(first_key, 0))
    cuts, position = [], start + len(probes.NAMES[0])
    for word in (key, text, next_key, number):
        at = region.find(word, position)
        if start < 0 or at < 0:
            return None
        cuts.append(region[position:at])
        position = at + len(word)
    header, assign, between, assign_number = cuts
    return (
        start,
        header,
        assign,
        between.replace(key, markup.KEY),
        assign_number,
        position,
        region[position:].replace(next_key, markup.KEY),
    )


def _with_attribute(text: str, other: str) -> tuple[str, str]:
    """Two assignments as one, `_ATTRIBUTE` for the word that differs; and the word for text."""
    start = re.sub(r"\w+\Z", "", text[: markup.shared_length(text, other)])
    shared = markup.shared_length(text[::-1], other[::-1])
    end = re.sub(r"\A\w+", "", text[len(text) - shared :])
    word, other_word = (part[len(start) : len(part) - len(end)] for part in (text, other))
    if not (word.isalnum() and other_word.isalnum()):
        return text, ""
    return start + _ATTRIBUTE + end, word


@lru_cache(maxsize=1024)
def _key_pattern(assign: str) -> re.Pattern[str]:
    pattern = markup.pattern(assign).pattern.replace(re.escape(_ATTRIBUTE), r"(\w+)")
    # A key in quotes may hold any character but a quote.
    ends = '"' if assign.startswith('"') else "<>"
    return re.compile(_KEY_TEXT.format(ends=ends) + pattern)


@lru_cache(maxsize=1024)
def _followed(close: str, key: str, following: tuple[str, ...]) -> re.Pattern[str]:
    """A value's `close` that the end of the text or one of these tags follows."""
    tags = [markup.pattern(tag).pattern for tag in following if tag]
    return re.compile(rf"{markup.pattern(close, key).pattern}(?=\s*+(?:{'|'.join(tags)}|\Z))")
