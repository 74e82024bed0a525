"""Search: a question whose answer stands in documents, which are searched and read.

`documents.py` reads them, `corpus.py` searches them, and `world.py` has some of Gymnast's own.
"""

import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from gymnast.envs.builtin.search.corpus import Corpus, Found, Source, shared_corpus
from gymnast.envs.builtin.search.documents import check_columns
from gymnast.envs.builtin.search.words import STOP_WORDS, words_of
from gymnast.envs.builtin.search.world import shared_world
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.assistant import call
from gymnast.envs.records.episode import Episode
from gymnast.envs.rubrics.comparing import last_number, same_number, same_text
from gymnast.envs.tools.marks import tool
from gymnast.errors import ConfigError, DataError

_LONGEST_QUERY = 1000  # characters
_MOST_FOUND = 10
_SYSTEM_PROMPT = (
    "Search the documents for the answer to the question. Write the final answer alone, in as few "
    "words as possible, between <answer> and </answer>."
)


class Search(Environment):
    """Answer a question from documents that can be searched and read.

    The answer is what the last turn's text has between `<answer>` and `</answer>`, or all of it.
    The reward is 1.0 if it is the row's, but for case, space and punctuation; where the row's is a
    number, if it is the last number in the answer. Rows of a dataset have

        prompt     the question
        answer     the right answer, or a list of them
        path       optional: the documents that lead to it, as [{title, query, part}]. `solve`
                   searches for `query` and reads `title`; either may be left out.

    Without rows and `corpus`, the environment asks about a made-up world, some questions of which
    need two documents. `metrics` gives `right`, `search/calls` and `search/reads` (calls that
    ran), and `search/path_read` where the row has a path: the share of its documents that were
    read.

    Args:
        renderer: As for `Environment`.
        rows: As for `Environment`.
        corpus: A .jsonl or .parquet file of documents, or a folder of texts. It is read and indexed
            once in a process, whatever number of environments use it.
        corpus_columns: jmespath expressions for `title`, `text` and `id` of a document, where the
            file calls them otherwise.
        part_characters: How much of a document is indexed, and read, as one part.
        snippet_characters: How much of a part a search shows.
        world: The seed of the made-up world.
        two_hops: The share of its questions that need two documents.
        system_prompt: By default, it says how the answer is written.
        **settings: As for `Environment`.
    """

    def __init__(
        self,
        renderer: Any = None,
        rows: Any = None,
        *,
        corpus: str | Path | None = None,
        corpus_columns: Mapping[str, str] | None = None,
        part_characters: int = 2000,
        snippet_characters: int = 200,
        world: int = 0,
        two_hops: float = 0.5,
        system_prompt: str | None = _SYSTEM_PROMPT,
        **settings: Any,
    ) -> None:
        super().__init__(renderer, rows, system_prompt=system_prompt, **settings)
        number = isinstance(two_hops, int | float) and not isinstance(two_hops, bool)
        if not number or not 0 <= two_hops <= 1:
            raise ConfigError(f"Search: two_hops must be a share from 0 to 1, got {two_hops!r}.")
        for name, value, least in (
            ("part_characters", part_characters, 100),
            ("snippet_characters", snippet_characters, 20),
            ("world", world, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"Search: {name} must be a whole number >= {least}, got {value!r}."
                )
        check_columns(corpus_columns or {})
        self.world, self.two_hops = world, two_hops
        self._part_characters, self._snippet = part_characters, snippet_characters
        self._given: Corpus | None = None
        if not isinstance(corpus, str | Path | None):
            raise ConfigError(
                f"Search: corpus must be the path of a file or folder, got {corpus!r}."
            )
        if corpus is not None:
            columns = tuple(sorted((corpus_columns or {}).items()))
            path = str(Path(corpus).expanduser().absolute())
            self._given = shared_corpus(Source(path, columns, part_characters))
        elif corpus_columns:
            raise ConfigError("Search: corpus_columns needs a corpus, whose columns they are.")
        self._corpus: Corpus | None = None

    @tool
    def search(self, query: str, limit: Annotated[int, Ge(1), Le(_MOST_FOUND)] = 3) -> str:
        """Search the documents for words; return titles and pieces of their texts.

        Args:
            query: Words that the document has.
            limit: How many results at most.
        """
        assert self._corpus is not None
        if len(query) > _LONGEST_QUERY:
            return (
                f"The query has {len(query):,} characters, and at most {_LONGEST_QUERY:,} can be "
                "searched for. Search for a few words."
            )
        words = list(words_of(query))
        if not words:
            return "The query has no words. Search for words that the document has."
        if STOP_WORDS.issuperset(words):
            return "The query has only words that nearly every text has. Search for rarer ones."
        found = self._corpus.search(words, limit, self._snippet)
        if not found:
            return "No document has any of these words. Search for others."
        return "\n".join(f"[{_place(one)}] {one.snippet}" for one in found)

    @tool
    def read(self, title: str, part: Annotated[int, Ge(1)] = 1) -> str:
        """Read a document.

        Args:
            title: Its title, as a search shows it.
            part: Which part of a long one.
        """
        assert self._corpus is not None
        document = self._corpus.find(title)
        if document is None:
            near = self._corpus.search(list(words_of(title[:_LONGEST_QUERY])), 1, self._snippet)
            hint = f" A search for it finds {near[0].document.title!r}." if near else ""
            return f"There is no document with the title {title[:100]!r}.{hint}"
        text, parts = self._corpus.read(document, part)
        if not 1 <= part <= parts:
            count = "1 part" if parts == 1 else f"{parts} parts"
            return f"{document.title!r} has {count}, so there is no part {part}."
        return text if parts == 1 else f"{text}\n(part {part} of {parts})"

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else a question about the made-up world."""
        if self.rows is not None or self._given is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        return shared_world(self.world).ask(rng, 1 + int(rng.random() < self.two_hops))

    def setup(self, row: Mapping[str, Any]) -> None:
        """Find the corpus that the row asks about; check the row."""
        _check_row(row)
        if self._given is None and row.get("world") is None:
            raise DataError(
                f"Search: the row {dict(row)!r:.300} asks about documents that the environment "
                "does not have; name them: corpus: documents.jsonl."
            )
        self._corpus = self._given or shared_corpus(
            Source(part_characters=self._part_characters, world=row["world"])
        )
        for hop in row.get("path") or ():
            if hop.get("title") is not None and self._corpus.find(hop["title"]) is None:
                raise DataError(
                    f"Search: the corpus has no document {hop['title']!r}, which is on the path of "
                    f"the row {dict(row)!r:.300}."
                )

    def solve(self, row: Mapping[str, Any]) -> list[Any] | None:
        """Search and read along the row's `path`, then answer."""
        if row.get("path") is None:
            return None
        said: list[Any] = []
        for hop in row["path"]:
            if hop.get("query") is not None:
                said.append(call("search", query=hop["query"]))
            if hop.get("title") is not None:
                part = {} if hop.get("part") is None else {"part": hop["part"]}
                said.append(call("read", title=hop["title"], **part))
        return [*said, f"<answer>{_right_answers(row)[0]}</answer>"]

    def reward(self, episode: Episode) -> float:
        """Whether the answer is right; see the class."""
        return float(_is_right(_given_answer(episode.answer), episode.row))

    def metrics(self, episode: Episode) -> dict[str, float]:
        """See the class."""
        ran = [record for record in episode.calls if record.error is None]
        reads = [record for record in ran if record.call.name == "read"]
        found = {
            "right": self.reward(episode),
            "search/calls": float(sum(record.call.name == "search" for record in ran)),
            "search/reads": float(len(reads)),
        }
        titles = [hop["title"] for hop in episode.row.get("path") or () if hop.get("title")]
        if titles:
            named = {self._title_of(record.arguments["title"]) for record in reads}
            reached = [self._title_of(title) in named for title in titles]
            found["search/path_read"] = sum(reached) / len(titles)
        return found

    def _title_of(self, name: str) -> str | None:
        """The title of a document that is named by its title or id; None if there is none."""
        document = None if self._corpus is None else self._corpus.find(name)
        return None if document is None else document.title


def _place(found: Found) -> str:
    title = found.document.title
    return title if found.parts == 1 else f"{title}, part {found.part} of {found.parts}"


def _given_answer(text: str) -> str:
    """What stands between the last tags, or all of the text."""
    return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def _right_answers(row: Mapping[str, Any]) -> list[Any]:
    answer = row["answer"]
    return list(answer) if isinstance(answer, list | tuple) else [answer]


def _is_right(given: str, row: Mapping[str, Any]) -> bool:
    number = last_number(given)
    return any(
        same_text(_composed(given), _composed(one), ("case", "space", "punctuation"))
        if isinstance(one, str)
        else number is not None and same_number(number, one)
        for one in _right_answers(row)
    )


def _composed(text: str) -> str:
    """A text in one encoding: an umlaut may be one character or two."""
    return unicodedata.normalize("NFKC", text)


def _check_row(row: Mapping[str, Any]) -> None:
    answers = _right_answers(row) if row.get("answer") is not None else []
    if not answers or not all(map(_can_be_given, answers)):
        raise DataError(
            f"Search: the row {dict(row)!r:.300} needs an `answer`: a text with a letter or digit, "
            "a number, or a list of these."
        )
    path = row.get("path")
    if path is not None and not (isinstance(path, list | tuple) and all(map(_is_hop, path))):
        raise DataError(
            "Search: `path` must be a list like [{'title': ..., 'query': ...}], got "
            f"{path!r:.200}."
        )


def _can_be_given(answer: Any) -> bool:
    if isinstance(answer, str):
        return any(map(str.isalnum, answer))
    return isinstance(answer, int | float) and not isinstance(answer, bool)


def _is_hop(hop: Any) -> bool:
    return isinstance(hop, Mapping) and all(
        isinstance(hop.get(name), str | None) for name in ("title", "query")
    )
