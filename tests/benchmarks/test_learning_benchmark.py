"""The learning benchmark scores TRL's episodes as Gymnast's, and reads curves as it says."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import learning
from gymnast.envs import Environment, make
from gymnast.envs.builtin.arithmetic import Arithmetic
from gymnast.trainers import load_config
from gymnast.types import Span, StopReason, Trajectory
from learning_curve import Curve, Evaluation, Step
from learning_gymnast import Solutions, Watch
from learning_jobs import DEFAULT, JOBS, ROOT
from learning_report import PANELS, points, tables, targets
from learning_trl import Rescore

ROW = {"prompt": "What is 3 plus 4?", "a": 3, "b": 4, "operation": "add", "answer": 7}


def curve(rewards: Sequence[float | None], step_s: float = 10.0) -> Curve:
    steps = [
        Step(reward, step_s * n, step_s * n / 2, 100 * n) for n, reward in enumerate(rewards, 1)
    ]
    last = steps[-1]
    evaluations = (
        Evaluation(0, 0.0, 0.0, 0, 0.25, 0.125),
        Evaluation(len(steps), last.wall_s, last.cpu_s, last.sampled_tokens, 0.95, 1.0, 0.975),
    )
    return Curve(tuple(steps), evaluations, "abc1234", "2 cores")


def said(content: str, call: tuple[str, dict[str, Any]] | None = None) -> dict[str, Any]:
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
    assert found == Step(0.9, 60.0, 30.0, 600)
    assert curve([None, None, 0.9, 1.0]).reached(0.9) is None  # a warm-up has no rewards
    assert curve([None, 0.8, 0.9, 1.0]).reached(0.9) == Step(1.0, 40.0, 20.0, 400)
    assert curve([1.0, 1.0]).reached(0.9) is None
    assert curve([1.0, 0.0, 1.0]).reached(0.9) is None


def test_a_saved_curve_is_read_back(tmp_path: Path) -> None:
    curve([None, 0.2]).save(tmp_path / "made" / "grpo-0.json")
    assert Curve.load(tmp_path / "made" / "grpo-0.json") == curve([None, 0.2])


def test_only_runs_of_one_seed_are_compared() -> None:
    curves = {
        "grpo-0": curve([0.9] * 3, step_s=10.0),
        "rloo-0": curve([0.9] * 3, step_s=1.0),
        "trl-0": curve([0.5, 0.9, 0.9, 0.9], step_s=25.0),
        "trl-1": curve([0.9] * 3),
    }
    measured = [target.measured for target in targets(curves)]
    assert measured == [pytest.approx(30 / 100), pytest.approx(15 / 50)]
    assert "| trl-1 |" in tables(curves)


def test_a_table_says_when_held_out_rows_reached_the_level() -> None:
    [line] = [
        each for each in tables({"shop-worked-0": curve([0.5, 0.9])}).splitlines() if "-0" in each
    ]
    assert (
        line
        == "| shop-worked-0 | 0.250 | 0.950 | 0.125 | 1.000 | 20 | 10 | 200 | not |  | 20 | 10 |"
    )


def test_a_figure_draws_what_its_study_is_about() -> None:
    found = curve([None, 0.5, 0.75])
    [tokens] = PANELS["hopeless"]
    assert points(found, tokens) == [(0.0, 0.25), (0.3, 0.975)]
    assert points(found, PANELS["trail"][0]) == [(2.0, 0.5), (3.0, 0.75)]
    assert points(found, PANELS["main"][0]) == [(20 / 60, 0.5), (30 / 60, 0.75)]
    assert points(found, PANELS["shop"][1]) == [(0.0, 0.125), (30 / 60, 1.0)]


@pytest.mark.parametrize("name", JOBS)
def test_every_job_is_a_config_that_holds(name: str) -> None:
    job = JOBS[name]
    assert job.study in PANELS
    load_config(job.config, learning.given(job.settings)).algorithm.make()


def test_every_algorithm_of_the_page_has_a_curve() -> None:
    table = (ROOT / "docs" / "algorithms.md").read_text().partition("## Names")[2]
    named = re.findall(r"^\| `(\w+)` \|", table.partition("###")[0], re.MULTILINE)
    configs = [load_config(job.config, learning.given(job.settings)) for job in JOBS.values()]
    assert set(named) <= {config.algorithm.name for config in configs}


def test_trl_and_what_compares_with_it_run_by_name_only() -> None:
    assert "trl-0" in JOBS and "grpo-0" in JOBS
    assert not {"trl-0", "grpo-0"} & set(DEFAULT)


def test_with_resume_only_jobs_without_a_result_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = curve([0.1])
    kept.save(tmp_path / "main-0.json")
    learning.main(["--resume", "--only", "main-0", "--output", str(tmp_path)])
    assert Curve.load(tmp_path / "main-0.json") == kept
    assert "| main-0 | 0.250 | 0.950 |" in capsys.readouterr().out


def played(calls: Sequence[tuple[str, dict[str, Any]]]) -> Trajectory:
    shown: list[Any] = [
        said("", ("price", {"fruit": "plum"})),
        {"role": "tool", "content": "9"},
    ]  # worked
    messages: list[Any] = [
        *shown,
        {"role": "user", "content": "?"},
        *[said("", call) for call in calls],
    ]
    row: dict[str, Any] = {"prompt": "?", "fruit": "plum", "prices": {"plum": 12}, "answer": 12}
    spans, rewards = [Span(0, 0)], [1.0]
    return Trajectory(
        [], [], [], 0, spans, rewards, StopReason.answered, True, False, messages, row=row
    )


def test_the_right_calls_are_those_of_the_rows_solution() -> None:
    right, wrong = ("price", {"fruit": "plum"}), ("price", {"fruit": "fig"})
    solutions = Solutions(shop())
    assert solutions.share([played([right]), played([wrong, right]), played([wrong])]) == 2 / 3
    assert solutions.share([played([])]) == 0.0


class Answered(Environment):
    def solve(self, row: Any) -> list[Any]:
        return ["12"]


def test_where_solutions_call_nothing_there_is_no_share_of_right_calls() -> None:
    assert Solutions(Answered()).share([played([])]) is None


def test_a_watch_tells_rows_with_a_reward_from_hopeless_ones() -> None:
    watch = Watch(Solutions(shop()))
    watch.on_start({})
    watch.on_warmup_step(1, {})
    watch.on_step(1, {"reward/mean": 0.5, "tokens/sampled": 70.0}, [])
    hopeful = played([("price", {"fruit": "plum"})])
    hopeless = Trajectory(
        **{**vars(hopeful), "row": {**hopeful.row, "hopeless": True}, "turn_rewards": [0.0]}
    )
    watch.on_evaluation(1, {"eval/reward/mean": 0.5}, [[hopeful], [hopeless]])
    [found] = watch.evaluations
    assert (found.taken, found.sampled_tokens, found.reward) == (2, 70, 0.5)
    assert (found.right_calls, found.hopeful) == (1.0, 1.0)
    assert [step.reward for step in watch.steps] == [None, 0.5]


def shop() -> Any:
    return make(f"{ROOT / 'examples' / 'shop.py'}:Shop")


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", ["main-0", "shop-warmup-0", "hopeless-with-0", "trl-0"])
def test_a_job_runs_in_small(name: str, tmp_path: Path) -> None:
    learning.main(["--quick", "--only", name, "--output", str(tmp_path)])
    rewards = [step.reward for step in Curve.load(tmp_path / f"{name}.json").steps]
    assert len([reward for reward in rewards if reward is not None]) == 2
