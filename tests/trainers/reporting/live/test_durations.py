"""How long a run is still going to take: by its last steps, and what lies between steps."""

import pytest

from gymnast.trainers.reporting.live.durations import Pace, duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01")]
)
def test_durations_are_shown_in_minutes_or_hours(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_before_the_first_step_nothing_is_known() -> None:
    assert Pace().left_s(10, 5.0) is None


def test_the_last_steps_say_how_long_the_next_ones_take() -> None:
    pace, now = Pace(), 0.0
    for step_s in (100.0, 10.0, 10.0, 10.0, 10.0, 10.0):
        now += step_s
        pace.count(step_s, now)
    assert pace.left_s(4, now) == 40.0
    assert pace.left_s(4, now + 15.0) == 25.0, "it runs down while a step goes on"
    assert pace.left_s(4, now + 1000.0) == 0.0


def test_evaluations_between_steps_are_divided_over_the_steps() -> None:
    pace, now = Pace(), 0.0
    for step in range(6):
        now += 10.0
        pace.count(10.0, now)
        now += 24.0 if step in (1, 3) else 0.0
    assert pace.left_s(4, now) == pytest.approx(4 * (10.0 + 48.0 / 6))
