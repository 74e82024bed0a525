"""Steps that play more or fewer rows than they are offered lose no row and repeat none."""

import json
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.data.cursor import CursorRows, StepRows
from gymnast.trainers.data.rows import DatasetRows, Row, RowSource


class Counting(RowSource):
    """Row n is n."""

    def row(self, position: int) -> Row:
        return {"n": position}


def numbers(rows: list[Row]) -> list[int]:
    return [row["n"] for row in rows]


def as_played(*places: int) -> Mapping[int, list[float]]:
    return {place: [0.0] for place in places}


@given(st.data())
def test_every_row_is_played_once_and_the_lowest_are_offered_first(data: st.DataObject) -> None:
    cursor, played = CursorRows(Counting(), 5, 3), list[int]()
    for step in range(data.draw(st.integers(1, 8))):
        cursor.most = data.draw(st.integers(1, 7))  # may be set anew when a run is resumed
        offered = numbers(cursor.offer(step))
        assert offered == numbers(cursor.offer(step))  # asked again, after an interruption
        unplayed = (n for n in range(1000) if n not in played)
        assert offered == [next(unplayed) for _ in range(cursor.most)]
        places = data.draw(st.sets(st.integers(0, cursor.most - 1)))
        cursor.played(as_played(*places))
        played += [offered[place] for place in sorted(places)]
        state = json.loads(json.dumps(cursor.state_dict()))
        cursor = CursorRows(Counting(), 5, 3)  # a resumed run
        cursor.load_state_dict(state)
    assert len(set(played)) == len(played)


def test_rows_go_on_after_those_of_steps_without_dynamic_sampling() -> None:
    """A run of three rows a step that gets dynamic sampling when it is resumed at step 4."""
    assert numbers(CursorRows(Counting(), 5, 3).offer(4)) == [12, 13, 14, 15, 16]


def test_without_dynamic_sampling_a_step_has_the_rows_that_its_number_says() -> None:
    source = DatasetRows([{"n": n} for n in range(7)], seed=1)
    rows = StepRows(source, 3)
    assert [rows.offer(step) for step in (0, 5)] == [source.batch(0, 3), source.batch(5, 3)]
    assert rows.played(as_played(0, 1)) == {} and rows.parts == {}
    assert rows.offer(1) == source.batch(1, 3)
