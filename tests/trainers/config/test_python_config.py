"""A run that Python began says what it was, and can be evaluated from its folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Mixture, Renderer, compose, tool
from gymnast.errors import ConfigError
from gymnast.sandboxes import SandboxSpec
from gymnast.trainers import Trainer
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import load_config
from gymnast.trainers.demonstrations.layout import trajectory_of
from gymnast.trainers.evaluating.targets import evaluation_config
from gymnast.types import Sampling

ROWS = [{"prompt": f"Write {n} letters.", "n": n} for n in range(5)]


class Letters(Environment):
    """The share of letters in the answer."""

    def reward(self, episode: Any) -> float:
        return sum(map(str.isalpha, episode.answer)) / max(1, len(episode.answer))


Train = Callable[..., Trainer]


@pytest.fixture
def train(tokenizer: Any, tmp_path: Path) -> Train:
    """Train for a step, writing to `tmp_path / "run"`."""

    def train(environment: Any, rows: Any = ROWS, **settings: Any) -> Trainer:
        small: dict[str, Any] = {
            "sampling": Sampling(max_new_tokens=4),
            "eval_sampling": Sampling(temperature=0.0, max_new_tokens=5),
            "eval_rows": ROWS[:2],
            "group_size": 2,
            "rows_per_step": 1,
            "steps": 1,
            "output_dir": tmp_path / "run",
            "observer": None,
        }
        trainer = Trainer(tiny_model(), tokenizer, environment, rows, **(small | settings))
        trainer.train()
        return trainer

    return train


def head(run: Path) -> list[str]:
    lines = (run / "config.yaml").read_text().splitlines()
    return [line.removeprefix("# Left out: ") for line in lines if line.startswith("# Left")]


def test_a_run_of_what_has_a_name_is_evaluated_from_its_folder(
    train: Train, tmp_path: Path
) -> None:
    trainer = train(
        f"{__file__}:Letters", eval_group_size=2, eval_by=["n"], algorithm="rloo", seed=5
    )
    written = load_config(tmp_path / "run" / "config.yaml", ["model.name=tiny:"])
    assert written.algorithm.name == "rloo", "which no evaluation needs"
    config = evaluation_config(tmp_path / "run", [])
    assert config.trainer.steps == 1 and config.seed == 5
    assert config.evaluation.group_size == 2 and config.evaluation.by == ("n",)
    again = build_trainer(config.model_copy(update={"output_dir": None}))
    assert sorted(row["n"] for row in again.eval_rows or ()) == [0, 1]
    theirs, ours = again.evaluate(), trainer.evaluate()
    for name in ("eval/reward/mean", "eval/tokens/sampled", "eval/rows", "eval/episodes/finished"):
        assert theirs[name] == pytest.approx(ours[name]), "greedy, of the same weights and rows"


def test_the_demonstrations_of_a_run_are_named_and_no_evaluation_needs_them(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "abc"}]
    (tmp_path / "demos.jsonl").write_text(json.dumps({"messages": said}))
    warmup = {"demonstrations": "demos.jsonl", "steps": 1, "rows_per_step": 1}
    train(f"{__file__}:Letters", warmup=warmup)
    written = load_config(tmp_path / "run" / "config.yaml", ["model.name=tiny:"]).warmup
    assert written is not None and written.model_dump(exclude_unset=True) == warmup | {
        "demonstrations": str(tmp_path / "demos.jsonl")
    }
    (tmp_path / "demos.jsonl").unlink()
    config = evaluation_config(tmp_path / "run", [])
    build_trainer(config.model_copy(update={"output_dir": None})).evaluate()


def test_demonstrations_that_only_python_has_are_named(
    train: Train, renderer: Renderer, tmp_path: Path
) -> None:
    said = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "abc"}]
    listed = [trajectory_of(said, (), renderer)]
    train(f"{__file__}:Letters", warmup={"demonstrations": listed, "steps": 0})
    assert "warmup: its demonstrations are a list in Python" in head(tmp_path / "run")


def test_what_only_python_has_is_named_and_can_be_given(
    train: Train, renderer: Renderer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(lambda: Letters(renderer), [*ROWS, {"prompt": "Go.", "n": object()}])
    said = head(run)
    assert [line.partition(":")[0] for line in said] == [
        "model.name",
        "environment.id",
        "data.train",
    ]
    assert "a function makes it (<function" in said[1]
    assert "the rows hold values that JSON cannot express (Object of type object" in said[2]
    with pytest.raises(ConfigError) as caught:
        evaluation_config(run, [])
    assert {line.partition(":")[0] for line in str(caught.value).splitlines()} == {
        "environment",
        "data.train",
    }
    given = [f"environment.id={__file__}:Letters", f"data.train={run}/evaluation_rows.jsonl"]
    assert evaluation_config(run, given).has_rows_to_evaluate


def test_a_class_that_no_module_has_is_named(train: Train, tmp_path: Path) -> None:
    class Here(Letters):
        pass

    train(Here)
    assert any(
        line.startswith("environment.id: the class ") and "Here cannot be imported" in line
        for line in head(tmp_path / "run")
    )


class Noted(Environment):
    """Brings a tool."""

    @tool
    def note(self) -> str:
        """Note."""
        return "noted"


def test_composed_classes_are_named_each(train: Train, tmp_path: Path) -> None:
    train(compose(Letters, Noted))
    names = [f"{__name__}:Letters", f"{__name__}:Noted"]
    given = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert given["environment"] == {"compose": names}


def test_what_a_yaml_cannot_say_of_several_environments_is_named(
    train: Train, tmp_path: Path
) -> None:
    train(compose(Letters, Noted, sandbox_spec=SandboxSpec()))
    said = "environment.compose: LettersWithNoted has a sandbox_spec given in Python"
    assert said in head(tmp_path / "run")
    rows = [{"environment": "Letters", **row} for row in ROWS]
    train(Mixture({Letters: 1, Noted: 2}), rows, eval_rows=(), output_dir=tmp_path / "mixed")
    said = "environment.mixture: a Mixture in Python, of Letters, Noted"
    assert said in head(tmp_path / "mixed")


def test_more_rows_than_belong_into_a_folder_stay_where_they_are(
    train: Train, tmp_path: Path
) -> None:
    train(f"{__file__}:Letters", ROWS * 2001)
    said = "data.train: there are 10005 rows, more than the 10000 that are written here"
    assert said in head(tmp_path / "run")
    assert not (tmp_path / "run" / "rows.jsonl").exists()


def test_a_file_of_the_users_is_not_written_over(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    own = tmp_path / "run" / "rows.jsonl"
    own.write_text('{"prompt": "Mine."}\n' * 9)
    train(f"{__file__}:Letters")
    assert own.read_text() == '{"prompt": "Mine."}\n' * 9
    said = "data.train: rows.jsonl is already in the folder and holds something else"
    assert said in head(tmp_path / "run")


def test_numbers_of_numpy_are_numbers(train: Train, tmp_path: Path) -> None:
    train(f"{__file__}:Letters", learning_rate=np.float64(1e-4), steps=np.int64(1))
    config = evaluation_config(tmp_path / "run", [])
    assert (config.trainer.learning_rate, config.trainer.steps) == (1e-4, 1)


def test_a_path_is_of_the_working_folder_as_python_has_it(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "letters.py").write_text(Path(__file__).read_text())
    monkeypatch.chdir(tmp_path)
    train("letters.py:Letters")
    assert evaluation_config("run", []).environment.id == f"{tmp_path}/letters.py:Letters"
