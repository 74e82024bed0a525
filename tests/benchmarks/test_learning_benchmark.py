"""The learning benchmark scores TRL's episodes as Gymnast's, and reads curves as it says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import learning
from gymnast.envs.builtin.arithmetic import Arithmetic
from learning_job import Curve, Step
from learning_report import table, targets
from learning_trl import Rescore

ROW = {"prompt": "What is 3 plus 4?", "a": 3, "b": 4, "operation": "add", "answer": 7}


def curve(rewards: Sequence[float], step_s: float = 10.0) -> Curve:
    steps = [Step(r, step_s * (n + 1), step_s * (n + 1) / 2) for n, r in enumerate(rewards)]
    return Curve(0.25, 0.95, tuple(steps))


def said(content: str, call: tuple[str, dict[str, int]] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if call is not None:
        function = {"name": call[0], "arguments": call[1]}
        message["tool_calls"] = [{"type": "function", "function": function}]
    return message


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ([said("", ("add", {"a": 3, "b": 4})), {"role": "tool"}, said("It is 7.")], 1.0),
        ([said("", ("add", {"a": 3, "b": 4})), {"role": "tool"}, said("It is 8.")], 0.6),
        ([said("", ("add", {"a": 3, "b": 4}))], 0.6),  # no room for the result
        ([said("", ("add", {"a": 3, "b": 5})), {"role": "tool"}, said("")], 0.2),
        ([said("", ("subtract", {"a": 3, "b": 4})), {"role": "tool"}, said("No.")], 0.0),
        ([said("The answer is 7.")], 1.0),
        ([said('<tool_call>\n{"name": "add"')], 0.0),
    ],
)
def test_a_completion_of_trl_gets_the_environments_own_reward(
    completion: list[dict[str, Any]], reward: float
) -> None:
    rescore = Rescore(lambda: Arithmetic(max_turns=4))
    assert rescore([completion, completion], [ROW, ROW]) == [reward, reward]


def test_a_level_is_reached_by_the_mean_of_three_steps() -> None:
    found = curve([0.0, 1.0, 0.8, 0.8, 1.0, 0.9]).reached(0.9)
    assert found == Step(0.9, 60.0, 30.0)
    assert curve([1.0, 1.0]).reached(0.9) is None
    assert curve([1.0, 0.0, 1.0]).reached(0.9) is None


def test_a_saved_curve_is_read_back(tmp_path: Path) -> None:
    curve([0.1, 0.2]).save(tmp_path / "made" / "grpo-0.json")
    assert Curve.load(tmp_path / "made" / "grpo-0.json") == curve([0.1, 0.2])


def test_only_runs_of_one_seed_are_compared() -> None:
    curves = {
        "grpo-0": curve([0.9] * 3, step_s=10.0),
        "rloo-0": curve([0.9] * 3, step_s=1.0),
        "trl-0": curve([0.5, 0.9, 0.9, 0.9], step_s=25.0),
        "trl-1": curve([0.9] * 3),
    }
    measured = [target.measured for target in targets(curves)]
    assert measured == [pytest.approx(30 / 100), pytest.approx(15 / 50)]
    assert "trl-1" in table(curves)


@pytest.mark.slow
@pytest.mark.network
def test_both_sides_run_in_small(tmp_path: Path) -> None:
    learning.main(["--quick", "--only", "grpo-0", "trl-0", "--output", str(tmp_path)])
    for name in ("grpo-0", "trl-0"):
        assert len(Curve.load(tmp_path / f"{name}.json").steps) == 2
