"""The list of near misses is what its mutations make, and can be read."""

import pytest

from near_miss_list import entries, made


@pytest.mark.slow
def test_the_made_part_is_what_the_mutations_make() -> None:
    listed: dict[str, dict[str, str]] = {}
    for entry in entries():
        if not entry.by_hand:
            listed.setdefault(entry.family, {})[entry.deviation] = entry.text
    assert listed == made(), "run: python benchmarks/near_miss_list.py"


def test_every_entry_is_a_text_of_its_own() -> None:
    listed = entries()
    assert len({(entry.family, entry.text) for entry in listed}) == len(listed)
    assert all(entry.text.strip() and entry.deviation for entry in listed)
