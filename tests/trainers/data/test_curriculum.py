"""A curriculum draws the rows that pass about as often as they fail, and forgets none."""

import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.errors import ConfigError
from gymnast.trainers.data.curriculum import Curriculum, Tried
from gymnast.trainers.data.rows import DatasetRows, SampledRows
from gymnast.trainers.data.settings import CurriculumSettings

ROWS = [{"n": n, "level": n % 3} for n in range(12)]
counts = st.integers(0, 40)
targets = st.floats(0.05, 0.95)


def curriculum(rows: Any = ROWS, most: int = 4, seed: int = 0, **settings: Any) -> Curriculum:
    source = rows if not isinstance(rows, list) else DatasetRows(rows, seed=seed)
    return Curriculum(source, most, CurriculumSettings(**settings), seed=seed)


def pass_of(row: Any) -> list[float]:
    """Rows 0 to 3 never pass, 4 to 7 every second time, 8 to 11 always."""
    return [[0.0] * 8, [0.0, 1.0] * 4, [1.0] * 8][row["n"] // 4]


def play(rows: Curriculum, step: int) -> tuple[list[int], dict[str, float]]:
    """Play all rows of a step; their numbers, and the metrics."""
    offered = rows.offer(step)
    metrics = rows.played({place: pass_of(row) for place, row in enumerate(offered)})
    return [row["n"] for row in offered], metrics


# What is preferred


@given(passes=counts, fails=counts)
def test_the_preference_is_the_expected_variance_of_a_pass(passes: int, fails: int) -> None:
    a, b = 1 + passes, 1 + fails
    expected = a * b / ((a + b) * (a + b + 1))  # E[p (1 - p)] under Beta(a, b)
    known = Tried(1, passes + fails, passes)
    assert math.isclose(known.preference(0.5), expected, rel_tol=1e-9)
    assert math.isclose(known.pass_rate, a / (a + b))


@given(target=targets)
def test_with_many_episodes_the_target_is_preferred(target: float) -> None:
    def preference(pass_rate: float) -> float:
        return Tried(1, 10_000, 10_000 * pass_rate).preference(target)

    assert preference(target) > max(
        preference(target * 0.8), preference(target + 0.2 * (1 - target))
    )


def test_rows_that_pass_sometimes_come_most_often_and_the_others_still_come() -> None:
    rows, drawn = curriculum(), Counter[int]()
    for step in range(200):
        numbers, _ = play(rows, step)
        assert len(set(numbers)) == 4  # none twice within a step
        drawn.update(number // 4 for number in numbers)
    hopeless, useful, solved = (drawn[kind] / 800 for kind in range(3))
    assert useful > 0.5 and hopeless > 0.05 and solved > 0.05


def test_uniform_share_is_how_much_of_the_draws_has_no_preference() -> None:
    rows, drawn = curriculum(most=1, uniform_share=1.0), Counter[int]()
    for step in range(1200):
        numbers, _ = play(rows, step)
        drawn.update(numbers)
    assert set(drawn) == set(range(12)) and max(drawn.values()) < 150


def test_earlier_episodes_count_for_less_each_time() -> None:
    settings = CurriculumSettings(discount=0.5)
    known = Tried().after([0.0] * 8, settings).after([1.0] * 8, settings)
    assert known == Tried(visits=2, episodes=12.0, passes=8.0)
    assert known.after([], settings) == known  # all left out


# What is counted, and what is kept


def test_metrics_say_what_was_expected_and_what_came() -> None:
    rows = curriculum(most=12)
    numbers, metrics = play(rows, 0)
    assert sorted(numbers) == list(range(12))
    assert metrics == {
        "curriculum/pass_estimate": 0.5,
        "curriculum/pass_rate": 0.5,
        "curriculum/rows_tried": 12,
    }
    rows.offer(1)
    assert rows.played({})["curriculum/rows_tried"] == 12


def test_only_rows_that_were_played_are_tried() -> None:
    rows = curriculum(most=6)
    rows.offer(0)
    assert rows.played({0: [1.0], 2: [0.0]})["curriculum/rows_tried"] == 2


@pytest.mark.parametrize("by", [None, "level"])
def test_a_resumed_curriculum_draws_what_it_would_have_drawn(by: str | None) -> None:
    whole, killed = curriculum(by=by), curriculum(by=by)
    numbers = [play(whole, step) for step in range(6)]
    assert [play(killed, step) for step in range(3)] == numbers[:3]
    state = json.loads(json.dumps(killed.state_dict()))
    killed.offer(3)  # and then it was killed
    resumed = curriculum(by=by)
    resumed.load_state_dict(state)
    assert [play(resumed, step) for step in range(3, 6)] == numbers[3:]


def test_a_row_is_known_by_its_content_and_not_by_its_place() -> None:
    before, after = curriculum(most=12), curriculum(ROWS[::-1], most=12)
    play(before, 0)
    after.load_state_dict(before.state_dict())
    _, metrics = play(after, 1)
    assert metrics["curriculum/rows_tried"] == 12


def test_what_was_known_by_another_column_is_forgotten() -> None:
    before, after = curriculum(), curriculum(by="level")
    play(before, 0)
    after.load_state_dict(before.state_dict())
    assert after.state_dict()["tried"] == {}


def test_another_seed_draws_other_rows() -> None:
    assert play(curriculum(seed=0), 0) != play(curriculum(seed=1), 0)


def test_a_dataset_with_fewer_rows_than_a_step_is_drawn_several_times() -> None:
    numbers, metrics = play(curriculum(ROWS[:3], most=7), 0)
    assert sorted(Counter(numbers).values()) == [2, 2, 3]
    assert metrics["curriculum/rows_tried"] == 3


def test_evaluation_rows_are_never_drawn() -> None:
    rows = curriculum(DatasetRows(ROWS, seed=0, excluded=ROWS[::2]), most=6)
    for step in range(20):
        assert all(number % 2 for number in play(rows, step)[0])


# By a column


def test_rows_made_without_end_are_chosen_by_a_column() -> None:
    source = SampledRows(lambda rng: {"n": int(rng.integers(12)), "u": rng.random()}, seed=0)
    rows, drawn, seen = curriculum(source, by="n"), Counter[int](), set[float]()
    for step in range(100):
        offered = rows.offer(step)
        seen.update(row["u"] for row in offered)
        rows.played({place: pass_of(row) for place, row in enumerate(offered)})
        if step >= 20:
            drawn.update(row["n"] // 4 for row in offered)
    assert len(seen) == 400  # each row is new
    assert drawn[1] > max(drawn[0], drawn[2]) * 1.5


def test_rows_made_without_end_need_a_column() -> None:
    with pytest.raises(ConfigError, match=r"curriculum\.by: is required where the environment"):
        curriculum(SampledRows(lambda rng: {"n": 0}, seed=0))


def test_a_column_that_no_row_has_is_named_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"got leve \(the columns: level, n\); did you mean level"
    ):
        curriculum(by="leve")


def test_an_expression_that_cannot_be_applied_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be applied to a row"):
        curriculum(by="length(n)")
