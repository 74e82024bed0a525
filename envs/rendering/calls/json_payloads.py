"""Calls as JSON: an object with the name and the arguments, or a name and then the arguments."""

import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import jmespath

from gymnast.envs.records.arguments import repeated_key
from gymnast.envs.rendering.calls import markup, probes
from gymnast.envs.rendering.calls.literals import skip_space
from gymnast.envs.rendering.calls.payloads import (
    Malformed,
    MarkedCall,
    Payload,
    PayloadMarkup,
    PayloadMatch,
    Schemas,
    read_arguments,
    read_json,
)
from gymnast.types import ToolCall


def find_path(value: Any, wanted: Any) -> tuple[str, ...] | None:
    """The path of keys from a JSON object to a value in it, or None."""
    if not isinstance(value, dict):
        return None
    for key, item in value.items():
        if item == wanted or _is_json_text(item, wanted):
            return (key,)
        below = find_path(item, wanted)
        if below is not None:
            return (key, *below)
    return None


def _is_json_text(item: Any, wanted: Any) -> bool:
    if not isinstance(item, str) or isinstance(wanted, str):
        return False
    try:
        return bool(json.loads(item) == wanted)
    except ValueError:
        return False


def find_json(region: str, inside: str) -> tuple[Any, int, int] | None:
    """The outermost JSON value around a word in a rendering, and its start and end."""
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


_LONGEST_HEAD = 256  # characters within which a tool's name, its markup included, must end
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


@dataclass(frozen=True)
class JsonCalls(Payload):
    """JSON objects, alone or in a list, that hold the tool's name and arguments.

    Attributes:
        name: The path of keys to the tool's name; empty where the name is itself the key of the
            arguments.
        arguments: The path of keys to the arguments.
        call_id: The path of keys to the call's id; empty where it is not written.
        listed: Whether the template writes a list.
    """

    label: ClassVar[str] = "a JSON object"

    name: tuple[str, ...]
    arguments: tuple[str, ...]
    call_id: tuple[str, ...] = ()
    listed: bool = False

    @classmethod
    def recognise(cls, call: MarkedCall) -> PayloadMatch | None:
        """Find the outermost JSON around the marked arguments."""
        json_around = find_json(call.text, next(iter(probes.ARGUMENTS[0].values())))
        if json_around is None:
            return None
        value, start, end = json_around
        item = value[0] if isinstance(value, list) and value else value
        arguments = find_path(item, probes.ARGUMENTS[0])
        if arguments is None:
            return None
        name = find_path(item, probes.NAMES[0]) or ()
        if not name and arguments[-1:] != (probes.NAMES[0],):
            return None
        call_id = find_path(item, probes.IDS[0]) or ()
        path = arguments if name else arguments[:-1]
        return PayloadMatch(cls(name, path, call_id, isinstance(value, list)), start, end)

    def read(
        self, text: str, start: int, schemas: Schemas, close: str
    ) -> tuple[list[ToolCall], int]:
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
            if (key := repeated_key(item)) is not None:  # the arguments themselves repeat nothing
                raise Malformed(position, f"the key {key!r} is given twice", name)
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

    def begins(self, text: str, start: int) -> bool:
        """Whether an object begins here whose first key is one of the expected ones."""
        keys = {path[0] for path in (self.name, self.arguments, self.call_id) if path}
        either = "|".join(re.escape(json.dumps(key)) for key in keys)
        return bool(keys and re.compile(rf"\[?\s*{{\s*(?:{either})\s*:").match(text, start))

    @property
    def markup(self) -> PayloadMarkup:
        """The last key of each path."""
        return PayloadMarkup(
            name_key="".join(self.name[-1:]), arguments_key="".join(self.arguments[-1:])
        )


@dataclass(frozen=True)
class NameThenJson(Payload):
    """The tool's name, a separator, and the arguments as a JSON object.

    Attributes:
        separator: The markup between them; it may hold the call's id or number.
    """

    label: ClassVar[str] = "a name and a JSON object"

    separator: str

    @classmethod
    def recognise(cls, call: MarkedCall) -> PayloadMatch | None:
        """Find the marked name, and the marked arguments as JSON after it."""
        json_around = find_json(call.text, next(iter(probes.ARGUMENTS[0].values())))
        if json_around is None or json_around[0] != probes.ARGUMENTS[0]:
            return None
        _, json_start, end = json_around
        start = call.text.rfind(probes.NAMES[0], 0, json_start)
        separator = call.text[start + len(probes.NAMES[0]) : json_start]
        if start < 0 or not separator:
            return None
        payload = cls(markup.generalised(separator.strip()))
        return PayloadMatch(payload, start, end, payload.header)

    def read(
        self, text: str, start: int, schemas: Schemas, close: str
    ) -> tuple[list[ToolCall], int]:
        """Read a name and its arguments."""
        limit = min(start + _LONGEST_HEAD, len(text))
        split = markup.pattern(self.separator or "{").search(text, start, limit)
        split = split or self._other_header(text, start)
        if split is None:
            shown = markup.shown(self.separator)
            raise Malformed(start, f"the tool's name must be followed by {shown!r} and JSON")
        name = text[start : split.start()].strip()
        if not name or len(name.split()) != 1:
            raise Malformed(start, "a call must begin with the tool's name")
        begin = split.end() if self.separator else split.start()
        begin = skip_space(text, begin)
        try:
            value, end = read_json(text, begin)
            arguments = read_arguments(value, begin, name)
        except Malformed as error:
            raise Malformed(error.position, str(error), name) from error
        call_id = split[1] if split.groups() else ""
        return [ToolCall(call_id, name, arguments)], end

    @property
    def header(self) -> str:
        """What a model may write before the call instead of after its name, or ""."""
        first = re.match(_TAG.pattern + r"\s*\w+", self.separator)
        return first[0] if first and len(_TAG.findall(self.separator)) > 1 else ""

    def _other_header(self, text: str, start: int) -> re.Match[str] | None:
        """A separator of several tags with other words between them.

        Models write a header's parts in more ways than their template does. The last tag and the
        JSON after it leave no doubt.
        """
        tags = _TAG.findall(self.separator)
        if len(tags) < 2 or not self.separator.endswith(tags[-1]):
            return None
        name = re.compile(r"\s*[\w.\-]+").match(text, start)
        header = rf"[^{{}}\n]{{0,80}}?{re.escape(tags[-1])}(?=\s*{{)"
        return re.compile(header).match(text, name.end()) if name else None

    @property
    def markup(self) -> PayloadMarkup:
        """The separator."""
        return PayloadMarkup(after_name=self.separator)
