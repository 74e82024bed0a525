"""Rows that are played ahead: none is lost, and none is settled twice, whatever ends when."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.ahead.rows import RowsAt, Settled
from gymnast.trainers.data.rows import DatasetRows


@given(st.integers(1, 5), st.integers(1, 3), st.data())
def test_a_resumed_run_goes_on_with_what_is_not_settled_the_earliest_first(
    rows_per_step: int, processes: int, data: st.DataObject
) -> None:
    settled, done = Settled(), set[int]()
    settled.begin(0)
    for _ in range(4):
        again = Settled()
        again.load_state_dict(settled.state_dict())
        begun = list[int]()
        for process in range(min(processes, rows_per_step)):  # the others have no rows
            own = list(islice(again.left(rows_per_step, process, processes), 2 * rows_per_step))
            assert own == sorted(own)
            begun += own
        assert not done & set(begun)
        assert len(set(begun)) == len(begun)  # each position is one process's
        assert min(begun) == min(set(range(len(done) + 1)) - done)
        taken = data.draw(st.sets(st.sampled_from(begun), min_size=1))
        again.settle(taken)
        done |= taken
        settled = again
        assert settled.first not in done and set(range(settled.first or 0)) <= done


def test_a_run_that_begins_to_play_ahead_goes_on_after_the_steps_that_were_taken() -> None:
    settled = Settled()
    settled.load_state_dict(settled.state_dict())  # of a run that took no step yet
    settled.begin(6)
    settled.begin(0)
    assert list(islice(settled.left(3, 1, 2), 3)) == [7, 10, 13]


def test_rows_are_those_of_the_source_by_position() -> None:
    source = DatasetRows([{"n": n} for n in range(4)], seed=0)
    assert [RowsAt(source)[n] for n in range(9)] == [source.row(n) for n in range(9)]
