"""The text of results: strings as they are, JSON for the rest, the middle cut out of long ones."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gymnast.envs.records.messages import encodable
from gymnast.envs.tools.results import cut_middle, written


@dataclass
class City:
    name: str
    people: int


class Reply(BaseModel):
    cities: list[City]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain 'text'", "plain 'text'"),
        (None, "null"),
        (True, "true"),
        ({"a": 1, "b": [1.5, None]}, '{"a": 1, "b": [1.5, null]}'),
        (("x", 1), '["x", 1]'),
        ("Zürich", "Zürich"),
        (["Zürich"], '["Zürich"]'),
        (City("Bern", 3), '{"name": "Bern", "people": 3}'),
        (Reply(cities=[City("Bern", 3)]), '{"cities": [{"name": "Bern", "people": 3}]}'),
        (np.int64(3), "3"),
        (np.arange(3), "[0, 1, 2]"),
        ({3}, "[3]"),
        ([float("nan"), -float("inf"), "NaN"], '["NaN", "-Infinity", "NaN"]'),
        (["a\ud800"], '["a\N{REPLACEMENT CHARACTER}"]'),
    ],
)
def test_results_are_text_or_json_never_python(value: Any, text: str) -> None:
    found = written(value)
    assert found.text == text
    assert found.value == (text if isinstance(value, str) else json.loads(text))


@pytest.mark.parametrize("value", [object(), {"a": object()}, lambda: None])
def test_what_json_cannot_express_is_an_error_not_a_repr(value: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be written as JSON\. A tool returns a string, or"):
        written(value)


def test_numbers_too_long_and_circles_raise() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in (10**5000, circle):
        with pytest.raises(TypeError, match=r"a result of type (int|list) cannot be written"):
            written(value)


class Closed(Mapping[str, int]):
    """As a file's entries once the file is closed."""

    def __getitem__(self, key: str) -> int:
        raise RuntimeError("the file is closed")

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1


def test_a_result_that_raises_when_it_is_read_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"a result of type .*Closed cannot be written as JSON: the"
    ):
        written(Closed())


@dataclass
class File:
    name: str
    data: Any


class Image:
    """As PIL's: known by its module."""

    __module__ = "PIL.Image"


class Part(BaseModel):
    type: str
    data: str
    mimeType: str


@pytest.mark.parametrize(
    "value",
    [
        b"text",
        b"\xff\xd8",
        bytearray(b"a"),
        [memoryview(b"a")],
        {"file": File("a.png", b"a")},
    ],
)
def test_bytes_are_refused_with_the_way_out_whatever_they_hold(value: Any) -> None:
    with pytest.raises(TypeError, match=r"holds bytes.*data\.decode\(\).*save it to a file"):
        written(value)


class Blob(BaseModel, ser_json_bytes="base64"):
    data: bytes


def test_a_pydantic_model_says_itself_how_its_bytes_are_written() -> None:
    assert written({"file": Blob(data=b"\xff")}).text == '{"file": {"data": "_w=="}}'


@pytest.mark.parametrize(
    "value",
    [
        Image(),
        {"seen": Image()},
        np.zeros((8, 9, 3), dtype=np.uint8),
        [np.zeros((1, 8, 9), dtype=np.uint8)],
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        [
            {"type": "text", "text": "Here."},
            {"type": "image", "data": "A", "mimeType": "image/png"},
        ],
        {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
        {"type": "resource", "resource": {"blob": "AAAA", "mimeType": "image/png"}},
        [Part(type="audio", data="AAAA", mimeType="audio/wav")],
    ],
)
def test_images_and_sounds_are_refused_with_the_way_out(value: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot read\. A tool returns.*save it to a file"):
        written(value)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "image", "name": "cat.png", "url": "https://example.org/cat.png"},
        {"type": "image", "source": "a museum"},
        {"type": "image", "source": {"src": "cat.png"}, "alt": "A cat."},
        {"name": "notes.txt", "mimeType": "text/plain", "data": "Buy milk."},
        {"mimeType": "application/ld+json", "data": {"a": 1}},
        {"data": "a", "type": "text"},
        np.zeros((2, 2, 3)).tolist(),
        np.zeros((2, 2), dtype=np.uint8).tolist(),
    ],
)
def test_data_that_speaks_of_images_is_no_image(value: Any) -> None:
    assert json.loads(written(value).text) == value


def test_a_result_stays_as_it_was_written() -> None:
    basket = {"fruits": ["apple"], "prices": (1, 2)}
    found = written(basket)
    basket["fruits"].append("pear")  # type: ignore[attr-defined]
    assert found.value == {"fruits": ["apple"], "prices": [1, 2]}


@given(st.text(st.characters(codec=None)))
def test_text_is_always_encodable(text: str) -> None:
    encodable(text).encode()
    encodable({"key": [text]})["key"][0].encode()
    if text.isascii():
        assert encodable(text) == text


def test_deep_nesting_is_recorded_as_such() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert len(json.dumps(encodable(deep))) < 100_000


@given(st.text(), st.integers(10, 60))
def test_a_long_result_keeps_its_head_and_tail_within_the_limit(text: str, limit: int) -> None:
    def encode(part: str) -> list[str]:
        return list(part)  # one token a character

    cut = cut_middle(text, limit, encode)
    if len(text) <= limit:
        assert cut == text
        return
    note = cut[cut.index("[... ") : cut.index(" left out ...]") + len(" left out ...]")]
    assert len(cut) <= max(limit, len(note))
    head, tail = cut.split(note)
    assert text.startswith(head[:-1]) and text.endswith(tail[1:])
    assert len(head) == len(tail)


def test_a_huge_result_is_not_tokenized_whole() -> None:
    seen = []

    def encode(part: str) -> list[str]:
        seen.append(len(part))
        return part.split()

    cut = cut_middle("word " * 1_000_000, 20, encode)
    assert len(cut.split()) <= 20 and "characters left out" in cut
    assert max(seen) < 10_000
