r"""Text that spells an added token, kept apart from the token.

A model can write `<|"|>` as one token, which ends a string, or letter by letter, as text in that
string. Decoded, both look the same. Where a completion has the token itself, what only spells it is
text, so a marker is put into it before the completion is read, and taken out of what was read.

A completion that has the markup in letters alone is read as if it were tokens: a policy that has
not learned the token yet means it all the same.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gymnast.envs.rendering.tokens.markers import change_strings
from gymnast.envs.rendering.tokens.safe_text import SafeText

_MARKER = "\ue0ff"


def decode_apart(ids: Sequence[Any], text: SafeText) -> tuple[str, str]:
    """Decode a completion; give its text, and the marker in what only spells a token, or ""."""
    decoded = text.decode(ids)
    tokens = Counter(token for token in map(text.token_of, ids) if token)
    if all(decoded.count(token) <= count for token, count in tokens.items()):
        return decoded, ""
    if _MARKER in decoded:
        return decoded, ""
    parts: list[str] = []
    stretch: list[Any] = []  # a token that is markup, and what follows it up to the next
    for number in [*ids, None]:
        token = text.token_of(number) if number is not None else ""
        if number is None or token in tokens:
            # Decoded with the token before it, for a decoder may strip a text's first space.
            written = text.decode(stretch)
            before = text.token_of(stretch[0]) if stretch else ""
            before = before if written.startswith(before) else ""
            written = written.removeprefix(before)
            for spelled in tokens:
                written = written.replace(spelled, spelled[0] + _MARKER + spelled[1:])
            parts += [before, written]
            stretch = []
        stretch.append(number)
    return "".join(parts), _MARKER


def without_marker(value: Any, marker: str) -> Any:
    """A copy of what was read, without the marker in any of its strings."""
    if not marker:
        return value
    return change_strings(value, lambda string: string.replace(marker, ""), "data")
