"""The texts between tests and graded code: plain values, exactly, and nothing else."""

import math
from collections import Counter, OrderedDict, deque
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.builtin.code.judging import wire

HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=10,
)


def same(first: Any, second: Any) -> bool:
    """Equal, and of one type all the way down."""
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return same(list(first.items()), list(second.items()))
    return bool(first == second)


@given(VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    text = wire.encode(value)
    assert text.isascii() and "\n" not in text
    assert same(wire.decode(text), value)


@given(st.text() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner),
).map(repr))  # fmt: skip
def test_any_other_text_is_refused_and_runs_nothing(text: str) -> None:
    try:
        value = wire.decode(text)
    except wire.WireError:
        return
    assert same(wire.decode(wire.encode(value)), value)


@pytest.mark.parametrize(
    "text",
    ["", "1", "{}", "[]", '["nothing"]', '["int"]', '["int", 5]', '["set", ["list"]]', "[[1]]",
     '["dict", [1]]', '["float", "x"]', '["bytes", "zz"]', '["range", "1", "2", "0"]',
     '["list"' + ',["list"' * 100_000, "[" * 100_000],
)  # fmt: skip
def test_texts_that_are_no_value(text: str) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(text)


def test_special_numbers() -> None:
    assert math.isnan(wire.decode(wire.encode(math.nan)))
    assert wire.decode(wire.encode([math.inf, -math.inf, 10**5000])) == [
        math.inf, -math.inf, 10**5000,
    ]  # fmt: skip


class Point(NamedTuple):
    x: int
    y: int


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (Liar(3), 3),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (Point(1, 2), (1, 2)),
    ],
)
def test_subclasses_become_the_plain_type(given: Any, plain: Any) -> None:
    found = wire.decode(wire.encode(given))
    assert type(found) is type(plain) and found == plain


def test_pythons_own_types_pass() -> None:
    assert wire.decode(wire.encode([int, str])) == [int, str]
    with pytest.raises(wire.NotPlain):
        wire.encode(Point)


def test_an_iterator_stays_one_and_a_deque_too() -> None:
    found = wire.decode(wire.encode(n * n for n in range(3)))
    assert found != [0, 1, 4] and list(found) == [0, 1, 4]
    assert wire.decode(wire.encode(deque([1, 2]))) == deque([1, 2])


def test_what_cannot_be_sent() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (
        object(),
        len,
        [object()],
        endless,
        iter(int, 1),
        "x" * (wire.MAX_CHARACTERS + 1),
    ):
        with pytest.raises(wire.WireError):
            wire.encode(value)


def test_of_another_object_only_its_truth_passes() -> None:
    found = wire.decode(wire.opaque(object()))
    assert bool(found) and found != wire.decode(wire.opaque(object()))


def test_a_range_that_would_fill_the_memory_as_a_list_is_no_value() -> None:
    assert wire.decode(wire.encode(range(3, 99, 2))) == range(3, 99, 2)
    for large in (range(10**9), range(10**30), range(0, -(10**9), -1)):
        with pytest.raises(wire.WireError, match="range has more than"):
            wire.decode(wire.encode(large))
