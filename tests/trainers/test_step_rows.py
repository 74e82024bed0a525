"""Which rows a run plays with dynamic sampling and a curriculum, and that it resumes with them."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from clocks import without_clocks
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.errors import ConfigError
from gymnast.trainers import Trainer, make_algorithm
from gymnast.trainers.algorithms.distillation import Teacher
from gymnast.trainers.data.rows import DatasetRows
from gymnast.trainers.saving.checkpoints import Checkpoints
from gymnast.types import Sampling

ROWS = [{"prompt": f"Say {number}.", "hopeless": number % 2 == 0} for number in range(20)]


class HalfHopeless(Environment):
    """Half of the rows never pay; the others pay every answer something else."""

    def reward(self, episode: Any) -> float:
        return 0.0 if self.row["hopeless"] else zlib.crc32(episode.answer.encode()) % 997 / 997


class Fined(HalfHopeless):
    """The rows that never pay cost something."""

    def reward(self, episode: Any) -> float:
        return -1.0 if self.row["hopeless"] else super().reward(episode)


class Plays:
    """Keeps which rows each step played, and its metrics."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.metrics: list[dict[str, float]] = []

    def on_start(self, trainer_info: Mapping[str, Any]) -> None: ...

    def on_rollouts(self, step: int, done: int, total: int) -> None: ...

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self.rows.append([group[0].row["prompt"] for group in groups])
        self.metrics.append(without_clocks(metrics))

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Any) -> None: ...

    def on_end(self, summary: Mapping[str, Any]) -> None: ...


def make(tokenizer: Any, **settings: Any) -> tuple[Trainer, Plays]:
    plays, rows = Plays(), settings.pop("rows", ROWS)
    environment = settings.pop("environment", HalfHopeless)
    small: dict[str, Any] = {
        "sampling": Sampling(max_new_tokens=4),
        "group_size": 2,
        "rows_per_step": 2,
        "steps": 4,
        "learning_rate": 1e-3,
        "deterministic": True,
        "observer": plays,
    }
    return Trainer(tiny_model(), tokenizer, environment, rows, **(small | settings)), plays


def in_their_order(rows: Sequence[Any] = ROWS) -> list[Any]:
    """The rows of two epochs as a run without a curriculum has them."""
    source = DatasetRows(rows, seed=0)
    return [source.row(position) for position in range(2 * len(rows))]


def steps_of(rows: Sequence[Any], groups: int, most: int) -> list[list[str]]:
    """What each step plays of some rows: as many as it takes to have so many that pay."""
    steps: list[list[str]] = [[]]
    paying = 0
    for row in rows:
        if paying == groups or len(steps[-1]) == most:
            steps, paying = [*steps, []], 0
        steps[-1].append(row["prompt"])
        paying += not row["hopeless"]
    return steps


def test_each_step_trains_on_its_groups_and_plays_the_rows_that_it_takes(tokenizer: Any) -> None:
    trainer, plays = make(tokenizer, dynamic_sampling={"most_rows": 8})
    trainer.train()
    assert plays.rows == steps_of(in_their_order(), 2, 8)[:4]
    for rows, metrics in zip(plays.rows, plays.metrics, strict=True):
        assert metrics["dynamic_sampling/rows"] == len(rows)
        assert metrics["dynamic_sampling/groups_replaced"] == len(rows) - 2
        assert metrics["dynamic_sampling/groups_missing"] == 0
        assert metrics["advantage/groups_alike"] == 0  # of those it was trained on
        assert metrics["episodes/with_gradient"] == 4
        assert metrics["episodes/finished"] == 2 * len(rows)
        in_vain = metrics["dynamic_sampling/tokens_in_vain"]
        assert metrics["tokens/sampled"] == metrics["tokens/trained"] + in_vain


def test_the_rewards_of_groups_that_were_replaced_are_known(tokenizer: Any) -> None:
    trainer, _ = make(tokenizer, environment=Fined, dynamic_sampling={"most_rows": 8})
    trainer.train()
    assert trainer.learner.outcomes.lowest == -1


def test_without_it_half_of_the_groups_teach_nothing(tokenizer: Any) -> None:
    trainer, plays = make(tokenizer)
    trainer.train()
    order = [row["prompt"] for row in in_their_order()]
    assert plays.rows == [order[i : i + 2] for i in (0, 2, 4, 6)]
    assert not any("dynamic" in name or "curriculum" in name for name in plays.metrics[0])


