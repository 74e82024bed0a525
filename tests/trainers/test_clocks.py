"""Which metrics a clock measures."""

import pytest

from clocks import is_clock, without_clocks


@pytest.mark.parametrize(
    "name",
    [
        "time/step_s",
        "time/environment/setup_s",
        "time/tool/search_s",
        "tokens/per_s",
        "tokens/trained_per_s",
        "perf/mfu",
        "perf/waiting_share",
        "eval/time/episode_s",
        "eval/tokens/per_s",
        "eval/environment/maths/time/model_s",
    ],
)
def test_a_clock_is_known_by_its_name(name: str) -> None:
    assert is_clock(name)


@pytest.mark.parametrize(
    "name",
    [
        "step",
        "loss",
        "episodes/turns",
        "tools/calls/time",
        "tools/calls/get_s",
        "time",
        "eval/x",
        "x/perf",
    ],
)
def test_everything_else_is_no_clock(name: str) -> None:
    assert not is_clock(name)


def test_clocks_are_left_out() -> None:
    assert without_clocks({"step": 1, "time/step_s": 0.5, "loss": 2.0}) == {"step": 1, "loss": 2.0}
