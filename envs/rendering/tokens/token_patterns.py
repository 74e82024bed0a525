"""Find added tokens in text as a tokenizer would: one pattern for all, and normalization."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from tokenizers.normalizers import Normalizer

from gymnast.envs.rendering.calls.markup import shared_length

SPACE = "\u2581"  # what tokenizers in SentencePiece's manner write for a space


def any_of(contents: Iterable[str]) -> str:
    """A pattern for where any of these strings begins; for no strings, it matches nothing.

    Shared starts are compared once: some families have thousands of tokens like `<unused17>`.
    """
    return _any_of(sorted(contents)) or "(?!)"


def _any_of(contents: list[str]) -> str:
    branches = []
    for _, group in groupby(contents, key=lambda content: content[0]):
        same = list(group)
        start = same[0][: shared_length(same[0], same[-1])]
        # A string that begins with a shorter one needs no branch: the shorter one matches.
        longer = "" if start == same[0] else _any_of([content[len(start) :] for content in same])
        branches.append(re.escape(start) + longer)
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""


class Normalization:
    """What a tokenizer does to text before it looks for its normalized added tokens.

    Args:
        normalizer: The normalizer of the tokenizer.
    """

    def __init__(self, normalizer: Normalizer) -> None:
        self._normalizer = normalizer
        steps = _steps(json.loads(normalizer.__getstate__()))
        self._leaves_ascii = all(map(_leaves_ascii, steps))

    def apply(self, text: str) -> str:
        """The normalized text."""
        return str(self._normalizer.normalize_str(text))

    def of(self, text: str) -> str | None:
        """The normalized text; None where it differs only in case and spaces."""
        return None if self._leaves_ascii and text.isascii() else self.apply(text)


def _steps(node: Any) -> Iterator[dict[str, Any]]:
    if node["type"] == "Sequence":
        for step in node["normalizers"]:
            yield from _steps(step)
    else:
        yield node


def _leaves_ascii(step: dict[str, Any]) -> bool:
    """Whether a step keeps ASCII except for its case, and for spaces written as `SPACE`."""
    spaces = step.get("content") == SPACE and step.get("pattern") == {"String": " "}
    return step["type"] in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend") or spaces
