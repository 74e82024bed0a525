"""Corpora of Search-v0: the files that they are read from, what is found, and who shares them."""

import json
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.builtin.search.corpus import Corpus, Source, shared_corpus
from gymnast.envs.builtin.search.documents import Document, divided, read_documents
from gymnast.envs.builtin.search.words import snippet, words_of
from gymnast.errors import DataError

ROWS = [{"title": "Fig", "text": "A fig is sweet."}, {"title": "Lime", "text": "A lime is sour."}]


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def corpus_of(*texts: str, **settings: Any) -> Corpus:
    documents = [Document(f"Text {i}", text) for i, text in enumerate(texts)]
    return Corpus(Source(**settings), documents)


def titles(corpus: Corpus, query: str, limit: int = 5) -> list[str]:
    return [found.document.title for found in corpus.search(list(words_of(query)), limit, 100)]


# --- Files


def test_every_kind_of_file_gives_the_same_documents(tmp_path: Path) -> None:
    jsonl = lines(tmp_path / "a.jsonl", *ROWS)
    parquet = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), parquet)
    wanted = [Document("Fig", "A fig is sweet."), Document("Lime", "A lime is sour.")]
    assert read_documents(jsonl, {}) == read_documents(parquet, {}) == wanted

    (tmp_path / "texts/more").mkdir(parents=True)
    (tmp_path / "texts/fig.md").write_text("A fig is sweet.")
    (tmp_path / "texts/more/lime.txt").write_bytes(b"\xef\xbb\xbfA lime is s\xffur.")
    (tmp_path / "texts/image.png").write_bytes(b"\x00")
    assert read_documents(tmp_path / "texts", {}) == [
        Document("fig.md", "A fig is sweet."),
        Document("more/lime.txt", "A lime is s\ufffdur."),
    ]


