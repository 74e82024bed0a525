"""Where a step's time went, from its metrics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.reporting.live.time_split import Part, cells, time_split

STEP = {
    "time/rollout_s": 6.0,
    "time/train_s": 4.0,
    "time/model_s": 15.0,
    "time/waiting_s": 3.0,
    "time/environment_s": 12.0,
    "time/environment/tools_s": 9.0,
}


def test_the_rollouts_are_divided_as_their_mean_episode_is() -> None:
    shares = {part.kind: part.share for part in time_split(STEP)}
    assert shares == pytest.approx(
        {"model": 0.3, "tools": 0.18, "environment": 0.06, "waiting": 0.06, "training": 0.4}
    )
    assert list(shares) == ["model", "tools", "environment", "waiting", "training"]


def test_a_warm_up_plays_without_the_policy() -> None:
    parts = time_split({"time/rollout_s": 1.0, "time/train_s": 3.0})
    assert parts == [Part("environment", 0.25), Part("training", 0.75)]


@pytest.mark.parametrize("metrics", [{}, {"time/train_s": 0.0, "time/rollout_s": 0.0}])
def test_what_was_not_measured_is_not_divided(metrics: dict[str, float]) -> None:
    assert time_split(metrics) == []


@given(seconds=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=5), width=st.integers(0, 200))
def test_a_bar_is_as_wide_as_asked_for(seconds: list[float], width: int) -> None:
    parts = [Part(str(i), each / sum(seconds)) for i, each in enumerate(seconds)]
    counts = cells(parts, width)
    assert sum(counts) == width
    assert all(
        abs(count - part.share * width) <= 1 for part, count in zip(parts, counts, strict=True)
    )
