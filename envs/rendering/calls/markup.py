r"""Markup that a template writes around calls, as a pattern to look for in what a model wrote.

Most of it is the same for every call. For what differs it has a placeholder: the call's id, its
number, the tool's name, an argument's key. White space between two pieces of markup is optional,
since a model's tokens often merge it with what follows; only two words need some.

    functions.NAME:0<|args|>   ->   "functions." NAME ":" NUMBER "<|args|>"

`rendering/template/derivation.py` derives the markup; `payloads.py` describes what it encloses.
"""

import re
from collections.abc import Collection
from functools import lru_cache

from gymnast.envs.rendering.calls import probes

ID, NUMBER, NAME, KEY = "\ue0f0", "\ue0f1", "\ue0f2", "\ue0f3"
_PATTERNS = {ID: r"([\w.:\-]+)", NUMBER: r"\d+", NAME: r"[\w.\-]+", KEY: r"[^\s<>]+"}
_SHOWN = {ID: "ID", NUMBER: "0", NAME: "TOOL", KEY: "KEY"}
_CLOSING = (">", ")", "]", "}")
_PIECE = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|(?:(?!<[^<>\s]+>|\[[^\[\]\s]+\])\S)+")
_LONE_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def generalised(markup: str) -> str:
    """Markup of a marked call, with placeholders for what differs between calls."""
    for call_id, name in zip(probes.IDS, probes.NAMES, strict=True):
        markup = markup.replace(call_id, ID).replace(name, NAME)
    return _LONE_NUMBER.sub(NUMBER, markup)


@lru_cache(maxsize=1024)
def pattern(markup: str, key: str | None = None) -> re.Pattern[str]:
    """The pattern of markup; an id in it is its first group.

    Args:
        markup: As `generalised` gives it.
        key: What stands for the placeholder `KEY`; any key by default.
    """
    patterns = _PATTERNS if key is None else _PATTERNS | {KEY: re.escape(key)}
    written, last = "", ""
    for piece in _PIECE.findall(markup):
        if written:
            # Without white space, two words would become one.
            written += r"\s++" if _is_word(last[-1]) and _is_word(piece[0]) else r"\s*+"
        written += "".join(patterns.get(c) or re.escape(c) for c in piece)
        last = piece
    return re.compile(written)


def _is_word(character: str) -> bool:
    return character.isalnum() or character in ("_", *_PATTERNS)


def shown(markup: str) -> str:
    """Markup for a person or a model to read."""
    return "".join(_SHOWN.get(character, character) for character in markup)


def shared_length(text: str, other: str) -> int:
    """How many characters two texts share at their start."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


def common_start(text: str, other: str, added: Collection[str] = ()) -> str:
    """The start that two texts share, up to a sensible place to cut `text`."""
    length = shared_length(text, other)
    common = text[:length]
    if length in (len(text), len(other)):
        return common
    # An opening bracket at the end belongs to what comes after: "</call><" | "/calls>".
    common = re.sub(r"(?:[<\[({][^\w\s>\])}]*|<[^<>]*)\Z", "", common)
    while cuts_token(text, len(common), added):
        common = common[:-1]
    return common


def common_end(text: str, other: str, added: Collection[str] = ()) -> str:
    """The end that two texts share, from a sensible place to cut `text`."""
    length = shared_length(text[::-1], other[::-1])
    cut = len(text) - length
    if length in (len(text), len(other)) and text[cut : cut + 1] not in _CLOSING:
        return text[cut:]
    # A closing bracket at the start belongs to what comes before: "<call>" | "<name".
    end_of_other = re.compile(r"[^\w\s<\[({]*[>\])}]|[^<>]*>").match(text, cut)
    limit = end_of_other.end() if end_of_other else cut
    limit = cut if limit == len(text) else limit  # brackets alone are markup of their own: ">>>"
    while cut < len(text) and (cuts_token(text, cut, added) or cut < limit):
        if cut > 0 and any(text.startswith(token, cut) for token in added):
            break
        cut += 1
    return text[cut:]


def cuts_token(text: str, cut: int, added: Collection[str]) -> bool:
    """Whether cutting the text here would cut an added token in two."""
    return any(
        match.start() < cut < match.end()
        for token in added
        for match in re.finditer(re.escape(token), text)
    )
