r"""Calls in text without any markup: an offered tool with its parameters, or a JSON object.

    add(a=1, b=2)      Action: add {"a": 1}      <function name="add"><a>1</a>
    {"tool": "add", "args": {"a": 1,}}           {'function': {'name': 'add', ...

Both must begin a line or follow a tag; an object may also end the text. A tool's name counts only
if nothing but brackets and the words of calls stand between it and one of its parameters; an object
counts only if its keys are those of a call. What a dialect's own markup betrays is in
`near_misses.py`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from gymnast.envs.rendering.calls.literals import Notation, plain
from gymnast.envs.rendering.calls.payloads import Malformed, Schemas, read_json

_MOST_NAMES, _MOST_OBJECTS = 200, 30  # that are checked in one text
_REACH = 200  # characters between a line's start, a name and a parameter
_NAME_KEYS = ("name", "tool", "tool_name", "function", "function_name", "action")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "params", "input", "action_input", "kwargs")
_OTHER_KEYS = {"id", "type", "index", "tool_call_id"}
_AROUND = ("function", "function_call", "tool_call", "tool_calls")
_WORDS = frozenset(
    {
        *("action", "arg", "args", "argument", "arguments", "call", "calls", "function"),
        *("functions", "id", "input", "invoke", "json", "key", "kwargs", "name", "param"),
        *("parameter", "parameters", "params", "string", "tool", "tools", "type", "value"),
    }
)
_LETTERS = re.compile(r"[^\W\d_]+")
_QUOTE = r"\\?[\"'“”`]?"
_LABEL = re.compile(r"\s*+(?:\w{1,24}\s*+[:\[])?[^\w\n]*+")
_REST = re.compile(r"[^\w]*+\Z")
_DEPTH = 4  # objects around a call
_SHOWN = 60  # characters of a near miss that its rule quotes


@dataclass(frozen=True)
class NearMiss:
    """Something that begins like a call.

    Attributes:
        start: Where it begins, in characters.
        rule: What stands there, and which rule it breaks.
        name: The tool that it names; "" where that is unknown.
    """

    start: int
    rule: str
    name: str = ""


def call_words(markup: str) -> frozenset[str]:
    """The words in a dialect's markup, and those that any call may contain."""
    return _WORDS | {word.casefold() for word in _LETTERS.findall(markup)}


@dataclass(frozen=True)
class LooseCalls:
    """Finds calls without markup.

    Attributes:
        words: The words that may stand beside the names of a tool and its parameters.
        name_key: The dialect's own key of a tool's name; "" where it has none.
        arguments_key: Its own key of the arguments; "" where it has none.
    """

    words: frozenset[str]
    name_key: str = ""
    arguments_key: str = ""

    def find(self, text: str, schemas: Schemas) -> Iterator[NearMiss]:
        """The first named tool, and the first object, that mean a call."""
        for miss in (self._offer(text, schemas), self._object(text, schemas)):
            if miss is not None:
                yield miss

    def is_data(self, text: str, start: int, schemas: Schemas) -> bool:
        """Whether the object, or the list of them, that begins at `start` means no call."""
        value, _ = _read(text, start)
        items = value if isinstance(value, list) else [value]
        return bool(items) and all(self._is_data(item, schemas) for item in items)

    def _is_data(self, item: Any, schemas: Schemas) -> bool:
        if not isinstance(item, dict) or not item.keys().isdisjoint(_AROUND):
            return False
        arguments = [item[key] for key in self._argument_keys if key in item]
        return self._name(item, schemas) is None and not any(map(_are_arguments, arguments))

    def _offer(self, text: str, schemas: Schemas) -> NearMiss | None:
        names = _named(tuple(schemas)).finditer(text) if schemas else iter(())
        for match in islice(names, _MOST_NAMES):
            name = match[0]
            rest_of_call = _argument(self.words, tuple(_properties(schemas[name])))
            argument = rest_of_call.match(text, match.end())
            start = _beginning(text, match.start())
            if argument and _beside(self.words).fullmatch(text, start, match.start()):
                shown = text[start : argument.end()].strip()[-_SHOWN:]
                rule = f"{shown!r} looks like a call, but is not written as one"
                return NearMiss(start, rule, name)
        return None

    def _object(self, text: str, schemas: Schemas) -> NearMiss | None:
        keys = (*self._name_keys, *self._argument_keys, *_OTHER_KEYS, *_AROUND, *schemas)
        position = 0
        for _ in range(_MOST_OBJECTS):
            opening = _opened(keys).search(text, position)
            if opening is None:
                break
            start = opening.start()
            value, position = _read(text, start)
            if value is None:
                name = self._torn(text[start : start + 2 * _REACH], schemas)
            else:
                name = self._name(value, schemas)
            if name is not None and self._stands_alone(text, start, position, value):
                rule = "an object with a tool's name and arguments is not written as a call"
                return NearMiss(start, rule, name)
        return None

    @property
    def _name_keys(self) -> tuple[str, ...]:
        return (self.name_key, *_NAME_KEYS) if self.name_key else _NAME_KEYS

    @property
    def _argument_keys(self) -> tuple[str, ...]:
        return (self.arguments_key, *_ARGUMENT_KEYS) if self.arguments_key else _ARGUMENT_KEYS

    def _stands_alone(self, text: str, start: int, end: int, value: Any) -> bool:
        line = _beginning(text, start)
        if _beside(self.words).fullmatch(text, line, start) or _LABEL.fullmatch(text, line, start):
            return True
        return value is not None and _REST.match(text, end) is not None

    def _name(self, value: Any, schemas: Schemas, depth: int = _DEPTH) -> str | None:
        """The tool that an object means to call; None where it means no call."""
        if isinstance(value, list):
            names = (self._name(item, schemas, depth) for item in value[:8])
            return next((name for name in names if name is not None), None)
        if not isinstance(value, dict) or not depth:
            return None
        for key in _AROUND:
            if isinstance(value.get(key), dict | list):
                return self._name(value[key], schemas, depth - 1)
        if len(value) == 1 and (key := next(iter(value))) in schemas:
            return key if isinstance(value[key], dict) else None
        key = next((key for key in self._name_keys if isinstance(value.get(key), str)), "")
        return self._tool_called(value, key, schemas) if key else None

    def _tool_called(self, item: Mapping[str, Any], key: str, schemas: Schemas) -> str | None:
        name = item[key]
        arguments = [item[other] for other in self._argument_keys if other in item]
        others = item.keys() - {key, *self._argument_keys, *_OTHER_KEYS}
        if name in schemas:
            known = others & _properties(schemas[name]).keys()
            return name if arguments or known or not others else None
        right = any(map(_are_arguments, arguments)) and not others
        return name if right and re.fullmatch(r"[\w.\-]+", name) else None

    def _torn(self, part: str, schemas: Schemas) -> str | None:
        """The tool named in an object that cannot be read, if it has the keys of a call."""
        named = _key(self._name_keys, rf"{_QUOTE}([\w.\-]++)").search(part)
        if named is None:
            return None
        has_arguments = _key(self._argument_keys, rf"{_QUOTE}{{").search(part)
        return named[1] if has_arguments or named[1] in schemas else None


