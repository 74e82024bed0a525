"""Trackers: the real TensorBoard, trackers of one's own, and what neither can do to a run."""

import json
import math
import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.tracking import GeneralTracker
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.errors import ConfigError, UserCodeError
from gymnast.trainers import Trainer
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import parse_config
from gymnast.trainers.evaluating.targets import evaluation_config
from gymnast.trainers.reporting import trackers
from gymnast.trainers.reporting.trackers import as_json, finite, flattened, make_trackers
from gymnast.types import Sampling

ROWS = [{"prompt": word} for word in ("Go.", "Say.")]


class SmallLetters(Environment):
    """The share of small letters in the answer."""

    def reward(self, episode: Any) -> float:
        text = episode.answer
        return sum(letter in "abcdefghijklmnopqrstuvwxyz" for letter in text) / max(1, len(text))


def make_trainer(tokenizer: Any, **settings: Any) -> Trainer:
    environment = settings.pop("environment", SmallLetters)
    small: dict[str, Any] = {
        "sampling": Sampling(max_new_tokens=8),
        "group_size": 2,
        "rows_per_step": 1,
        "steps": 2,
        "learning_rate": 1e-3,
    }
    return Trainer(tiny_model(), tokenizer, environment, ROWS, **(small | settings))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows: (step, value) by name."""
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


class Kept(GeneralTracker):  # type: ignore[misc]
    """A tracker of one's own: keeps what it is given, and may fail at it."""

    name = "kept"
    requires_logging_directory = False

    def __init__(self, fails: bool = False, hangs: threading.Event | None = None) -> None:
        super().__init__()
        self.fails, self.hangs = fails, hangs
        self.settings: dict[str, Any] = {}
        self.logs: list[tuple[int | None, dict[str, Any]]] = []
        self.finished = 0

    @property
    def tracker(self) -> Any:
        return self.logs

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.settings = values

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        if self.hangs is not None:
            self.hangs.wait()
        if self.fails:
            raise ConnectionError("the server is gone")
        self.logs.append((step, values))

    def finish(self) -> None:
        self.finished += 1


# --- TensorBoard


def test_tensorboard_gets_what_metrics_jsonl_gets_and_the_runs_settings(
    tokenizer: Any, tmp_path: Path
) -> None:
    settings = {"trainer": {"steps": 2}, "data": None, "rewards": [{"function": "a:b"}]}
    make_trainer(
        tokenizer,
        output_dir=tmp_path,
        eval_rows=ROWS,
        trackers=["tensorboard"],
        hyperparameters=settings,
    ).train()
    written = {
        (name, line["step"]): value
        for line in lines(tmp_path)
        for name, value in line.items()
        if name != "step"
    }
    shown = {(name, step): value for name, of in scalars(tmp_path).items() for step, value in of}
    assert shown == pytest.approx(written, rel=1e-6)
    assert {("reward/mean", 2), ("eval/reward/mean", 0), ("learning_rate", 1)} <= set(shown)
    (hyperparameters,) = (tmp_path / "tensorboard").glob("*/hparams.yml")
    assert yaml.safe_load(hyperparameters.read_text()) == {
        "trainer.steps": 2,
        "rewards": '[{"function": "a:b"}]',
    }


def test_a_resumed_run_replaces_what_was_logged_after_its_checkpoint(
    tokenizer: Any, tmp_path: Path
) -> None:
    class Stops(Exception):
        pass

    def stopping(step: int, *_: Any) -> None:
        if step == 3:
            raise Stops

    every: dict[str, Any] = {
        "output_dir": tmp_path,
        "steps": 4,
        "checkpoint_every_steps": 2,
        "trackers": ["tensorboard"],
    }
    broken = make_trainer(tokenizer, **every)
    broken.tell = lambda event, *told: stopping(*told) if event == "on_step" else None  # type: ignore[method-assign]
    with pytest.raises(Stops):
        broken.train()
    assert [step for step, _ in scalars(tmp_path)["reward/mean"]] == [1, 2, 3]
    make_trainer(tokenizer, **every).train(resume=True)
    shown = scalars(tmp_path)["time/step_s"]
    written = [(line["step"], line["time/step_s"]) for line in lines(tmp_path)]
    assert [step for step, _ in shown] == [1, 2, 3, 4]
    assert [value for _, value in shown] == pytest.approx([value for _, value in written])


