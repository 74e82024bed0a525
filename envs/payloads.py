r"""The kinds of payload a call can have, and how each is read.

A payload is what stands between a dialect's delimiters. A kind is a small class with three
methods: `derive` recognises it in a template's rendering of marked calls, `read` reads what a model
wrote, `example` shows it in error messages. A new kind is added to `KINDS`.

    JsonCalls      {"name": "f", "arguments": {"x": 1}}      any keys, nested or in a list
    NameThenJson   f<sep>{"x": 1}                            one constant separator
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jmespath

from gymnast.envs import probes
from gymnast.types import ToolCall


class Malformed(ValueError):
    """What a model wrote breaks a rule.

    Attributes:
        position: Where in the text, in characters.
        name: The tool's name, as far as it could be read.
    """

    def __init__(self, position: int, rule: str, name: str = "") -> None:
        super().__init__(rule)
        self.position = position
        self.name = name


class Payload(Protocol):
    """One kind of payload."""

    def read(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        """Read the payload that begins at `start`; give its calls and where it ends.

        Raises:
            Malformed: If it breaks a rule. A call in it that can be told from the others carries
                its own error instead.
        """

    def example(self) -> str:
        """What a right payload looks like."""

    def begins(self, text: str, start: int) -> bool:
        """Whether what begins at `start` means to be such a payload, without any delimiter."""


@dataclass(frozen=True)
class Found:
    """A payload that was recognised in a rendering: its kind, and where it lies."""

    payload: Payload
    start: int
    end: int


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_reject_constant)


def read_json(text: str, start: int) -> tuple[Any, int]:
    """Read the JSON value at `start`; give it and where it ends.

    Raises:
        Malformed: If there is none.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        rule = "the text ends inside the JSON" if at_end else f"not JSON: {error.msg}"
        raise Malformed(error.pos, rule) from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Malformed(start, f"not JSON: {reason}") from error


def read_arguments(value: Any, position: int, name: str) -> dict[str, Any]:
    """The arguments as a dict; a string of JSON is decoded, null means none.

    Raises:
        Malformed: If they are not an object.
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            value, end = read_json(text, 0)
        except Malformed as error:
            raise Malformed(position, f"the arguments are a string; {error}", name) from error
        if end != len(text):
            raise Malformed(position, "the arguments have text after their JSON", name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise Malformed(position, f"the arguments must be a JSON object, not {kind}", name)
    return value


def find_path(value: Any, wanted: Any) -> tuple[str, ...] | None:
    """The keys that lead from a JSON object to a value in it, or None."""
    if not isinstance(value, dict):
        return None
    for key, item in value.items():
        if item == wanted or _is_text_of(item, wanted):
            return (key,)
        below = find_path(item, wanted)
        if below is not None:
            return (key, *below)
    return None


def _is_text_of(item: Any, wanted: Any) -> bool:
    if not isinstance(item, str) or isinstance(wanted, str):
        return False
    try:
        return bool(json.loads(item) == wanted)
    except ValueError:
        return False


def find_json(region: str, inside: str) -> tuple[Any, int, int] | None:
    """The outermost JSON value around a word in a rendering, with its start and end."""
    word = region.find(inside)
    for match in re.finditer(r"[\[{]", region[: max(word, 0)]):
        try:
            value, end = read_json(region, match.start())
        except Malformed:
            continue
        if end > word:
            return value, match.start(), end
    return None


def _quoted(path: tuple[str, ...]) -> str:
    return ".".join(json.dumps(key) for key in path)


@dataclass(frozen=True)
class JsonCalls:
    """JSON objects, alone or in a list, each with the tool's name and arguments somewhere in it.

    Attributes:
        name: The keys that lead to the tool's name; empty where the name is itself the key of the
            arguments.
        arguments: The keys that lead to the arguments.
        call_id: The keys that lead to the call's id; empty where it is not written.
        listed: Whether the template writes a list.
    """

    name: tuple[str, ...]
    arguments: tuple[str, ...]
    call_id: tuple[str, ...] = ()
    listed: bool = False

    @classmethod
    def derive(cls, region: str) -> Found | None:
        """Recognise it in a rendering of the first marked call."""
        found = find_json(region, next(iter(probes.ARGUMENTS[0].values())))
        if found is None:
            return None
        value, start, end = found
        item = value[0] if isinstance(value, list) and value else value
        arguments = find_path(item, probes.ARGUMENTS[0])
        if arguments is None:
            return None
        name = find_path(item, probes.NAMES[0]) or ()
        if not name and arguments[-1:] != (probes.NAMES[0],):
            return None
        call_id = find_path(item, probes.IDS[0]) or ()
        path = arguments if name else arguments[:-1]
        return Found(cls(name, path, call_id, isinstance(value, list)), start, end)

    def read(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        """Read one object, or a list of them."""
        value, end = read_json(text, start)
        items = value if isinstance(value, list) else [value]
        return [self._read_item(item, start) for item in items], end

    def _read_item(self, item: Any, position: int) -> ToolCall:
        if not isinstance(item, dict):
            rule = f"a call must be a JSON object, not {type(item).__name__}"
            return ToolCall("", "", {}, f"at character {position}: {rule}")
        try:
            name, arguments = self._name_and_arguments(item, position)
        except Malformed as error:
            return ToolCall("", error.name, {}, f"at character {error.position}: {error}")
        call_id = self._search(self.call_id, item) if self.call_id else ""
        return ToolCall(str(call_id) if isinstance(call_id, str | int) else "", name, arguments)

    def _name_and_arguments(self, item: Any, position: int) -> tuple[str, dict[str, Any]]:
        if not self.name:
            named = self._search(self.arguments, item) if self.arguments else item
            if not isinstance(named, dict) or len(named) != 1:
                raise Malformed(position, "a call must have one key, the tool's name")
            name, value = next(iter(named.items()))
            return name, read_arguments(value, position, name)
        name = self._search(self.name, item)
        if not isinstance(name, str) or not name:
            raise Malformed(position, f"{_quoted(self.name)} must be the tool's name, a string")
        if not self._has_arguments(item):
            raise Malformed(position, f"{_quoted(self.arguments)} is missing", name)
        return name, read_arguments(self._search(self.arguments, item), position, name)

    def _has_arguments(self, item: Any) -> bool:
        parent = self._search(self.arguments[:-1], item) if self.arguments[:-1] else item
        return isinstance(parent, dict) and self.arguments[-1] in parent

    def _search(self, path: tuple[str, ...], item: Any) -> Any:
        return jmespath.search(_quoted(path), item)

    def example(self) -> str:
        """One call in the template's own keys."""
        item: dict[str, Any] = {}
        arguments = self.arguments if self.name else (*self.arguments, "TOOL")
        for path, placeholder in ((self.name, "..."), (arguments, "{...}")):
            parent = item
            for key in path[:-1]:
                parent = parent.setdefault(key, {})
            if path:
                parent[path[-1]] = placeholder
        text = json.dumps(item).replace('"{...}"', "{...}")
        return f"[{text}]" if self.listed else text

    def begins(self, text: str, start: int) -> bool:
        """Whether an object that begins with one of the expected keys begins here."""
        keys = {path[0] for path in (self.name, self.arguments, self.call_id) if path}
        either = "|".join(re.escape(json.dumps(key)) for key in keys)
        return bool(keys and re.compile(rf"\[?\s*{{\s*(?:{either})\s*:").match(text, start))


