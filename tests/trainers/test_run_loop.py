"""The loop of a run in Python: what is saved when, how it goes on, and what it says of itself."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.errors import ConfigError
from gymnast.trainers import Trainer
from gymnast.types import Sampling

ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.")]


class SmallLetters(Environment):
    """The share of small letters in the answer."""

    def reward(self, episode: Any) -> float:
        text = episode.answer
        return sum(letter in "abcdefghijklmnopqrstuvwxyz" for letter in text) / max(1, len(text))


class Interrupting(SmallLetters):
    """Somebody presses Ctrl-C amid the second step."""

    rewards = 0

    def reward(self, episode: Any) -> float:
        type(self).rewards += 1
        if type(self).rewards == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return super().reward(episode)


Make = Callable[..., Trainer]


@pytest.fixture
def make(tokenizer: Any, tmp_path: Path) -> Make:
    """A small trainer that writes to a folder of this name."""

    def make(name: str | None = "run", **settings: Any) -> Trainer:
        small: dict[str, Any] = {
            "sampling": Sampling(max_new_tokens=6),
            "group_size": 2,
            "rows_per_step": 2,
            "steps": 3,
            "learning_rate": 1e-2,
            "deterministic": True,
            "output_dir": None if name is None else tmp_path / name,
            "observer": None,
        }
        environment = settings.pop("environment", SmallLetters)
        return Trainer(tiny_model(), tokenizer, environment, ROWS, **(small | settings))

    return make


def saved(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def assert_same_weights(ours: Trainer, theirs: Trainer) -> None:
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(one, other)


# --- What is saved, and when


@pytest.mark.parametrize(
    ("every_s", "names"),
    [
        (1e-6, ["step_00001", "step_00002", "step_00003"]),
        (0, ["step_00003"]),
        (3600, ["step_00003"]),
    ],
    ids=["each step takes longer", "turned off", "the run takes less"],
)
def test_checkpoints_are_saved_by_the_clock_and_one_at_the_end(
    every_s: float, names: list[str], make: Make, tmp_path: Path
) -> None:
    make(checkpoint_every_s=every_s, keep_checkpoints=9).train()
    assert saved(tmp_path / "run") == names


def test_a_time_below_zero_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="checkpoint_every_s: must be >= 0, got -1"):
        make(checkpoint_every_s=-1)


# --- How it goes on


def test_a_run_that_ended_goes_on_with_more_steps_as_if_it_had_had_them(
    make: Make, tmp_path: Path
) -> None:
    whole = make("whole", steps=4)
    whole.train()
    make("run", steps=2).train()
    longer = make("run", steps=4)
    assert longer.train(resume=True)["steps"] == 4
    assert_same_weights(longer, whole)
    metrics = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("run", "whole")]
    assert metrics[0].count("\n") == metrics[1].count("\n") == 4


def test_train_again_goes_on_where_there_are_more_steps_and_else_says_why_not(make: Make) -> None:
    whole, twice = make("whole", steps=4), make("run", steps=2)
    whole.train()
    twice.train()
    with pytest.raises(ConfigError, match="step 2 of 2 is done; raise the trainer's `steps`"):
        twice.train()
    twice.steps = 4
    assert twice.train()["steps"] == 4
    assert_same_weights(twice, whole)


@pytest.mark.parametrize("name", ["run", None], ids=["with a folder", "without one"])
def test_ctrl_c_stops_train_which_returns_and_goes_on_when_it_is_called_again(
    name: str | None, make: Make, tmp_path: Path
) -> None:
    whole = make("whole", eval_rows=ROWS[:1], eval_every_steps=2)
    whole.train()
    Interrupting.rewards = 0
    stopped = make(name, environment=Interrupting, eval_rows=ROWS[:1], eval_every_steps=2)
    summary = stopped.train()
    assert (summary["steps"], summary["stopped_by"]) == (1, "Ctrl-C")
    assert "after" not in summary
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if name is not None:
        assert saved(tmp_path / "run") == ["step_00001"]
    assert stopped.train()["stopped_by"] == "steps"
    assert_same_weights(stopped, whole)


def test_a_trainer_that_was_stopped_evaluates_when_it_is_asked_to(make: Make) -> None:
    Interrupting.rewards = 0
    stopped = make(None, environment=Interrupting)
    assert stopped.train()["stopped_by"] == "Ctrl-C"
    assert stopped.evaluate(ROWS[:1])["eval/rows"] == 1


def test_a_programs_own_handler_of_ctrl_c_stays(make: Make) -> None:
    def own(*_: Any) -> None:
        heard.append(True)

    heard: list[bool] = []
    before = signal.signal(signal.SIGINT, own)
    try:
        Interrupting.rewards = 0
        assert make(environment=Interrupting).train()["steps"] == 3
        assert heard == [True] and signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_trainer_does_not_write_over_a_run_that_ended(make: Make, tmp_path: Path) -> None:
    make().train()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    with pytest.raises(
        ConfigError, match=r"run already holds a run; continue .*train\(resume=True\)"
    ):
        make().train()
    assert {path: path.read_bytes() for path in files} == before


# --- What it says


def test_a_run_is_shown_unless_nobody_is_to_be_told(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make(None, observer=None).train()
    assert capsys.readouterr().out == ""
    make(None, observer="console").train()
    assert "step 3/3  reward" in capsys.readouterr().out


def test_train_returns_what_the_run_came_to(make: Make, tmp_path: Path) -> None:
    summary = make(eval_rows=ROWS).train()
    assert 0 <= summary["before"] <= 1 and 0 <= summary["after"] <= 1
    assert summary["seconds"] >= summary["train/seconds"] > 0
    told = {"steps": 3, "folder": str(tmp_path / "run"), "stopped_by": "steps"}
    assert {name: summary[name] for name in told} == told
    summary = make(None).train()
    assert summary["folder"] is None and "before" not in summary


def test_an_error_says_what_is_kept_and_how_to_go_on(make: Make, tmp_path: Path) -> None:
    class Typo(SmallLetters):
        def reward(self, episode: Any) -> float:
            if (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 2:
                raise KeyError("anwser")
            return super().reward(episode)

    with pytest.raises(Exception, match="anwser") as caught:
        make(environment=Typo).train()
    assert caught.value.__notes__ == [
        f"saved in {tmp_path / 'run'}: checkpoints/step_00002, model/; to continue: "
        "train(resume=True) of a Trainer made like this one"
    ]
    assert make().train(resume=True)["steps"] == 3


def test_a_start_that_failed_leaves_nothing_in_the_way_of_the_next(
    make: Make, tmp_path: Path
) -> None:
    class Typo(SmallLetters):
        def reward(self, episode: Any) -> float:
            raise KeyError("anwser")

    with pytest.raises(Exception, match="anwser") as caught:
        make(environment=Typo).train()
    run = tmp_path / "run"
    assert caught.value.__notes__ == [
        f"nothing of it is kept in {run}: start it again as it was started"
    ]
    assert make(steps=1).train()["steps"] == 1
