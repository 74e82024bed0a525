r"""Calls that write every argument in markup of its own, as text.

    <function=add>\n<parameter=a>\n1\n</parameter>\n</function>
    add<arg_key>a</arg_key><arg_value>1</arg_value>
    add">  <parameter name="a" string="false">1</parameter>

One call is the tool's name, `after_name`, and for each argument `open`, its key, `assign`, its
value, `close`. A value has no quotes and no escapes: its type comes from the tool's schema, or from
an attribute where the template writes one (`string="true"`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnast.envs import markup, probes
from gymnast.envs.argument_types import typed
from gymnast.envs.payloads import Found, Malformed, Sample, Schemas
from gymnast.types import ToolCall

_ATTRIBUTE = "\ue0f4"  # in `assign`: the word that says what type the value has
_KEYS = tuple(probes.ARGUMENTS[0])
_KEY_TEXT = r"\s*([^<>\n]{1,200}?)\s*"


@dataclass(frozen=True)
class Parameters:
    """A tool's name, and each argument in markup.

    Attributes:
        after_name: What follows the tool's name.
        open: What comes before an argument's key.
        assign: What stands between a key and its value.
        close: What follows a value; it may hold the key.
        text_word: The attribute's word for a string, where `assign` has an attribute.
        before, after: White space that the template writes around a value, not part of it.
    """

    after_name: str
    open: str
    assign: str
    close: str
    text_word: str = ""
    before: str = ""
    after: str = ""

    @classmethod
    def derive(cls, sample: Sample) -> Found | None:
        """Recognise it in a rendering of the first marked call."""
        parts = _split(sample.region)
        if parts is None:
            return None
        start, header, assign, between, assign_number, last, end_text = parts
        open_ = markup.common_end(header, between, sample.added)
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
        return Found(payload, start, last + len(close.replace(markup.KEY, _KEYS[1])))

    def read(
        self, text: str, start: int, schemas: Schemas, close: str
    ) -> tuple[list[ToolCall], int]:
        """Read one call with all of its arguments."""
        name, position = self._read_name(text, start, close)
        properties: Mapping[str, Any] = (schemas.get(name) or {}).get("properties") or {}
        arguments: dict[str, Any] = {}
        try:
            while opening := self._next_parameter(text, position, close):
                key, value, position = self._read_parameter(text, opening.end(), properties, close)
                if key in arguments:
                    raise Malformed(opening.start(), f"the argument {key!r} is given twice")
                arguments[key] = value
        except Malformed as error:
            raise Malformed(error.position, str(error), name) from error
        return [ToolCall("", name, arguments)], position

    def example(self) -> str:
        """A call with placeholders."""
        before, after = self.before, self.after
        assign = self.assign.replace(_ATTRIBUTE, self.text_word)
        argument = f"{self.open}KEY{assign}{before}VALUE{after}{self.close}"
        return f"TOOL{markup.shown(self.after_name)}\n{markup.shown(argument)}"

    def begins(self, text: str, start: int) -> bool:
        """Never: a bare name is ordinary text."""
        return False

    def _read_name(self, text: str, start: int, close: str) -> tuple[str, int]:
        after, open_ = markup.pattern(self.after_name), markup.pattern(self.open)
        ends = [found for found in (open_.search(text, start), _find(close, text, start)) if found]
        limit = min((found.start() for found in ends), default=len(text))
        found = after.search(text, start, limit) if self.after_name else None
        name = text[start : found.start() if found else limit].strip()
        if self.after_name and found is None:
            rule = f"the tool's name must be followed by {markup.shown(self.after_name)!r}"
            raise Malformed(start, rule, name if len(name.split()) == 1 else "")
        if len(name.split()) != 1:
            raise Malformed(start, "a call must begin with the tool's name")
        return name, found.end() if found else limit

    def _next_parameter(self, text: str, position: int, close: str) -> re.Match[str] | None:
        position = _skip_space(text, position)
        if close and markup.pattern(close).match(text, position):
            return None
        return markup.pattern(self.open).match(text, position)

    def _read_parameter(
        self, text: str, start: int, properties: Mapping[str, Any], close: str
    ) -> tuple[str, Any, int]:
        found = _key_pattern(self.assign).match(text, start)
        if found is None:
            shown = self.assign.replace(_ATTRIBUTE, self.text_word)
            raise Malformed(start, f"an argument's key must be followed by {shown!r}")
        key, is_text = found[1], bool(self.text_word) and found[2] == self.text_word
        end = self._value_end(text, found.end(), key, close)
        value = text[found.end() : end.start()].removeprefix(self.before).removesuffix(self.after)
        return key, value if is_text else typed(value, properties.get(key)), end.end()

    def _value_end(self, text: str, start: int, key: str, close: str) -> re.Match[str]:
        """Where a value ends: at the first `close` that is followed by more of the call."""
        first = None
        for found in markup.pattern(self.close, key).finditer(text, start):
            first = first or found
            position = _skip_space(text, found.end())
            follows = markup.pattern(self.open).match(text, position) or (
                close and markup.pattern(close).match(text, position)
            )
            if follows or position == len(text):
                return found
        if first is None:
            shown = self.close.replace(markup.KEY, key)
            raise Malformed(start, f"the argument {key!r} is not closed by {shown!r}")
        return first


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


def _key_pattern(assign: str) -> re.Pattern[str]:
    pattern = markup.pattern(assign).pattern.replace(re.escape(_ATTRIBUTE), r"(\w+)")
    return re.compile(_KEY_TEXT + pattern)


def _find(tag: str, text: str, start: int) -> re.Match[str] | None:
    return markup.pattern(tag).search(text, start) if tag else None


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