@dataclass(frozen=True)
class NameThenJson:
    """The tool's name, a separator, and the arguments as a JSON object.

    Attributes:
        separator: What stands between them, white space at its ends aside.
    """

    separator: str

    @classmethod
    def derive(cls, region: str) -> Found | None:
        """Recognise it in a rendering of the first marked call."""
        found = find_json(region, next(iter(probes.ARGUMENTS[0].values())))
        if found is None or found[0] != probes.ARGUMENTS[0]:
            return None
        _, json_start, end = found
        start = region.rfind(probes.NAMES[0], 0, json_start)
        separator = region[start + len(probes.NAMES[0]) : json_start]
        # An id or a number in the separator differs from call to call.
        varies = probes.IDS[0] in separator or re.search(r"\d", separator)
        if start < 0 or varies or not separator:
            return None
        return Found(cls(separator.strip()), start, end)

    def read(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        """Read a name and its arguments."""
        brace = text.find("{", start)
        split = text.find(self.separator, start) if self.separator else brace
        if split < 0 or brace < 0:
            rule = f"the tool's name must be followed by {self.separator!r} and a JSON object"
            raise Malformed(start, rule)
        name = text[start:split].strip()
        if not name or len(name.split()) != 1:
            raise Malformed(start, "a call must begin with the tool's name")
        begin = split + len(self.separator)
        begin += len(text[begin:]) - len(text[begin:].lstrip())
        try:
            value, end = read_json(text, begin)
            arguments = read_arguments(value, begin, name)
        except Malformed as error:
            raise Malformed(error.position, str(error), name) from error
        return [ToolCall("", name, arguments)], end

    def example(self) -> str:
        """A call with a placeholder for its name."""
        return f"TOOL{self.separator}{{...}}"

    def begins(self, text: str, start: int) -> bool:
        """Never: a bare name is ordinary text."""
        return False


KINDS: tuple[Callable[[str], Found | None], ...] = (JsonCalls.derive, NameThenJson.derive)
