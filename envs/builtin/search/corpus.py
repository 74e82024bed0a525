"""A corpus that can be searched and read: made once in a process, for all who name it."""

import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import bm25s
import numpy as np

from gymnast.envs.builtin.search.documents import Document, divided, one_line, read_documents
from gymnast.envs.builtin.search.words import STOP_WORDS, snippet, words_of
from gymnast.envs.builtin.search.world import shared_world
from gymnast.errors import DataError

_MOST_WORDS = 32  # of a query
_KEPT = 4  # corpora in a process
_lock = threading.Lock()


@dataclass(frozen=True)
class Source:
    """Where a corpus comes from: what travels to other processes in its place.

    Attributes:
        path: A file or a folder, absolute; "" for a world of Gymnast's own.
        columns: The columns of its rows, as pairs; see `read_documents`.
        part_characters: How long a part of a document may be.
        world: The seed of the world.
    """

    path: str = ""
    columns: tuple[tuple[str, str], ...] = ()
    part_characters: int = 2000
    world: int = 0


class Found(NamedTuple):
    """A part of a document that has words of a query.

    Attributes:
        document: The document.
        part: Which of its parts, the first being 1.
        parts: How many it has.
        snippet: Some words of it.
    """

    document: Document
    part: int
    parts: int
    snippet: str


class Corpus:
    """Documents, and an index of their parts by BM25.

    A part is found by the words of its text and of the document's title.

    Args:
        source: Where it comes from.
        documents: All of them.
    """

    def __init__(self, source: Source, documents: Sequence[Document]) -> None:
        self.documents = documents
        self._source = source
        self._by_title = {one_line(d.title).casefold(): i for i, d in enumerate(documents)}
        self._by_id = {d.id: i for i, d in enumerate(documents) if d.id}
        self._parts = _Parts()
        vocabulary: dict[str, int] = {}
        rows = []
        for number, document in enumerate(documents):
            title = list(words_of(document.title))
            for start, end in self._parts.add(number, document.text, source.part_characters):
                words = [*title, *words_of(document.text[start:end])]
                rows.append(
                    array("i", (vocabulary.setdefault(w, len(vocabulary)) for w in words
                                if w not in STOP_WORDS))
                )  # fmt: skip
        if not vocabulary:
            raise DataError(f"corpus {source.path!r}: has no words that could be searched for")
        self._vocabulary = vocabulary
        self._index: Any = bm25s.BM25(backend="numpy")
        self._index.index((rows, vocabulary), create_empty_token=False, show_progress=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is the one that the other process has, or makes."""
        return shared_corpus, (self._source,)

    def search(self, words: Sequence[str], limit: int, snippet_characters: int) -> list[Found]:
        """The parts that fit some words best, the best first; equally good ones in their order.

        Args:
            words: As `words_of` says them; those that no document has make no difference.
            limit: How many parts at most.
            snippet_characters: How long a snippet may be.
        """
        known = dict.fromkeys(word for word in words if word in self._vocabulary)
        wanted = list(known)[:_MOST_WORDS]
        if not wanted or limit < 1:
            return []
        scores = self._index.get_scores_from_ids([self._vocabulary[word] for word in wanted])
        return [self._found(int(part), wanted, snippet_characters) for part in _best(scores, limit)]

    def find(self, name: str) -> Document | None:
        """The document of a title or an id, or None."""
        number = self._by_title.get(one_line(name).casefold(), self._by_id.get(name.strip()))
        return None if number is None else self.documents[number]

    def read(self, document: Document, part: int) -> tuple[str, int]:
        """The text of a part, "" where there is none, and how many parts the document has.

        Args:
            document: Of this corpus.
            part: Which; the first is 1.
        """
        number = self._by_title[document.title.casefold()]
        first, beyond = self._parts.of(number)
        if not 1 <= part <= beyond - first:
            return "", beyond - first
        start, end = self._parts.starts[first + part - 1], self._parts.ends[first + part - 1]
        return document.text[start:end].strip(), beyond - first

    def _found(self, part: int, wanted: Sequence[str], characters: int) -> Found:
        number = self._parts.documents[part]
        document = self.documents[number]
        first, beyond = self._parts.of(number)
        text = document.text[self._parts.starts[part] : self._parts.ends[part]]
        shown = snippet(text, set(wanted), characters)
        return Found(document, part - first + 1, beyond - first, shown)


@dataclass
class _Parts:
    """Where the parts of all documents are: numbers, since there may be millions."""

    documents: "array[int]" = field(default_factory=lambda: array("q"))
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    _first: "array[int]" = field(default_factory=lambda: array("q"))  # of each document

    def add(self, number: int, text: str, most: int) -> list[tuple[int, int]]:
        self._first.append(len(self.documents))
        found = list(divided(text, most))
        for start, end in found:
            self.documents.append(number)
            self.starts.append(start)
            self.ends.append(end)
        return found

    def of(self, number: int) -> tuple[int, int]:
        """The first part of a document, and the first beyond its last."""
        beyond = self._first[number + 1 : number + 2]
        return self._first[number], beyond[0] if beyond else len(self.documents)


def _best(scores: "np.ndarray", limit: int) -> "np.ndarray":
    """Where the highest scores above 0 are, [N] to at most [limit]; ties in their order."""
    if limit < len(scores):
        least = np.partition(scores, len(scores) - limit)[len(scores) - limit]
        places = np.flatnonzero((scores >= least) & (scores > 0))
    else:
        places = np.flatnonzero(scores > 0)
    return places[np.argsort(-scores[places], kind="stable")][:limit]


def shared_corpus(source: Source) -> Corpus:
    """The corpus of this process; a file that has changed since is read again.

    Raises:
        DataError: Its documents cannot be read.
    """
    path = Path(source.path)
    changed = path.stat().st_mtime_ns if source.path and path.exists() else 0
    with _lock:  # whoever comes second waits for it, and reads nothing
        return _made(source, changed)


@lru_cache(maxsize=_KEPT)
def _made(source: Source, changed: int) -> Corpus:
    if not source.path:
        return Corpus(source, shared_world(source.world).documents)
    return Corpus(source, read_documents(Path(source.path), dict(source.columns)))