def _read(text: str, start: int) -> tuple[Any, int]:
    """The object or list at `start`, and where it ends; None where it cannot be read."""
    try:
        return read_json(text, start)
    except Malformed:
        pass
    try:  # as programming languages write it: other quotes, a trailing comma
        value, end = Notation().read(text, start)
        return plain(value), end
    except Malformed:
        return None, start + 1


def _are_arguments(value: Any) -> bool:
    in_string = isinstance(value, str) and value.lstrip().startswith("{")
    return value is None or isinstance(value, dict) or in_string


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _beginning(text: str, position: int) -> int:
    """Where the line of a position begins, or the part of it after a tag or a call."""
    limit = max(0, position - _REACH)
    cuts = [text.rfind(end, limit, position) + len(end) for end in ("\n", ">", "]", "; ")]
    return max([limit, *(cut for cut in cuts if cut > 1)])


@lru_cache(maxsize=256)
def _named(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{_any(names)})(?!\w)")


@lru_cache(maxsize=256)
def _beside(words: frozenset[str]) -> re.Pattern[str]:
    """What may stand before a tool's name or an object: anything but other words."""
    return re.compile(rf"(?:[\W\d_]++|(?:{_any(words)})(?![^\W\d_]))*", re.IGNORECASE)


@lru_cache(maxsize=256)
def _argument(words: frozenset[str], keys: tuple[str, ...]) -> re.Pattern[str]:
    """What follows a tool's name in a call, up to one of its parameters."""
    word, key = rf"(?i:{_any(words)})(?![^\W\d_])", rf"(?:{_any(keys)})(?!\w)"
    forms = (
        rf"\(\s*+{key}\s*+=(?!=)",  # (a=1
        rf"{{\s*+(?:{_QUOTE}{key}{_QUOTE}\s*+[:=]|}})",  # {"a": 1  or  {}
        rf"<(?:[^\w<>\n]|{word}){{0,12}}?{key}[^<>\n]{{0,40}}+>",  # <parameter=a>
        rf">\s*+{key}\s*+</",  # <arg_key>a</arg_key>
    )
    between = rf"(?!\s*+=\s)(?:[\W\d_]|{word}){{0,{_REACH}}}?"  # an assignment is no call
    return re.compile(rf"{between}(?:{'|'.join(forms)})")


@lru_cache(maxsize=256)
def _key(keys: tuple[str, ...], value: str) -> re.Pattern[str]:
    """One of these keys, and the start of its value."""
    return re.compile(rf"{_QUOTE}(?:{_any(keys)}){_QUOTE}\s*+[:=]\s*+{value}")


def _any(words: Any) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "(?!)"


@lru_cache(maxsize=256)
def _opened(keys: tuple[str, ...]) -> re.Pattern[str]:
    """The start of an object, or of a list of them, up to its first key."""
    return re.compile(rf"(?:\[\s*+)?{{\s*+{_QUOTE}(?:{_any(keys)}){_QUOTE}\s*+[:=]")