# --- Trackers of one's own


def test_a_tracker_of_ones_own_gets_settings_steps_and_evaluations(tokenizer: Any) -> None:
    kept = Kept()
    trainer = make_trainer(
        tokenizer, trackers=[kept], eval_rows=ROWS, hyperparameters={"a": {"b": 1}}
    )
    trainer.train()
    assert kept.settings == {"a.b": 1}
    assert [step for step, _ in kept.logs] == [0, 1, 2, 2]
    assert ["loss" in values for _, values in kept.logs] == [False, True, True, False]
    assert "eval/reward/mean" in kept.logs[0][1]
    assert kept.finished == 1
    trainer.evaluate()
    assert len(kept.logs) == 4, "only training is tracked"


def test_mlflow_gets_names_that_it_takes(tokenizer: Any) -> None:
    kept = Kept()
    kept.name = "mlflow"
    make_trainer(tokenizer, trackers=[kept], eval_rows=ROWS, eval_group_size=2).train()
    names = {name for _, values in kept.logs for name in values}
    assert "eval/pass_1/low" in names
    assert all(re.fullmatch(r"[\w./: -]+", name) for name in names)


def test_a_tracker_ends_with_a_run_that_breaks(tokenizer: Any) -> None:
    class Broken(SmallLetters):
        def reward(self, episode: Any) -> float:
            raise KeyError("anwser")

    kept = Kept()
    with pytest.raises(UserCodeError):
        make_trainer(tokenizer, trackers=[kept], environment=Broken).train()
    assert kept.finished == 1


def test_a_tracker_that_raises_is_warned_of_once_and_the_run_and_the_others_go_on(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, kept = Kept(fails=True), Kept()
    make_trainer(tokenizer, trackers=[broken, kept], output_dir=tmp_path, steps=3).train()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]
    assert len(kept.logs) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "tracker kept: ConnectionError: the server is gone; the run goes on",
        "tracker kept: did not take 3 logs of this run",
    ]
    assert broken.finished == 1


def test_a_tracker_that_hangs_holds_nothing_up(
    tokenizer: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trackers, "FINISH_S", 0.01)
    monkeypatch.setattr(trackers, "MOST_WAITING", 2)
    go_on = threading.Event()
    hanging = Kept(hangs=go_on)
    try:
        make_trainer(tokenizer, trackers=[hanging], output_dir=tmp_path, steps=5).train()
    finally:
        go_on.set()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5]
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == (
        "tracker kept: 2 logs behind, and given no more until it takes some; the run goes on"
    )
    assert messages[1].startswith("tracker kept: did not take ") and len(messages) == 2


def test_a_tracker_that_cannot_start_stops_the_run_before_its_first_step(
    tokenizer: Any, tmp_path: Path
) -> None:
    class NoServer(Kept):
        def start(self) -> None:
            raise ConnectionError("no\nserver")

    started = Kept()
    trainer = make_trainer(tokenizer, trackers=[started, NoServer()], output_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"trackers.kept: cannot be started: Conn.*: no server\."):
        trainer.train()
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    assert started.finished == 1


def test_a_tracker_that_does_not_start_in_time_stops_the_run(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "START_S", 0.01)
    go_on = threading.Event()

    class Waits(Kept):
        def start(self) -> None:
            go_on.wait()

    try:
        with pytest.raises(ConfigError, match=r"it has not started within 0\.01 s"):
            make_trainer(tokenizer, trackers=[Waits()]).train()
    finally:
        go_on.set()