def test_columns_are_found_by_expressions_and_titles_are_made_unique(tmp_path: Path) -> None:
    rows = [
        {"_id": 7, "meta": {"name": "Fig"}, "contents": "sweet"},
        {"_id": 8, "meta": {"name": "fig\n"}, "contents": "dried"},
        {"_id": 9, "meta": {}, "contents": "none"},
        {"_id": 10, "meta": {"name": "long " * 100}, "contents": "long"},
    ]
    columns = {"id": "_id", "title": "meta.name", "text": "contents"}
    found = read_documents(lines(tmp_path / "a.jsonl", *rows), columns)
    assert [document.title for document in found[:3]] == ["Fig", "fig (2)", "9"]
    assert [document.id for document in found] == ["7", "8", "9", "10"]
    assert len(found[3].title) == 200
    (only,) = read_documents(lines(tmp_path / "b.jsonl", {"text": "sweet"}), {})
    assert only.title == "line 1"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": 3}', r"line 2: has no text at 'text' \(its columns"),
        ("a.jsonl", b'{"body": "x"}', r"\(its columns: body\); name the column in corpus_columns"),
        ("a.jsonl", b'{"text": "x"', "line 1: is not JSON"),
        ("a.jsonl", b'["x"]', "line 1: must be an object with a 'text'"),
        ("a.jsonl", b'{"text": "\xff"}', "cannot be read"),
        ("a.jsonl", b"[" * 100_000, "line 1: is not JSON"),
        ("a.jsonl", b"\n", "has no documents"),
        ("a.jsonl", b'{"title": "?", "text": "!"}', "has no words that could be searched for"),
        ("a.parquet", b"PAR1", "cannot be read"),
        ("a.csv", b"text\nx", r"cannot be read; name a \.jsonl or \.parquet file"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        shared_corpus(Source(str(path)))


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    for name in ("none.jsonl", "none"):
        with pytest.raises(DataError, match=r"there is no such file \(in "):
            shared_corpus(Source(str(tmp_path / name)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no documents"):
        shared_corpus(Source(str(tmp_path / "empty")))


# --- Parts and pieces


@given(st.text(alphabet="ab .\n", max_size=400), st.integers(4, 50))
def test_the_parts_of_a_text_are_all_of_it_in_bounds(text: str, most: int) -> None:
    parts = list(divided(text, most))
    assert "".join(text[start:end] for start, end in parts) == text
    assert all(end - start <= most for start, end in parts)
    assert all(end - start > most // 2 for start, end in parts[:-1])


def test_a_long_document_is_found_and_read_by_its_parts() -> None:
    paragraphs = [f"{name} " * 20 for name in ("fig", "lime", "plum")]
    corpus = corpus_of("A short one about a plum.", "\n\n".join(paragraphs), part_characters=130)
    document = corpus.documents[1]
    assert [corpus.read(document, part)[0] for part in (1, 2, 3)] == [p.strip() for p in paragraphs]
    assert corpus.read(document, 1)[1] == 3
    assert [corpus.read(document, part) for part in (0, 4, -1)] == [("", 3)] * 3
    (found,) = corpus.search(["lime"], 5, 40)
    assert (found.document, found.part, found.parts) == (document, 2, 3)
    assert found.snippet.startswith("lime lime") and len(found.snippet) < 50


@given(st.text(max_size=300), st.lists(st.text(max_size=5)), st.integers(8, 60))
def test_a_snippet_is_one_line_of_the_text_in_bounds(text: str, more: list[str], most: int) -> None:
    shown = snippet(text, {*more, *list(words_of(text))[-2:]}, most)
    assert len(shown) <= most + len("...  ...")
    assert shown == " ".join(shown.split())


def test_a_snippet_stands_where_most_of_the_words_are() -> None:
    text = f"fig {'x ' * 100} lime then {'y ' * 100} a fig and a lime {'z ' * 100}"
    assert "fig and a lime" in snippet(text, {"fig", "lime"}, 60)
    assert snippet(text, {"plum"}, 60).startswith("fig x x")


# --- What is found


def test_the_rare_words_of_a_query_decide() -> None:
    corpus = corpus_of("a fig is sweet", "a lime is sour and sweet", "sweet sweet plums")
    assert titles(corpus, "the sweet LIME?")[0] == "Text 1"
    assert titles(corpus, "is a the") == []
    assert titles(corpus, "sweet", limit=1) == ["Text 2"]
    assert titles(corpus, "sweet", limit=0) == []


def test_equally_good_documents_keep_their_order() -> None:
    texts = ["fig lime"] * 50
    corpus = Corpus(Source(), [Document(f"D{i:02}", text) for i, text in enumerate(texts)])
    assert titles(corpus, "fig", 10) == [f"D{i:02}" for i in range(10)]


def test_scores_are_those_of_bm25() -> None:
    """Against the formula of Lucene's BM25 (k1 = 1.5, b = 0.75), written out."""
    import math

    rng = random.Random(0)
    words = [f"w{i}" for i in range(30)]
    texts = [" ".join(rng.choices(words, k=rng.randint(3, 40))) for _ in range(60)]
    corpus = Corpus(Source(), [Document(f"T{i}", text) for i, text in enumerate(texts)])
    split = [[f"t{i}", *text.split()] for i, text in enumerate(texts)]
    mean = sum(map(len, split)) / len(split)

    def score(document: list[str], query: list[str]) -> float:
        total = 0.0
        for word in query:
            having = sum(word in other for other in split)
            idf = math.log(1 + (len(split) - having + 0.5) / (having + 0.5))
            often = document.count(word)
            total += idf * often / (often + 1.5 * (1 - 0.75 + 0.75 * len(document) / mean))
        return total

    for _ in range(30):
        query = rng.sample(words, 3)
        scores = {f"T{i}": score(document, query) for i, document in enumerate(split)}
        found = [scores[title] for title in titles(corpus, " ".join(query), 10)]
        best = sorted(scores.values(), reverse=True)[: len(found)]
        assert found == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Zürich", "zu\u0308rich"),
        ("STRASSE", "Straße"),
        ("東京は日本の首都です", "日本"),
        ("ﬁg", "FIG"),
        ("naïve café", "CAFÉ"),
        ("Ελλάδα", "ΕΛΛΆΔΑ"),
        ("snake_case 3.14", "14"),
    ],
)
def test_words_are_the_same_however_they_are_written(text: str, query: str) -> None:
    assert titles(corpus_of("nothing of it", text), query) == ["Text 1"]


def test_a_query_of_very_many_words_is_searched_for_by_some() -> None:
    corpus = corpus_of(" ".join(f"w{i}" for i in range(500)), "w499")
    assert titles(corpus, " ".join(f"w{i}" for i in range(500))) == ["Text 0"]


# --- Who shares it


def test_a_corpus_is_made_once_in_a_process(tmp_path: Path) -> None:
    source = Source(str(lines(tmp_path / "a.jsonl", *ROWS)))
    made: list[Corpus] = []
    threads = [
        threading.Thread(target=lambda: made.append(shared_corpus(source))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8 and len(set(map(id, made))) == 1
    data = pickle.dumps(made[0])
    assert len(data) < 500 and pickle.loads(data) is made[0]
    assert shared_corpus(Source(source.path, part_characters=100)) is not made[0]


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    import os

    path = lines(tmp_path / "a.jsonl", ROWS[0])
    first = shared_corpus(Source(str(path)))
    lines(path, *ROWS)
    os.utime(path, ns=(1, 1))
    assert len(shared_corpus(Source(str(path))).documents) == 2 > len(first.documents)
