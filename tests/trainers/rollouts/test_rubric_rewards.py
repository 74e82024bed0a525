"""Rubrics where a run uses them: in a class that is trained, and in `rewards` of a YAML."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from chat_fixtures import Endpoint, refuses, says
from gymnast.agents import ScriptedAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Episode, Renderer, Score, rubrics
from gymnast.errors import ConfigError
from gymnast.trainers import Reward, Rollouts, Trainer, collect
from gymnast.trainers.rollouts.rewards import add_rewards, load_rewards
from gymnast.types import Sampling, Span, StopReason, Trajectory

ROWS = [{"prompt": word, "city": "Bern"} for word in ("Go.", "Say.", "Now.")]
GIVEN = Trajectory(
    ids=[1, 2],
    action_mask=[0, 1],
    logprobs=[0.0, -1.0],
    prompt_length=1,
    turns=[Span(1, 2)],
    turn_rewards=[0.0],
    stop_reason=StopReason.answered,
    terminated=True,
    truncated=False,
    row={"city": "Bern"},
    messages=[{"role": "user", "content": "Go."}, {"role": "assistant", "content": "Bern"}],
)


def scored(*named: tuple[str, float, Mapping[str, Any]]) -> Trajectory:
    found = asyncio.run(add_rewards(GIVEN, load_rewards(named)))
    assert found is not None
    return found


# --- In a YAML


def test_a_kind_is_named_with_what_it_is_made_with() -> None:
    found = scored(
        ("exact", 2.0, {"column": "city"}),
        ("regex", -0.5, {"pattern": "^b", "ignore_case": True, "name": "begins"}),
        ("regex", 1.0, {"pattern": "x"}),
    )
    assert found.reward == 1.5
    assert found.reward_parts == {"environment": 0.0, "exact": 1.0, "begins": 1.0, "regex": 0.0}


def test_a_rubric_of_a_file_names_its_parts(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from gymnast.envs import rubrics\n"
        "right = rubrics.all_of(rubrics.exact('city'), short=lambda t: t.action_tokens > 9)\n"
    )
    found = scored((f"{file}:right", 0.5, {}))
    assert found.reward == 0.25
    parts = {"environment": 0.0, "right/exact": 0.5, "right/short": 0.0}
    assert found.reward_parts == parts
    assert found.metrics == {"rubrics/right/exact": 1.0, "rubrics/right/short": 0.0}


def test_a_function_may_return_parts_and_metrics() -> None:
    def parted(trajectory: Trajectory) -> Mapping[str, float]:
        return {"a": 0.5, "b": 1.0}

    async def measured(trajectory: Trajectory) -> Score:
        return Score({"c": 1.0}, {"seen": 7.0})

    rewards = [Reward("parted", parted, 2.0), Reward("measured", measured)]
    found = asyncio.run(add_rewards(GIVEN, rewards))
    assert found is not None and found.reward == 4.0
    parts = {"parted/a": 0.5, "parted/b": 1.0, "measured/c": 1.0}
    assert found.reward_parts == {"environment": 0.0, **parts}
    assert found.metrics == {"seen": 7.0}


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (("exact", 1.0, {"colum": "city"}), "rewards.0.colum: .*column"),
        (("exact", 1.0, {"column": 3}), "rewards.0.column: "),
        (("exact", 1.0, {"ignore": ["accents"]}), "rewards.0.ignore.0: "),
        (("regex", 1.0, {}), "rewards.0.pattern: "),
        (("regex", 1.0, {"pattern": "("}), "rewards.0: regex: pattern must be a regular expr"),
        (("judge", 1.0, {"criteria": "Polite?", "model": "m", "votes": 0}), "rewards.0: judge: vo"),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(named: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_rewards([named])


def test_two_parts_of_one_name_are_told_to_have_two() -> None:
    with pytest.raises(ConfigError, match=r"called 'exact' already; give this one a name"):
        load_rewards([("exact", 1.0, {}), ("exact", 1.0, {"column": "city"})])


def test_all_arguments_of_all_kinds_can_be_named() -> None:
    made = load_rewards(
        [
            ("json_schema", 1.0, {"schema": {"type": "object"}}),
            ("result_set", 1.0, {"ordered": True, "tolerance": 0.1}),
            ("unit_tests", 1.0, {"sandbox": {"backend": "local"}, "call_timeout_s": 2}),
            ("numeric", 1.0, {"relative_tolerance": 0.1}),
            ("judge", 1.0, {"criteria": "?", "model": "m", "parameters": {"temperature": 0.0}}),
        ]
    )
    assert [reward.name for reward in made] == [
        *("json_schema", "result_set", "unit_tests", "numeric", "judge")
    ]


# --- In a collection


@pytest.fixture
def gather(renderer: Renderer, say: Callable[..., list[int]]) -> Callable[..., Rollouts]:
    def gather(reward: Any, *rewards: Reward) -> Rollouts:
        made = Environment.from_tools([], reward=reward)
        return asyncio.run(
            collect(
                lambda: made(renderer=renderer),
                ScriptedAgent([say("Bern")]),
                ROWS,
                group_size=2,
                sampling=Sampling(),
                rewards=rewards,
            )
        )

    return gather


def judge(endpoint: Endpoint, **settings: Any) -> rubrics.Rubric:
    settings = {"base_url": endpoint.url, "api_key_env": None, "attempts": 1} | settings
    return rubrics.judge("Is it polite?", "a-judge", **settings)


def test_parts_and_what_they_found_are_metrics_of_the_run(
    gather: Callable[..., Rollouts], endpoint: Endpoint
) -> None:
    endpoint.answers(says("VERDICT: yes"))
    right = rubrics.weighted(rubrics.exact("city"), 3)
    metrics = gather(rubrics.all_of(right, judge(endpoint))).metrics
    assert metrics["reward/mean"] == 1.0
    assert metrics["reward_parts/exact"] == 0.75 and metrics["rubrics/exact"] == 1.0
    assert metrics["reward_parts/judge"] == 0.25 and metrics["rubrics/judge/requests"] == 1.0


def test_a_failing_judge_is_tried_again_and_then_left_out(
    gather: Callable[..., Rollouts], endpoint: Endpoint
) -> None:
    lost = refuses(500, retry_after="0")
    endpoint.script = lambda request, number: lost if number < 1 else says("VERDICT: yes")
    metrics = gather(rubrics.all_of(judge(endpoint))).metrics
    assert metrics["episodes/retried"] == 1 and metrics["episodes/left_out"] == 0
    assert metrics["reward/mean"] == 1.0
    endpoint.script = lambda request, number: (
        lost if "Go." in request["messages"][1]["content"] else says("VERDICT: yes")
    )
    for of_class, of_run in ((judge(endpoint), None), (None, Reward("judge", judge(endpoint)))):
        rollouts = gather(of_class, *filter(None, [of_run]))
        assert [len(group) for group in rollouts] == [0, 2, 2]
        assert rollouts.metrics["episodes/left_out/infrastructure"] == 2
        assert rollouts.metrics["reward/mean"] == 1.0


def test_a_spent_budget_ends_the_run(gather: Callable[..., Rollouts], endpoint: Endpoint) -> None:
    endpoint.answers(says("VERDICT: yes"))
    for of_class in (True, False):
        rubric = judge(endpoint, max_requests=2)
        with pytest.raises(ConfigError, match="max_requests is 2, and so many requests were made"):
            gather(*((rubric,) if of_class else (None, Reward("judge", rubric))))
    assert len(endpoint.requests) <= 4  # of those that have begun, some may be given up


def test_a_trainer_learns_from_a_rubric_of_the_class(tokenizer: Any) -> None:
    class Letters(Environment):
        def small(self, episode: Episode) -> float:
            letters = sum(map("abcdefghijklmnopqrstuvwxyz".count, episode.answer))
            return letters / max(1, len(episode.answer))

        reward = rubrics.all_of(
            rubrics.weighted(small, 9), written=rubrics.gate(rubrics.regex("."), small)
        )

    trainer = Trainer(
        tiny_model(),
        tokenizer,
        Letters,
        ROWS,
        sampling=Sampling(max_new_tokens=8),
        group_size=16,
        rows_per_step=2,
        steps=10,
        learning_rate=1e-2,
        eval_rows=ROWS * 8,
    )
    summary = trainer.train()
    assert summary["before"] < 0.4 and summary["after"] > 0.6