def test_at_the_limit_a_step_trains_on_what_is_there(tokenizer: Any) -> None:
    only_one_pays = [row | {"hopeless": row["prompt"] != "Say 3."} for row in ROWS]
    trainer, plays = make(tokenizer, rows=only_one_pays, dynamic_sampling={"most_rows": 5}, steps=4)
    weights = [weight.clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert [len(rows) for rows in plays.rows] == [5, 5, 5, 5]
    for rows, metrics in zip(plays.rows, plays.metrics, strict=True):
        found = "Say 3." in rows
        assert metrics["dynamic_sampling/groups_missing"] == 2 - found
        assert metrics["dynamic_sampling/groups_alike"] == (5 - found) / 5
        assert metrics["updates/taken"] == found
    assert any(
        not weight.equal(before)
        for weight, before in zip(trainer.model.parameters(), weights, strict=True)
    )


CHOICES: list[dict[str, Any]] = [
    {"dynamic_sampling": {"most_rows": 5}},
    {"dynamic_sampling": {"most_rows": 5}, "curriculum": {"pass_reward": 0.5}},
]


@pytest.mark.parametrize("choice", CHOICES)
def test_a_resumed_run_plays_the_rows_that_the_killed_one_would_have(
    tokenizer: Any, tmp_path: Path, choice: dict[str, Any]
) -> None:
    whole, plays = make(tokenizer, **choice, steps=3)
    whole.train()
    first, before = make(tokenizer, **choice, steps=2, output_dir=tmp_path)
    first.train()
    second, after = make(tokenizer, **choice, steps=3, output_dir=tmp_path)
    second.train(resume=True)
    assert before.rows + after.rows == plays.rows
    assert before.metrics + after.metrics == plays.metrics
    state = Checkpoints(tmp_path / "checkpoints").load(3)["parts"]["rows"]
    assert json.loads(json.dumps(state)) == state


def test_a_run_that_gets_dynamic_sampling_goes_on_after_its_rows(
    tokenizer: Any, tmp_path: Path
) -> None:
    """And one that loses it has the rows that its step's number says."""
    make(tokenizer, steps=2, output_dir=tmp_path)[0].train()
    trainer, plays = make(
        tokenizer, steps=3, dynamic_sampling={"most_rows": 6}, output_dir=tmp_path
    )
    trainer.train(resume=True)
    order = in_their_order()
    assert plays.rows == steps_of(order[4:], 2, 6)[:1]
    trainer, plays = make(tokenizer, steps=4, output_dir=tmp_path)
    trainer.train(resume=True)
    assert plays.rows == [[row["prompt"] for row in order[6:8]]]


def test_a_curriculum_leaves_rows_that_never_pass(tokenizer: Any) -> None:
    trainer, plays = make(
        tokenizer, curriculum={"pass_reward": 0.5, "discount": 1.0}, steps=12, rows_per_step=5
    )
    trainer.train()
    hopeless = {row["prompt"] for row in ROWS if row["hopeless"]}
    late = [row for rows in plays.rows[6:] for row in rows]
    assert sum(row in hopeless for row in late) < len(late) / 2
    tried = {row for rows in plays.rows for row in rows}
    assert plays.metrics[-1]["curriculum/rows_tried"] == len(tried) > 10
    assert all(0 < metrics["curriculum/pass_estimate"] < 1 for metrics in plays.metrics)


def test_evaluations_replace_nothing(tokenizer: Any) -> None:
    trainer, _ = make(
        tokenizer, dynamic_sampling={"most_rows": 8}, eval_rows=ROWS[:4], eval_group_size=2
    )
    metrics = trainer.evaluate()
    assert metrics["eval/rows"] == 4
    assert not any("dynamic" in name for name in metrics)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {
                "dynamic_sampling": {"most_rows": 8},
                "algorithm": make_algorithm("grpo", teacher=Teacher("base", hints=False)),
            },
            "dynamic_sampling: does not go with a teacher",
        ),
        (
            {"dynamic_sampling": {"most_rows": 1}},
            "dynamic_sampling.most_rows: must be >= 2, rows_per_step, got 1; three times as many "
            "is a good beginning",
        ),
        ({"dynamic_sampling": {}}, "dynamic_sampling.most_rows: is required"),
        ({"dynamic_sampling": True}, "dynamic_sampling: must be a mapping (key: value), got True"),
        ({"curriculum": {"target": 1}}, "curriculum.target: must be < 1, got 1"),
        ({"curriculum": {"by": "a b"}}, "curriculum.by: must be a column or a jmespath"),
        ({"curriculum": {"trget": 0.5}}, "curriculum.trget"),
        (
            {"dynamic_sampling": {"most_rows": 8}, "algorithm": "reinforce_pp"},
            "dynamic_sampling: needs an estimator that compares the episodes of a row",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_a_line(
    tokenizer: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(tokenizer, **settings)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
