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

from gymnast.envs.rendering.calls import markup, probes
from gymnast.envs.rendering.calls.argument_types import of_items, of_property, typed, types
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

_ATTRIBUTE = "\ue0f4"  # in `assign`: the word that says what type the value has
_KEYS = tuple(probes.ARGUMENTS[0])
# No white space can be matched in two ways: a model may write thousands of it.
_KEY_TEXT = r"\s*+([^{ends}\n]{{0,200}}?[^{ends}\s])\s*+"
_ENTITIES = {"&quot;": '"', "&apos;": "'", "&#39;": "'", "&#34;": '"', "&lt;": "<", "&gt;": ">"}
_LONGEST_NAME = 256  # of a tool; so far the end of a name is looked for, markup included


@dataclass(frozen=True)
class Parameters(Payload):
    """A tool's name, and each argument in markup.

    Attributes:
        after_name: What follows the tool's name.
        open: What comes before an argument's key.
        assign: What stands between a key and its value.
        close: What follows a value; it may hold the key.
        text_word: The attribute's word for a string, where `assign` has an attribute.
        before, after: White space that the template writes around a value, not part of it.
        enclosure: What the template puts around a text that could be taken for markup.
        item: The key under which a list's items are written; "" where lists are JSON.
        entities: Whether names and keys are written with XML's entities.
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
                    raise Malformed(opening.start(), f"the argument {key!r} is given twice")
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
        found = after.search(text, start, limit) if after else None
        name = text[start : found.start() if found else limit].strip()
        if after and found is None:
            rule = f"the tool's name must be followed by {markup.shown(self.after_name)!r}"
            raise Malformed(start, rule, name if len(name.split()) == 1 else "")
        if len(name.split()) != 1:
            raise Malformed(start, "a call must begin with the tool's name")
        return self._unescaped(name), found.end() if found else limit

    def _next_parameter(self, text: str, position: int, close: str) -> re.Match[str] | None:
        position = skip_space(text, position)
        if close and markup.pattern(close).match(text, position):
            return None
        return markup.pattern(self.open).match(text, position)

    def _read_parameter(
        self, text: str, start: int, tool: Mapping[str, Any] | None, close: str
    ) -> tuple[str, Any, int]:
        found = _key_pattern(self.assign).match(text, start)
        if found is None:
            shown = self.assign.replace(_ATTRIBUTE, self.text_word)
            raise Malformed(start, f"an argument's key must be followed by {shown!r}")
        key = self._unescaped(found[1])
        schema = of_property(tool, key)
        if self.item and self._is_nested(text, found.end()):
            value, end = self._read_nested(text, found.end(), key, schema, DEPTH)
            return key, value, end
        inside, outside = self.enclosure
        begin = found.end()
        if inside and text.startswith(inside, skip_space(text, begin)):
            begin = max(text.find(outside, begin), begin)
        end_match = self._value_end(text, begin, key, close)
        value = text[found.end() : end_match.start()]
        value = value.removeprefix(self.before).removesuffix(self.after)
        core = value.strip()
        if inside and core.startswith(inside) and core.endswith(outside):
            core = core[len(inside) : -len(outside)]
            return key, core if "string" in types(schema) else typed(core, schema), end_match.end()
        if self._holds_argument(value, text.startswith(self.before, found.end())):
            raise self._not_closed(found.end(), key)
        if self.text_word and found[2] == self.text_word:
            return key, value, end_match.end()
        return key, self._typed(value, schema), end_match.end()

    def _unescaped(self, word: str) -> str:
        if not self.entities:
            return word
        for entity, character in _ENTITIES.items():
            word = word.replace(entity, character)
        return word.replace("&amp;", "&")

    def _holds_argument(self, value: str, spaced: bool) -> bool:
        """Whether another argument begins inside of a value, whose end was then left out.

        Args:
            value: The value.
            spaced: Whether `before` stands before it: then it does before another argument's too.
        """
        before = self.before if spaced else ""
        for opening in markup.pattern(self.open).finditer(value):
            found = _key_pattern(self.assign).match(value, opening.end())
            if found is not None and value.startswith(before, found.end()):
                return True
        return False

    def _typed(self, value: str, schema: Any) -> Any:
        if self.item and not value and types(schema) in ({"array"}, {"object"}):
            return [] if types(schema) == {"array"} else {}
        return typed(value, schema)

    def _value_end(self, text: str, start: int, key: str, close: str) -> re.Match[str]:
        """Where a value ends: at the first `close` that is followed by more of the call."""
        found = _followed(self.close, key, (self.open, close)).search(text, start)
        found = found or markup.pattern(self.close, key).search(text, start)
        if found is None:
            raise self._not_closed(start, key)
        return found

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
            raise Malformed(repeated[0], f"the element {repeated[1]!r} comes twice")
        return dict(children), closing.end()

    def _read_element(self, text: str, start: int, schema: Any, depth: int) -> tuple[str, Any, int]:
        """Read one element of a list or an object: its key, its value, and where it ends."""
        opening = markup.pattern(self.open).match(text, start)
        found = opening and _key_pattern(self.assign).match(text, opening.end())
        if found is None or found[1].split() != [found[1]]:  # the next call, for one
            raise Malformed(start, "an element must begin with its key, one word")
        key, begin = found[1], found.end()
        part = of_items(schema) if key == self.item else of_property(schema, key)
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
    """What the template puts around a text with markup and lines in it."""
    text = 'Zq <b> & "q"\nZq'
    region = call.write({_KEYS[0]: text}) or ""
    found = region.find(text)
    if found < 0:
        return "", ""
    key = _key_before(region, found, payload)
    closed = markup.pattern(payload.close, _KEYS[0]).search(region, found + len(text))
    if key is None or closed is None:
        return "", ""
    before, after = region[key.end() : found], region[found + len(text) : closed.start()]
    return (before.strip(), after.strip()) if before.strip() and after.strip() else ("", "")


def _item(call: MarkedCall, payload: Parameters) -> str:
    """The key under which a list's items are written, where they have markup of their own."""
    region = call.write({_KEYS[0]: ["Zqone", "Zqtwo"]}) or ""
    found = region.find("Zqone")
    key = _key_before(region, found, payload)
    return key[1] if key is not None and key.end() == found and key[1] != _KEYS[0] else ""


