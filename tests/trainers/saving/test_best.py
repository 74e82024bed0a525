"""A run keeps the weights of its best evaluation, whatever becomes of it afterwards."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clocks import without_clocks
from gymnast.agents import load_model
from gymnast.envs import Environment
from gymnast.trainers import Trainer
from gymnast.trainers.base.observer import EvaluatedPolicy
from gymnast.trainers.evaluating.targets import Wanted, evaluation_config, find_target
from gymnast.trainers.exporting.export import export_run
from gymnast.types import Sampling

ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.")]
HELD_OUT = [{"prompt": "Tell.", "held_out": True}]


class Scripted(Environment):
    """Small letters earn; each evaluation earns the next reward of a script."""

    script: Iterator[float] = iter(())

    def reward(self, episode: Any) -> float:
        if self.row.get("held_out"):
            return next(type(self).script)
        text = episode.answer
        return sum(letter in "abcdefghijklmnopqrstuvwxyz" for letter in text) / max(1, len(text))

    def solve(self, row: Any) -> Any:
        return ["in"]


class Keeps:
    """Keeps the policy of each evaluation, and ends the process after some step, as a kill does."""

    def __init__(self, killed_in: int = 0) -> None:
        self.killed_in = killed_in
        self.trainer: Any = None
        self.weights: list[dict[str, torch.Tensor]] = []
        self.summary: Any = None

    def on_start(self, trainer_info: Any) -> None: ...

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        if step == self.killed_in:
            raise SystemExit("killed")  # of which nothing is saved, unlike an Exception

    def on_step(self, step: int, metrics: Any, groups: Any) -> None: ...

    def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None:
        state = self.trainer.model.state_dict()
        self.weights.append({name: value.clone() for name, value in state.items()})

    def on_end(self, summary: Any) -> None:
        self.summary = summary


Run = Callable[..., Keeps]


@pytest.fixture
def run(tokenizer: Any, tmp_path: Path) -> Run:
    """Trains with evaluations that earn these rewards; returns what an observer saw."""

    def run(
        *rewards: float, resume: bool = False, killed_in: int = 0, name: str = "run", **given: Any
    ) -> Keeps:
        Scripted.script, keeps = iter(rewards), Keeps(killed_in)
        settings: dict[str, Any] = {
            "sampling": Sampling(max_new_tokens=6),
            "group_size": 2,
            "rows_per_step": 2,
            "steps": 3,
            "learning_rate": 1e-2,
            "deterministic": True,
            "eval_rows": HELD_OUT,
            "eval_every_steps": 1,
            "output_dir": tmp_path / name,
            "observer": keeps,
        }
        model = given.pop("model", None) or load_model("tiny:", tokenizer=tokenizer)[0]
        trainer = Trainer(model, tokenizer, Scripted, ROWS, **(settings | given))
        keeps.trainer = trainer
        if killed_in:
            with pytest.raises(SystemExit):
                trainer.train(resume=resume)
        else:
            trainer.train(resume=resume)
        return keeps

    return run


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "best/best.json").read_text())
    return found


def assert_holds(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    saved = load_file(folder / "model.safetensors")
    assert saved and all(torch.equal(value, weights[name]) for name, value in saved.items())


def test_the_best_weights_outlive_worse_steps(run: Run, tmp_path: Path) -> None:
    keeps = run(0.1, 0.5, 0.9, 0.2)
    folder = tmp_path / "run"
    assert record(folder) == {"reward": 0.9, "step": 2, "warmup_steps": 0}
    assert_holds(folder / "best/model", keeps.weights[2])
    assert_holds(folder / "model", keeps.weights[3])
    assert keeps.summary["best"] == EvaluatedPolicy(0.9, 2)
    assert keeps.summary["latest"] == EvaluatedPolicy(0.2, 3)
    assert keeps.summary["best_folder"] == str(folder / "best")


def test_of_equal_evaluations_the_earlier_stays(run: Run, tmp_path: Path) -> None:
    keeps = run(0.1, 0.9, 0.9, 0.9)
    assert record(tmp_path / "run")["step"] == 1
    assert_holds(tmp_path / "run/best/model", keeps.weights[1])


@pytest.mark.parametrize(
    ("rewards", "settings"),
    [((0.9, 0.1, 0.2, 0.1), {}), ((0.1, 0.9, 0.2, 0.1), {"eval_keep_best": False})],
    ids=["the untrained model is best", "turned off"],
)
def test_nothing_is_kept_where_nothing_is_to_be(
    rewards: tuple[float, ...], settings: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    keeps = run(*rewards, **settings)
    assert not (tmp_path / "run/best").exists()
    assert keeps.summary["best"].reward == 0.9
    assert keeps.summary["best_folder"] is None


def test_the_evaluation_after_a_warm_up_counts(run: Run, tmp_path: Path) -> None:
    warmup = {"demonstrations": "solve", "steps": 2, "rows_per_step": 2}
    keeps = run(0.1, 0.9, 0.5, 0.4, 0.2, warmup=warmup)
    assert record(tmp_path / "run") == {"reward": 0.9, "step": 0, "warmup_steps": 2}
    assert_holds(tmp_path / "run/best/model", keeps.weights[1])
    assert keeps.summary["best"].when == "after the warm-up"


def test_adapters_of_the_best_are_kept_with_its_model(
    run: Run, tokenizer: Any, tmp_path: Path
) -> None:
    model, _ = load_model("tiny:", lora={"rank": 4}, tokenizer=tokenizer)
    keeps = run(0.1, 0.9, 0.2, 0.1, model=model)
    saved = load_file(tmp_path / "run/best/adapters/adapter_model.safetensors")
    trained = {n.replace(".default", ""): w for n, w in keeps.weights[1].items() if "lora_" in n}
    assert saved.keys() == trained.keys()
    assert all(torch.equal(saved[name], weight) for name, weight in trained.items())


@pytest.mark.parametrize("every", [1, 2], ids=["best in a checkpoint", "best after the checkpoint"])
def test_a_killed_run_keeps_what_a_whole_one_keeps(every: int, run: Run, tmp_path: Path) -> None:
    rewards = (0.1, 0.4, 0.5, 0.9, 0.2)
    whole = run(*rewards, steps=4, name="whole", checkpoint_every_steps=every)
    run(*rewards, steps=4, killed_in=4, checkpoint_every_steps=every)
    left = rewards[4:] if every == 1 else rewards[3:]
    resumed = run(*left, steps=4, resume=True, checkpoint_every_steps=every)
    assert record(tmp_path / "run") == record(tmp_path / "whole")
    assert_holds(tmp_path / "run/best/model", whole.weights[3])
    assert resumed.summary["best"] == EvaluatedPolicy(0.9, 3)
    lines = [
        [
            without_clocks(json.loads(line))
            for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        for name in ("run", "whole")
    ]
    assert lines[0] == lines[1]


def test_a_run_that_begins_again_keeps_nothing_of_before(run: Run, tmp_path: Path) -> None:
    run(0.1, 0.9, 0.5, killed_in=3)
    assert record(tmp_path / "run")["reward"] == 0.9
    run(0.1, 0.3, 0.2, 0.1, resume=True)
    assert record(tmp_path / "run") == {"reward": 0.3, "step": 1, "warmup_steps": 0}


def test_a_kill_while_it_is_written_leaves_the_one_before(run: Run, tmp_path: Path) -> None:
    keeps = run(0.1, 0.9, 0.5, 0.4)
    folder = tmp_path / "run"
    (folder / "best").rename(folder / ".best.old")
    (folder / ".best.new").mkdir()
    (folder / ".best.new/best.json").write_text("{")
    run(0.2, steps=4, resume=True)
    assert_holds(folder / "best/model", keeps.weights[1])
    assert [path.name for path in folder.glob(".best*")] == []


@pytest.mark.parametrize("text", ["", "[" * 9999, '{"reward": NaN, "step": 1, "warmup_steps": 0}'])
def test_a_record_that_cannot_be_read_is_no_best(text: str, run: Run, tmp_path: Path) -> None:
    run(0.1, 0.9, 0.5, 0.4)
    (tmp_path / "run/best/best.json").write_text(text)
    keeps = run(0.2, steps=4, resume=True)
    assert keeps.summary["best"] == EvaluatedPolicy(0.2, 4)
    assert record(tmp_path / "run")["reward"] == 0.2


def test_weights_that_were_removed_are_not_named(run: Run, tmp_path: Path) -> None:
    run(0.1, 0.9, 0.5, 0.4)
    shutil.rmtree(tmp_path / "run/best")
    keeps = run(0.2, steps=4, resume=True)
    assert keeps.summary["best"] == EvaluatedPolicy(0.2, 4)
    assert record(tmp_path / "run")["step"] == 4


def test_without_room_a_run_goes_on_with_a_warning(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The file system reports what it would near its end; the run's own files still fit."""
    usage = shutil.disk_usage(tmp_path)._replace(free=24_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with caplog.at_level(logging.WARNING):
        keeps = run(0.1, 0.9, 0.5, 0.4, keep_checkpoints=1)
    assert (tmp_path / "run/best").exists(), "there is room for a checkpoint and two models"
    usage = usage._replace(free=17_000_000)
    with caplog.at_level(logging.WARNING):
        keeps = run(0.1, 0.9, 0.5, 0.4, keep_checkpoints=1, name="smaller")
    assert keeps.summary["stopped_by"] == "steps"
    assert not (tmp_path / "smaller/best").exists()
    assert "evaluation.keep_best" in caplog.text and "smaller/best takes" in caplog.text


def test_eval_and_export_take_the_best(run: Run, tokenizer: Any, tmp_path: Path) -> None:
    model, _ = load_model("tiny:", tokenizer=tokenizer)
    model.config.name_or_path = "tiny:"  # in the run's config.yaml
    keeps = run(0.1, 0.9, 0.5, 0.4, model=model)
    folder = tmp_path / "run"
    named = [f"environment.id={__file__}:Scripted", "evaluation.rows=1"]
    config = evaluation_config(folder / "best", named)
    assert config.model.name == str(folder / "best/model")
    assert config.output_dir == str(folder), "where its evaluations are numbered"
    target = find_target(Wanted(str(folder / "best"), overrides=named))
    assert target.evaluations == folder / "evaluations"
    export_run(folder / "best", tmp_path / "out", merged=True)
    assert_holds(tmp_path / "out", keeps.weights[1])
    card = (tmp_path / "out/README.md").read_text()
    assert "best evaluation, after step 1 (mean reward 0.900)" in card
