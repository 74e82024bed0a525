"""When opening may be tried again: pauses that grow, one at a time, and all at once when well."""

from hypothesis import given
from hypothesis import strategies as st

from gymnast.sandboxes.pool.breaker import GIVES_UP_AFTER_S, LONGEST_PAUSE_S, OPENS_AFTER, Breaker


def test_the_first_try_is_alone_and_then_any_number_may() -> None:
    breaker = Breaker()
    assert breaker.pause_s(0.0, 0) == 0.0
    assert breaker.pause_s(0.0, 1) is None
    breaker.succeeded()
    assert breaker.pause_s(0.0, 9) == 0.0


def test_a_failure_makes_pauses_and_a_success_ends_them() -> None:
    breaker = Breaker()
    breaker.succeeded()
    breaker.failed(10.0, "lost")
    pause = breaker.pause_s(10.0, 0)
    assert pause is not None and pause > 0
    assert breaker.pause_s(10.0 + pause, 0) == 0.0
    assert breaker.pause_s(10.0 + pause, 1) is None
    assert breaker.reason == "lost"
    breaker.succeeded()
    assert breaker.pause_s(10.0, 9) == 0.0
    assert breaker.reason is None


@given(st.integers(1, 2000))
def test_pauses_are_bounded_however_often_it_fails(failures: int) -> None:
    breaker = Breaker()
    for _ in range(failures):
        breaker.failed(0.0, "lost")
    pause = breaker.pause_s(0.0, 0)
    assert pause is not None and 0 < pause <= LONGEST_PAUSE_S
    assert breaker.is_open == (failures >= OPENS_AFTER)


def test_what_has_never_worked_is_given_up_and_what_has_is_waited_for() -> None:
    never, once = Breaker(), Breaker()
    once.succeeded()
    for breaker in (never, once):
        assert not breaker.gives_up(1e6)
        breaker.failed(100.0, "lost")
        breaker.failed(101.0, "lost")
        assert not breaker.gives_up(101.0)
    assert never.gives_up(100.0 + GIVES_UP_AFTER_S)
    assert not once.gives_up(1e6)