def _key_before(region: str, value: int, payload: Parameters) -> re.Match[str] | None:
    """The key, with its assignment, of the argument or item whose value begins at `value`."""
    opened = [match.end() for match in markup.pattern(payload.open).finditer(region, 0, value)]
    return _key_pattern(payload.assign).match(region, opened[-1]) if opened else None


def _split(region: str) -> tuple[int, str, str, str, str, int, str] | None:
    """Cut the marked call at its name, keys and values.

    Returns:
        Where the name starts; what stands between name and key, key and text, text and next key,
        key and number; where the number ends, and what follows it. None if they do not come in this
        order.
    """
    (key, text), (next_key, number) = (
        (name, str(value)) for name, value in probes.ARGUMENTS[0].items()
    )
    first_key = region.find(key, region.find(probes.NAMES[0]))
    start = region.rfind(probes.NAMES[0], 0, max(first_key, 0))
    cuts, position = [], start + len(probes.NAMES[0])
    for word in (key, text, next_key, number):
        found = region.find(word, position)
        if start < 0 or found < 0:
            return None
        cuts.append(region[position:found])
        position = found + len(word)
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
    """Two assignments as one with a place for the word that differs; and the word for text."""
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
    # A key in quotes may hold any other character.
    ends = '"' if assign.startswith('"') else "<>"
    return re.compile(_KEY_TEXT.format(ends=ends) + pattern)


@lru_cache(maxsize=1024)
def _followed(close: str, key: str, following: tuple[str, ...]) -> re.Pattern[str]:
    """A value's `close`, where the text ends after it or one of these tags comes next."""
    tags = [markup.pattern(tag).pattern for tag in following if tag]
    return re.compile(rf"{markup.pattern(close, key).pattern}(?=\s*+(?:{'|'.join(tags)}|\Z))")
