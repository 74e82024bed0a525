"""The words of a text, by which it is found, and the piece of it that is shown."""

import unicodedata
from collections.abc import Collection, Iterator

import regex
from bm25s.stopwords import STOPWORDS_EN

STOP_WORDS = frozenset(STOPWORDS_EN)
# Scripts without spaces are searched by character.
_WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]|[\w--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]]+",
    regex.VERSION1,
)


def words_of(text: str) -> Iterator[str]:
    """The words of a text, as they are compared: without case, whatever their encoding."""
    for found in _WORD.finditer(text):
        yield _compared(found.group())


def _compared(word: str) -> str:
    return word.lower() if word.isascii() else unicodedata.normalize("NFKC", word).casefold()


def snippet(text: str, wanted: Collection[str], most: int) -> str:
    """A piece of a text around some words, on one line.

    Args:
        text: The text.
        wanted: Words, as they are compared.
        most: How many characters it may have.

    Returns:
        Of all pieces that begin with a wanted word the first with most of them, and what stands
        before it; the text's beginning where none is in it.
    """
    if len(text) <= most:
        return " ".join(text.split())
    places = [
        (found.start(), word)
        for found in _WORD.finditer(text)
        if (word := _compared(found.group())) in wanted
    ]
    best, start = 0, 0
    for i, (at, _) in enumerate(places):
        inside = set[str]()
        for other, word in places[i:]:
            if other - at > most // 2:
                break
            inside.add(word)
        if len(inside) > best:
            best, start = len(inside), at
    start = max(0, min(start - most // 4, len(text) - most))
    if start:  # not in the middle of a word
        start = text.find(" ", start, start + most // 4) + 1 or start
    end = start + most
    if end < len(text):
        end = max(text.rfind(" ", start + most // 2, end), start + most // 2)
    shown = " ".join(text[start:end].split())
    return f"{'... ' if start else ''}{shown}{' ...' if end < len(text) else ''}"
