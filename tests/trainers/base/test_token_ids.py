"""Lists of token ids hold what they were made from, and share their numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.base.token_ids import shared_ids


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**18)))
def test_the_ids_stay_what_they_are(ids: list[int]) -> None:
    for given_ids in (ids, np.array(ids, dtype=np.int64)):
        made = shared_ids(given_ids)
        assert made == ids
        assert all(type(number) is int for number in made)


def test_equal_ids_of_two_lists_are_one_object() -> None:
    first, second = shared_ids([151_643, 300]), shared_ids(np.array([7, 151_643, 1_000_000]))
    assert first[0] is second[1]
    assert shared_ids([1_000_000])[0] is second[2]
    assert shared_ids([300])[0] is first[1]


def test_what_is_no_whole_number_is_refused() -> None:
    with pytest.raises((TypeError, ValueError)):
        shared_ids([None])  # type: ignore[list-item]
