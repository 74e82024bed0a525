"""The numbers of an evaluation and their names, and how they are read back and shown."""

import io
import re
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from gymnast.errors import ConfigError
from gymnast.trainers.evaluation.metrics import (
    check_environment_name,
    ks,
    measure,
    measure_environment,
    scopes,
)
from gymnast.trainers.reporting.console import RunConsole
from gymnast.trainers.reporting.table import aligned, headline, summary_cells
from gymnast.types import Span, StopReason, Trajectory


def played(*rewards: float) -> list[Trajectory]:
    return [
        Trajectory(
            ids=[1, 2],
            action_mask=[0, 1],
            logprobs=[0.0, -1.0],
            prompt_length=1,
            turns=[Span(1, 2)],
            turn_rewards=[reward],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )
        for reward in rewards
    ]


GROUPS = [played(1, 0, 0, 1), played(0, 0, 0, 0), played(1, 1, 1, 1), played(0.5, 0, 1, 0)]
ROWS: Sequence[dict[str, Any]] = [{"level": level} for level in ("easy", "hard", "easy", "hard")]


def evaluated() -> dict[str, float]:
    """Metrics as a whole evaluation has them, with a further environment."""
    own = measure_environment(ROWS, GROUPS, 4, 1.0, {"level": "level"})
    other = measure_environment(ROWS[:2], GROUPS[:2], 4, 1.0, {"level": "level"})
    return {f"eval/{k}": v for k, v in own.items()} | {
        f"eval/large/{k}": v for k, v in other.items()
    }


