"""Break the added tokens in untrusted strings, before a chat template sees them.

A marker character goes into every occurrence of an added token's content, so that any unbroken
token in the rendered text is the template's own; `safe_text.py` takes the markers out again. A
piece of a token at the end of a string is broken as well, since a template may join strings.
Structure is left alone: the keys and roles of OpenAI's message shape, the keywords of JSON Schema.

Added tokens of white space only, or of one character, spell ordinary text in some tokenizers. They
are not markup and are not broken.
"""

import json
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gymnast.envs.rendering.tokens.token_patterns import SPACE, Normalization, any_of

# Private characters, and cuneiform for tokenizers that drop private characters.
CANDIDATES = [chr(code) for code in (*range(0xE000, 0xE100), *range(0x12000, 0x12100))]

# fmt: off
_STRUCTURAL_KEYS = frozenset({
    # messages, calls and tools
    "role", "content", "reasoning_content", "tool_calls", "tool_call_id", "id", "type", "function",
    "name", "arguments", "description", "parameters", "return", "strict", "text",
    # JSON Schema
    "properties", "required", "items", "enum", "const", "default", "title", "examples", "format",
    "additionalProperties", "patternProperties", "prefixItems", "$ref", "$defs", "definitions",
    "anyOf", "oneOf", "allOf", "not", "nullable", "pattern", "minimum", "maximum", "multipleOf",
    "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems",
    "uniqueItems",
})
_STRUCTURAL_VALUES = {
    "role": frozenset({"system", "developer", "user", "assistant", "tool", "function"}),
    "type": frozenset({
        "function", "text", "string", "integer", "number", "boolean", "object", "array", "null",
    }),
}
# fmt: on
# Below these keys every string is data, its keys included ...
_DATA = frozenset({"arguments", "content", "default", "const", "enum", "examples"})
# ... and right below these only the keys are.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})

Change = Callable[[str], str]


def is_markup(content: str) -> bool:
    """Whether an added token with this content is markup, rather than a spelling of text."""
    return len(content) > 1 and bool(content.replace(SPACE, " ").strip())


def change_strings(node: Any, change: Change, keys: str = "structure") -> Any:
    """Apply `change` to every string of messages or tool schemas that is not structure.

    Args:
        node: Nested lists, mappings and strings; anything else is kept.
        change: What to do with a string.
        keys: What the keys of `node` are: "structure", "names" (free, on this level only) or
            "data" (free all the way down).
    """
    if isinstance(node, str):
        return change(node)
    if isinstance(node, list | tuple):
        return [change_strings(item, change, keys) for item in node]
    if not isinstance(node, Mapping):
        return node
    changed = {}
    for key, value in node.items():
        free = isinstance(key, str) and (keys != "structure" or key not in _STRUCTURAL_KEYS)
        if keys == "structure" and _is_structural(key, value):
            changed[key] = value
        else:
            changed[change(key) if free else key] = change_strings(
                value, change, _keys_below(keys, key, value)
            )
    return changed


def _is_structural(key: Any, value: Any) -> bool:
    return isinstance(value, str) and value in _STRUCTURAL_VALUES.get(key, ())


def _keys_below(keys: str, key: Any, value: Any) -> str:
    if keys == "data":
        return "data"
    if keys == "structure" and key in _NAMED:
        return "names"
    # A list as content holds parts ({"type": "text", "text": ...}), which are structure.
    parts = key == "content" and isinstance(value, list)
    return "data" if keys == "structure" and key in _DATA and not parts else "structure"