# --- What is refused


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["tensorbord"], "trackers: there is no tracker 'tensorbord'. Did you mean 'tensorboard'"),
        ({"tensorboard": {"log_dir": "x"}}, r"trackers.tensorboard.log_dir: unknown .* comment"),
        ({"mlflow": {"runname": "x"}}, r"trackers.mlflow.runname: unknown .* project, run_id, "),
    ],
)
def test_what_cannot_be_a_tracker_is_refused(
    named: Any, message: str, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", sys)  # its settings are accelerate's
    with pytest.raises(ConfigError, match=message):
        make_trainer(tokenizer, trackers=named, output_dir=tmp_path)


def test_a_tracker_of_ones_own_that_cannot_be_made_is_named(tokenizer: Any, tmp_path: Path) -> None:
    file = tmp_path / "own_tracker.py"
    file.write_text(
        "from accelerate.tracking import GeneralTracker\n"
        "class Nameless(GeneralTracker):\n    def __init__(self, url): super().__init__()\n"
    )
    for settings, words in (({}, "'url'"), ({"url": "x"}, "required attributes")):
        with pytest.raises(ConfigError, match=rf"(?s)Nameless cannot be made: .*{words}") as error:
            make_trainer(tokenizer, trackers={f"{file}:Nameless": settings})
        assert str(error.value).startswith(f"trackers.{file}:Nameless: ")


def test_tensorboard_needs_a_folder(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="tensorboard: needs an output_dir"):
        make_trainer(tokenizer, trackers=["tensorboard"])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio", "mlflow"])
def test_a_package_that_is_missing_is_named_before_a_model_is_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # what Python itself does to forbid an import
    config = parse_config(
        {
            "model": {"name": "/no/such/model"},
            "environment": {"id": "gymnast/Arithmetic-v0"},
            "output_dir": str(tmp_path / "run"),
            "trackers": [name],
        }
    )
    with pytest.raises(
        ConfigError, match=f"trackers.{name}: needs the package.*pip install {name}"
    ):
        build_trainer(config)


def test_a_folder_of_that_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb makes one where it is run."""
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match="needs the package wandb"):
        make_trackers(["wandb"], None)


def test_jsonl_may_be_named_and_changes_nothing(tokenizer: Any, tmp_path: Path) -> None:
    make_trainer(tokenizer, trackers=["jsonl"], output_dir=tmp_path, steps=1).train()
    assert len(lines(tmp_path)) == 1


# --- In a config


def config(**more: Any) -> Any:
    least = {"model": {"name": "tiny:"}, "environment": {"id": "gymnast/Arithmetic-v0"}}
    return parse_config(least | more)


def test_a_config_names_trackers_with_settings_or_without() -> None:
    assert config().trackers == {}
    assert config(trackers=["tensorboard", "wandb"]).trackers == {"tensorboard": {}, "wandb": {}}
    given = {"wandb": {"project": "shop"}, "tensorboard": None}
    assert config(trackers=given).trackers == {"wandb": {"project": "shop"}, "tensorboard": {}}


def test_a_configs_trackers_reach_the_run_and_know_its_settings(tmp_path: Path) -> None:
    run = config(
        trackers=["tensorboard"],
        output_dir=str(tmp_path),
        trainer={"steps": 1, "rows_per_step": 2},
        algorithm={"group_size": 2},
        sampling={"max_new_tokens": 4},
        evaluation={"rows": 2},
    )
    build_trainer(run).train()
    assert len(scalars(tmp_path)["eval/reward/mean"]) == 2
    (hyperparameters,) = (tmp_path / "tensorboard").glob("*/hparams.yml")
    found = yaml.safe_load(hyperparameters.read_text())
    assert (found["trainer.steps"], found["algorithm.name"]) == (1, "grpo")
    assert not any(name.startswith(("trackers", "output_dir")) for name in found)
    evaluated = evaluation_config(tmp_path, ["trackers=[wandb]"])
    assert evaluated.trackers == {}, "an evaluation alone needs no tracker"


# --- Values

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
NESTED = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)


@given(st.dictionaries(st.text(), NESTED, max_size=4))
def test_flattened_settings_are_what_every_tracker_takes(settings: Mapping[str, Any]) -> None:
    for name, value in flattened(settings).items():
        assert isinstance(name, str) and isinstance(value, bool | int | float | str)


@given(st.dictionaries(st.text(), st.floats() | st.integers()))
def test_what_is_not_finite_is_null_in_json_and_kept_from_trackers(
    metrics: Mapping[str, float],
) -> None:
    written = json.loads(json.dumps(as_json(metrics), allow_nan=False))
    for name, value in metrics.items():
        assert written[name] == (value if math.isfinite(value) else None)
    assert finite(metrics) == {name: value for name, value in written.items() if value is not None}
