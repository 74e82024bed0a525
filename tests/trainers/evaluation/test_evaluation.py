"""A trainer that evaluates: groups, tags and further environments, without any config."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.errors import ConfigError, InfrastructureError, TooManyFailures
from gymnast.trainers import Trainer, load_rollouts
from gymnast.trainers.evaluation.metrics import measure_environment
from gymnast.types import Sampling

ROWS = [{"prompt": f"{word}.", "kind": kind} for word, kind in zip("abcdef", "xxxyyy", strict=True)]


class Length(Environment):
    """The share of the letters of the answer that are small; 0 where it is empty."""

    def reward(self, episode: Any) -> float:
        text = episode.answer
        return sum(map(str.islower, text)) / max(1, len(text))


class One(Environment):
    """Always 1."""

    def reward(self, episode: Any) -> float:
        return 1.0


class Shaky(Length):
    """The first episode of a row of kind y is lost, and again when it is tried again."""

    attempts: ClassVar[Counter[str]] = Counter()

    def setup(self, row: Any) -> None:
        self.attempts[row["prompt"]] += 1
        if row["kind"] == "y" and self.attempts[row["prompt"]] <= 2:
            raise InfrastructureError("no sandbox")


class Lost(Length):
    """No episode of it ever begins."""

    def setup(self, row: Any) -> None:
        raise InfrastructureError("no sandbox")


def make_trainer(tokenizer: Any, environment: Any = Length, **settings: Any) -> Trainer:
    small: dict[str, Any] = {
        "sampling": Sampling(max_new_tokens=6),
        "eval_rows": ROWS,
        "eval_group_size": 3,
        "group_size": 2,
        "rows_per_step": 1,
        "steps": 1,
    }
    return Trainer(tiny_model(), tokenizer, environment, ROWS, **(small | settings))


class Kept:
    """Keeps the groups and metrics of evaluations."""

    def __init__(self) -> None:
        self.evaluations: list[tuple[dict[str, float], Any]] = []

    def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None:
        self.evaluations.append((metrics, groups))

    def __getattr__(self, event: str) -> Any:
        return lambda *_: None


def test_the_numbers_are_those_of_the_groups_that_were_played(tokenizer: Any) -> None:
    kept: Any = Kept()
    metrics = make_trainer(
        tokenizer, eval_pass_reward=0.5, eval_by=["kind"], observer=kept
    ).evaluate()
    ((told, groups),) = kept.evaluations
    assert told == metrics
    assert [group[0].row for group in groups] == ROWS
    measured = measure_environment(ROWS, groups, 3, 0.5, {"kind": "kind"})
    assert {f"eval/{name}": value for name, value in measured.items()}.items() <= metrics.items()
    assert 0 < metrics["eval/reward/low"] < metrics["eval/reward/mean"] < 1
    assert {"eval/pass@3/high", "eval/by/kind=y/pass@1/low"} <= set(metrics)


def test_a_further_environment_is_played_with_its_own_rows(tokenizer: Any, tmp_path: Path) -> None:
    trainer = make_trainer(
        tokenizer,
        eval_environments={"one": (One, ROWS[:4])},
        eval_by=["kind"],
        output_dir=tmp_path,
    )
    trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if "eval/rows" in line]
    assert [line["step"] for line in evaluations] == [0, 1]
    for line in evaluations:
        assert (line["eval/rows"], line["eval/one/rows"]) == (6, 4)
        assert line["eval/one/reward/mean"] == line["eval/one/pass@3"] == 1
        assert line["eval/one/pass@1/low"] == pytest.approx(0.5101, abs=1e-4)  # four rows, all 1
        assert line["eval/one/by/kind=y/rows"] == 1
        assert line["eval/one/episodes/stop/max_tokens"] >= 0
    saved = [each for each in load_rollouts(tmp_path, evaluations=True) if "_one" in each.name]
    assert [(each.name, each.trajectory.reward) for each in saved] == [
        (name, 1.0) for name in ("eval_00000_one", "eval_00001_one") for _ in range(12)
    ]


def test_given_rows_are_evaluated_alone(tokenizer: Any) -> None:
    trainer = make_trainer(
        tokenizer, eval_environments={"one": (One, ROWS)}, eval_by=["kind"], eval_group_size=1
    )
    metrics = trainer.evaluate([{"prompt": "Go."}, {"prompt": "Say.", "kind": "z"}])
    assert not [name for name in metrics if name.startswith("eval/one/")]
    assert metrics["eval/rows"] == 2
    assert metrics["eval/by/kind=z/rows"] == 1


def test_lost_episodes_leave_their_row_out_where_k_needs_them(tokenizer: Any) -> None:
    trainer = make_trainer(tokenizer, Shaky, eval_by=["kind"], eval_group_size=2, concurrency=1)
    metrics = trainer.evaluate()
    assert (metrics["eval/episodes/left_out"], metrics["eval/episodes/finished"]) == (3, 9)
    assert metrics["eval/by/kind=y/rows"] == 3  # each has an episode
    assert metrics["eval/by/kind=y/pass@2/rows_left_out"] == 3
    assert "eval/by/kind=y/pass@2" not in metrics
    assert metrics["eval/pass@2/rows_left_out"] == 3
    assert metrics["eval/pass@2"] == metrics["eval/by/kind=x/pass@2"]


def test_a_further_environment_without_any_episode_is_named(tokenizer: Any) -> None:
    trainer = make_trainer(tokenizer, eval_environments={"lost": (Lost, ROWS)})
    with pytest.raises(TooManyFailures, match=r"evaluation after step 0 in lost: none of 18"):
        trainer.evaluate()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"eval_group_size": 0}, "eval_group_size: must be >= 1, got 0"),
        ({"eval_pass_reward": float("nan")}, "eval_pass_reward: must be a finite number, got nan"),
        ({"eval_pass_reward": "high"}, "eval_pass_reward: must be a number, got 'high'"),
        ({"eval_by": ["knid"]}, r"evaluation.by.knid: must find .*; did you mean kind\?"),
        ({"eval_environments": {"by": (One, ROWS)}}, "eval_environments: a name must consist of"),
        ({"eval_environments": {"x": (One, [])}}, "eval_environments: 'x' has no rows"),
    ],
)
def test_what_cannot_be_evaluated_is_said_when_the_trainer_is_made(
    settings: dict[str, Any], said: str, tokenizer: Any
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_trainer(tokenizer, **settings)