def well_formed(text: str) -> str:
    """Replace lone surrogates, which JSON can spell and no tokenizer can encode."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class TokenBreaker:
    """Finds and breaks the added tokens in strings.

    Args:
        contents: The contents of the added tokens that are markup.
        normalize: What the tokenizer does to text before it looks for some of them.
        replaced: The strings that the chat template replaces in others: what remains may form a
            token.
    """

    def __init__(
        self,
        contents: Iterable[str],
        normalize: Normalization | None = None,
        replaced: Collection[str] = (),
    ) -> None:
        self._normalization = normalize
        self._replaced = tuple(replaced)
        every = {form for content in contents for form in self._forms(content)}
        self._starts = re.compile(f"(?={any_of(every)})(.)", re.IGNORECASE | re.DOTALL)
        self._first, self._last = (
            re.compile(f"({any_of({content[n] for content in every})})", re.IGNORECASE)
            for n in (0, -1)
        )
        lower = [content.lower() for content in every]
        self._heads = {content[:n] for content in lower for n in range(1, len(content))}
        self._tails = {content[n:] for content in lower for n in range(1, len(content))}
        self._all = "\0".join(lower)
        self._letters = {letter for content in lower if len(content) < 5 for letter in content}
        self._longest = max(map(len, lower), default=0)
        self._markers = [marker for marker in CANDIDATES if self._stays(marker)] or CANDIDATES

    def protect(self, node: Any) -> tuple[Any, str | None]:
        """Break the added tokens in messages and tools.

        Returns:
            The broken copy, and the marker in it; None where nothing had to be broken.
        """
        strings: list[str] = []

        def note(text: str) -> str:
            strings.append(well_formed(text))
            return strings[-1]

        cleaned = change_strings(node, note)
        if not any(map(self.is_suspicious, strings)):
            return cleaned, None
        marker = self._choose_marker("\0".join(strings))
        return change_strings(cleaned, lambda text: self._broken(text, marker)), marker

    def is_suspicious(self, text: str) -> bool:
        """Whether a text holds an added token, or could once other text stands beside it."""
        return (
            bool(self._starts.search(text))
            or any(self._edges(text.strip()))
            or any(self._edges(text))
            or self._is_rewritten(text)
            or self._hides(self._normalized(text))
        )

    def _forms(self, content: str) -> set[str]:
        """The texts that a tokenizer takes for a token with this content."""
        normalized = self._normalized(content) or content
        if normalized.startswith(SPACE) and not content.startswith((" ", SPACE)):
            normalized = normalized[1:]
        forms = {content, normalized, content.replace(SPACE, " ")}
        return {form for form in forms if is_markup(form)}

    def _stays(self, marker: str) -> bool:
        between = f"<{marker}x"
        return self._normalization is None or between in self._normalization.apply(between)

    def _choose_marker(self, text: str) -> str:
        lower = text.lower()
        for marker in self._markers:
            if marker not in text and escaped(marker).lower() not in lower:
                return marker
        return self._markers[0]  # only an attack uses them all: it loses a character

    def _broken(self, text: str, marker: str) -> str:
        core = text.strip()  # what remains if a template trims
        if not core:
            return text
        before, _, after = text.partition(core)
        at_start, at_end = self._edges(core)
        starts = self._first if self._is_rewritten(core) else self._starts
        inside = starts.sub(lambda match: match[1] + marker, core)
        inside = marker * at_start + inside + marker * at_end
        if self._hides(self._normalized(inside)):
            inside = marker + "".join(character + marker for character in core)
        if not before and not after:
            return inside
        at_start, at_end = self._edges(text)
        return marker * at_start + before + inside + after + marker * at_end

    def _edges(self, text: str) -> tuple[bool, bool]:
        """Whether a token could extend beyond the string's start, and beyond its end."""
        start, end = text[: self._longest], text[-self._longest :]
        starts = ends = False
        if self._last.search(start):
            start = start.lower()
            starts = any(start[: n + 1] in self._tails for n in range(len(start)))
        if self._first.search(end):
            end = end.lower()
            ends = any(end[n:] in self._heads for n in range(len(end)))
        within = 1 < len(text) <= self._longest and text.lower() in self._all
        within = within or text.lower() in self._letters
        return starts, ends or within

    def _is_rewritten(self, text: str) -> bool:
        """Whether a text could hold part of a token once the template has replaced something."""
        return any(part in text for part in self._replaced) and bool(self._first.search(text))

    def _normalized(self, text: str) -> str | None:
        return None if self._normalization is None else self._normalization.of(text)

    def _hides(self, normalized: str | None) -> bool:
        """Whether normalization turns text that does not look like an added token into one."""
        if normalized is None:
            return False
        core = normalized.strip(SPACE + string.whitespace)
        return bool(self._starts.search(core)) or any(self._edges(core))


def escaped(marker: str) -> str:
    """The marker as JSON writes it in ASCII."""
    return json.dumps(marker)[1:-1]