@pytest.mark.parametrize(
    ("group_size", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_k_is_each_power_of_two_and_the_group_size(group_size: int, expected: list[int]) -> None:
    assert ks(group_size) == expected


def test_the_numbers_of_four_rows_by_hand() -> None:
    metrics = measure(GROUPS, 4, 1.0)
    assert (metrics["rows"], metrics["episodes/finished"]) == (4, 16)
    assert metrics["reward/mean"] == pytest.approx((2 + 0 + 4 + 1.5) / 16)
    assert metrics["pass@1"] == pytest.approx((2 + 0 + 4 + 1) / 16)
    assert metrics["pass@2"] == pytest.approx((5 / 6 + 0 + 1 + 1 / 2) / 4)
    assert metrics["pass@4"] == pytest.approx(3 / 4)
    for name in ("pass@1", "pass@2", "pass@4"):
        assert 0 <= metrics[f"{name}/low"] < metrics[name] < metrics[f"{name}/high"] <= 1
    assert metrics["reward/low"] < metrics["reward/mean"] < metrics["reward/high"]
    assert not any("left_out" in name for name in metrics)


def test_the_reward_that_passes_may_be_another() -> None:
    assert measure(GROUPS, 4, 0.5)["pass@1"] == pytest.approx((2 + 0 + 4 + 2) / 16)
    assert measure(GROUPS, 4, 0.0)["pass@1"] == 1
    assert measure(GROUPS, 4, 1.5)["pass@4"] == 0


def test_a_row_with_fewer_than_k_finished_episodes_is_left_out_of_pass_at_k_and_counted() -> None:
    metrics = measure([played(1, 0), played(1), played(0, 0), played()], 2, 1.0)
    assert (metrics["rows"], metrics["episodes/finished"]) == (3, 5)
    assert metrics["pass@1"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert metrics["pass@1/rows_left_out"] == 1
    assert metrics["pass@2"] == pytest.approx((1 + 0) / 2)
    assert metrics["pass@2/rows_left_out"] == 2


def test_where_no_row_has_k_episodes_there_is_no_pass_at_k() -> None:
    metrics = measure([played(1), played(0)], 2, 1.0)
    assert "pass@2" not in metrics and metrics["pass@2/rows_left_out"] == 2
    assert measure([played(), played()], 2, 1.0) == {"rows": 0, "episodes/finished": 0}


def test_one_row_has_numbers_and_no_intervals() -> None:
    metrics = measure(GROUPS[:1], 4, 1.0)
    assert metrics["pass@2"] == pytest.approx(5 / 6)
    assert not [name for name in metrics if name.endswith(("/low", "/high"))]


def test_each_division_has_the_numbers_of_its_rows_alone() -> None:
    metrics = measure_environment(ROWS, GROUPS, 4, 1.0, {"level": "level"})
    for value, places in (("easy", (0, 2)), ("hard", (1, 3))):
        alone = measure([GROUPS[place] for place in places], 4, 1.0)
        prefix = f"by/level={value}/"
        found = {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
        assert found == alone
    assert metrics["by/level=easy/reward/mean"] == 0.75


def test_scopes_are_read_back_as_they_were_written() -> None:
    found = {scope.name: scope for scope in scopes(evaluated())}
    names = ["", "by/level=easy", "by/level=hard", "large", "large/by/level=easy"]
    assert list(found) == [*names, "large/by/level=hard"]
    assert sorted(found["by/level=hard"].passes) == [1, 2, 4]
    own = measure(GROUPS, 4, 1.0)
    assert found[""].rows == 4
    assert found[""].reward == (own["reward/mean"], own["reward/low"], own["reward/high"])
    assert found[""].passes[2] == (own["pass@2"], own["pass@2/low"], own["pass@2/high"])
    assert found["large/by/level=hard"].reward == (0.0, None, None)


@pytest.mark.parametrize("name", ["reward", "by", "x/y", "", "a b", "pass@1", "rows"])
def test_an_environment_is_not_called_as_a_metric_is(name: str) -> None:
    check_environment_name("large-2.x", "evaluation.environments")
    with pytest.raises(ConfigError, match=r"evaluation.environments: a name must consist of"):
        check_environment_name(name, "evaluation.environments")


@pytest.mark.parametrize("name", ["warmup", "warmup_exam"])
def test_an_environment_is_not_called_as_files_of_a_warm_up_are(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"must not begin with warmup, got '{name}': so do the"):
        check_environment_name(name, "evaluation.environments")


# What people see


def test_the_line_has_the_interval_and_the_first_and_last_pass_at_k() -> None:
    # The rows' means are 0.5, 0, 1 and 0.375: 0.469 -+ 3.182 sqrt(0.1706 / 4).
    whole = "reward 0.469 [-0.188, 1.126]  std 0.483  pass@1 0.438  pass@4 0.750"
    assert headline(evaluated()) == whole
    single = measure([played(1), played(0)], 1, 1.0)
    assert "pass@" not in headline({f"eval/{k}": v for k, v in single.items()})
    assert headline({}) == "reward -  std -"


def test_the_table_has_a_line_for_each_scope_in_aligned_columns() -> None:
    lines = aligned(summary_cells(evaluated()))
    assert lines[0].split() == ["95%", "intervals", "rows", "reward", "pass@1", "pass@2", "pass@4"]
    names = ["all rows", "level=easy", "level=hard", "large", "large level=easy"]
    assert [line[:16].strip() for line in lines[1:]] == [*names, "large level=hard"]
    for name in ("reward", "pass@1", "pass@4"):
        column = lines[0].index(name)
        assert all(re.match(r"\d\.\d{3}", line[column:]) for line in lines[1:])
    assert summary_cells({"eval/reward/mean": 0.5}) == []


def shown(terminal: bool, steps: int, metrics: dict[str, float]) -> str:
    stream = io.StringIO()
    console = RunConsole(Console(file=stream, force_terminal=terminal, width=100))
    if steps:
        console.on_start({"steps": steps})
    console.on_evaluation(0, metrics, [])
    console.close()
    return stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_an_evaluation_alone_shows_its_table_and_training_only_one_with_parts(
    terminal: bool,
) -> None:
    whole = evaluated()
    single = {k: v for k, v in whole.items() if "/by/" not in k and "/large/" not in k}
    assert "all rows" in shown(terminal, 0, single)
    assert "all rows" not in shown(terminal, 3, single)
    assert "large level=hard" in shown(terminal, 3, whole)


def test_a_tags_value_does_not_steer_the_terminal() -> None:
    metrics = measure_environment([{"t": "[bold]x"}] * 2, GROUPS[:2], 4, 1.0, {"t": "t"})
    assert "t=_bold_x" in shown(True, 0, {f"eval/{k}": v for k, v in metrics.items()})
