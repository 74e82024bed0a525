"""Break the added tokens in untrusted strings, before a chat template sees them.

A marker character goes into every occurrence of an added token's content, so that in the rendered
text an unbroken token can only be the template's own; `safe_text.py` takes the markers out again.
A piece of a token at a string's end is broken too, for a template may join strings. What is
structure is left alone: the keys and roles of OpenAI's message shape, the keywords of JSON Schema.

Added tokens that are only white space, or one character long, spell ordinary text in some
tokenizers. They are not markup, and are not broken.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

CANDIDATES = [chr(code) for code in (*range(0xE000, 0xE100), *range(0xF0000, 0xF0100))]

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
    return len(content) > 1 and bool(content.strip())


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
    """

    def __init__(self, contents: Iterable[str], normalize: Change | None = None) -> None:
        longest_first = sorted(set(contents), key=len, reverse=True)
        # The set of first characters makes the search fast where there are hundreds of tokens.
        first = "".join(sorted({re.escape(content[0]) for content in longest_first}))
        either = "|".join(map(re.escape, longest_first))
        self._starts = re.compile(
            f"(?=[{first}])(?=(?:{either}))(.)" if longest_first else "(?!)(.)",
            re.IGNORECASE | re.DOTALL,
        )
        lower = [content.lower() for content in longest_first]
        self._heads = {content[:n] for content in lower for n in range(1, len(content))}
        self._tails = {content[n:] for content in lower for n in range(1, len(content))}
        self._all = "\0".join(lower)
        self._longest = max(map(len, lower), default=0)
        self._normalize = normalize

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
        if not any(map(self._is_suspicious, strings)):
            return cleaned, None
        marker = self._choose_marker("\0".join(strings))
        return change_strings(cleaned, lambda text: self._broken(text, marker)), marker

    def _choose_marker(self, text: str) -> str:
        lower = text.lower()
        for marker in CANDIDATES:
            if marker not in text and escaped(marker).lower() not in lower:
                return marker
        raise ValueError(f"the text uses all {len(CANDIDATES)} characters kept for markers")

    def _is_suspicious(self, text: str) -> bool:
        return bool(self._starts.search(text)) or any(self._edges(text)) or self._is_hidden(text)

    def _broken(self, text: str, marker: str) -> str:
        if self._is_hidden(text):
            return "".join(character + marker for character in text)
        at_start, at_end = self._edges(text)
        inside = self._starts.sub(lambda match: match[1] + marker, text)
        return marker * at_start + inside + marker * at_end

    def _edges(self, text: str) -> tuple[bool, bool]:
        """Whether a token could go on before the string's start, and after its end."""
        reach = range(1, min(len(text), self._longest) + 1)
        start, end = text[: self._longest].lower(), text[-self._longest :].lower()
        starts = any(start[:n] in self._tails for n in reach)
        ends = any(end[len(end) - n :] in self._heads for n in reach)
        within = 1 < len(text) <= self._longest and text.lower() in self._all
        return starts, ends or within

    def _is_hidden(self, text: str) -> bool:
        """Whether normalization makes an added token of text that does not look like one."""
        if self._normalize is None or text.isascii():
            return False
        normalized = self._normalize(text)
        return normalized != text and bool(self._starts.search(normalized))


def escaped(marker: str) -> str:
    """The marker as JSON writes it in ASCII."""
    return json.dumps(marker)[1:-1]
