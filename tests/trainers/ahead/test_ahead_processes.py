"""Two real processes play ahead: each its own rows, and both learn from the same groups."""

from pathlib import Path

import pytest

from process_runs import Found, in_two_processes

SCRIPT = Path(__file__).parents[1] / "ahead_processes.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What both processes found in every scenario."""
    return in_two_processes(SCRIPT, tmp_path_factory.mktemp("ahead"), longest_s=300)


PLAYED = ["plain", "plain_by_trained", "adapters_by_trained", "divided", "divided_by_trained"]


@pytest.mark.parametrize("name", PLAYED)
def test_both_learn_from_the_same_groups_however_slow_one_is(found: Found, name: str) -> None:
    here, there = (process[name] for process in found)
    # On a busy machine a group may outgrow the bound: it is given up, and another replaces it.
    assert [[size for size in step if size] for step in here["sizes"]] == [[4, 4, 4]] * 5
    assert here["weights"] == there["weights"]
    assert [step["staleness/max"] for step in here["steps"]] == [0, 1, 2, 2, 2]
    assert [step["staleness/groups_under_way"] for step in here["steps"]] == [6, 6, 6, 3, 0]


def test_both_know_which_rows_are_settled(found: Found) -> None:
    for name in ("plain", "plain_by_trained"):
        here, there = (process[name]["settled"] for process in found)
        assert here == there == {"first": 15, "beyond": []}


def test_there_may_be_fewer_rows_than_processes(found: Found) -> None:
    few = found[0]["fewer_rows_than_processes"]
    assert few["sizes"] == [[4]] * 5
    assert few["weights"] == found[1]["fewer_rows_than_processes"]["weights"]


def test_an_error_in_one_ends_both(found: Found) -> None:
    for process in found:
        for name in ("typo_in_one", "typo_in_one_by_trained"):
            assert process[name]["error"] == "UserCodeError"
            assert "anwser" in process[name]["message"]


def test_a_run_that_one_of_them_stopped_goes_on_without_losing_a_row(found: Found) -> None:
    here, there = (process["interrupted_in_one"] for process in found)
    assert {here["stopped_by"], there["stopped_by"]} == {"Ctrl-C", "another process"}
    assert 0 < here["stopped_after"] == there["stopped_after"] < 5
    assert sorted(row for rows in here["rows"] for row in rows) == list(range(15))
    assert here["settled"] == there["settled"] == {"first": 15, "beyond": []}
    assert here["weights"] == there["weights"]
