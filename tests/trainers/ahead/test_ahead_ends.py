"""Runs that play ahead and end: by an error, a signal or their last step; and go on."""

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gymnast.agents import TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import ConfigError, InfrastructureError, TooManyFailures, UserCodeError
from gymnast.trainers import Trainer
from gymnast.trainers.build import build_trainer
from gymnast.trainers.evaluating.targets import evaluation_config
from runs_ahead import ROWS, SAMPLERS, Keeps, SmallLetters, make_trainer


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gymnast-ahead"]


class Typo(SmallLetters):
    """From some episode on the user's own code raises."""

    first: ClassVar[int] = 0
    rewards: ClassVar[int] = 0

    def reward(self, episode: Any) -> float:
        type(self).rewards += 1
        if type(self).rewards > self.first:
            raise KeyError("anwser")
        return super().reward(episode)


@pytest.mark.parametrize("agent", SAMPLERS)
@pytest.mark.parametrize("first", [0, 24])
def test_an_error_in_the_users_code_ends_the_run_and_its_episodes(
    first: int, agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Typo, "first", first)
    monkeypatch.setattr(Typo, "rewards", 0)
    trainer = make_trainer(environment=Typo, output_dir=tmp_path / "run", agent=agent)
    with pytest.raises(UserCodeError, match="anwser"):
        trainer.train()
    assert threads() == []
    assert (trainer.step > 0) == (first > 0)


def test_some_failures_of_the_users_code_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sometimes(SmallLetters):
        def reward(self, episode: Any) -> float:
            return super().reward(episode) / float(self.row["prompt"] != "Say 7.")

    kept = Keeps()
    settings = {"rows": ROWS[:9], "steps": 3, "max_failed_episodes": 4}
    make_trainer(environment=Sometimes, observer=kept, **settings).train()
    failed = [metrics["episodes/left_out/user_code"] for metrics in kept.metrics]
    assert sum(failed) == 4  # in an epoch


class Lost(SmallLetters):
    """Nothing works."""

    def setup(self, row: Any) -> None:  # type: ignore[override]
        raise InfrastructureError("no sandbox")


def test_a_step_without_any_episode_ends_the_run() -> None:
    with pytest.raises(TooManyFailures, match=r"step 1: .* broken by the infrastructure"):
        make_trainer(environment=Lost).train()
    assert threads() == []


class Interrupts(Keeps):
    """Ctrl-C after a step, while others are under way; then the run goes on by itself."""

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        super().on_step(step, metrics, groups)
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)


def rows_of(*kept: Keeps) -> list[int]:
    return sorted(row for each in kept for rows in each.rows for row in rows)


@pytest.mark.parametrize("again", ["resumed", "continued"])
@pytest.mark.parametrize("agent", SAMPLERS)
def test_a_run_that_was_stopped_goes_on_with_what_was_under_way(
    tmp_path: Path, again: str, agent: Any
) -> None:
    first, second = Interrupts(), Keeps()
    settings = {"agent": agent, "output_dir": tmp_path / "run", "max_staleness": 2}
    trainer = make_trainer(observer=first, **settings)
    summary = trainer.train()
    assert (summary["stopped_by"], summary["steps"], threads()) == ("Ctrl-C", 2, [])
    if again == "resumed":
        trainer = make_trainer(observer=second, **settings)
        trainer.train(resume=True)
    else:
        trainer.observer = second
        trainer.train()
    assert rows_of(first, second) == list(range(15))  # none is lost, none is learned from twice
    assert [metrics["staleness/max"] for metrics in second.metrics] == [0, 1, 2]


class Killed(Exception):
    """Takes the place of a kill."""


@pytest.mark.parametrize("agent", SAMPLERS)
def test_a_run_that_was_killed_plays_what_its_checkpoint_does_not_know(
    tmp_path: Path, agent: Any
) -> None:
    class Kills(Keeps):
        def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
            super().on_step(step, metrics, groups)
            if step == 3:
                raise Killed

    settings: dict[str, Any] = {"output_dir": tmp_path / "run", "checkpoint_every_steps": 2}
    settings["agent"] = agent
    kills, second = Kills(), Keeps()
    trainer = make_trainer(observer=kills, **settings)
    with pytest.raises(Killed):
        trainer.train()
    trainer = make_trainer(observer=second, **settings)
    trainer.train(resume=True)
    done = 5 - len(second.rows)
    known = Keeps()
    known.rows = kills.rows[:done]
    assert rows_of(known, second) == list(range(15))


def test_a_run_that_goes_on_without_staleness_and_one_that_gets_it(tmp_path: Path) -> None:
    first, second = Keeps(), Keeps()
    make_trainer(observer=first, output_dir=tmp_path / "run", max_staleness=0, steps=2).train()
    make_trainer(observer=second, output_dir=tmp_path / "run", steps=4).train(resume=True)
    assert first.rows == [[0, 1, 2]] * 2  # places in the step
    assert rows_of(second) == list(range(6, 12))


class Alike(SmallLetters):
    """Every other row always pays the same."""

    def reward(self, episode: Any) -> float:
        number = int(self.row["prompt"].strip("Say ."))
        return 0.0 if number % 2 else super().reward(episode)


@pytest.mark.parametrize("agent", SAMPLERS)
def test_groups_without_spread_are_replaced_by_further_rows(agent: Any) -> None:
    kept = Keeps()
    settings = {"dynamic_sampling": {"most_rows": 12}, "steps": 6, "observer": kept}
    make_trainer(environment=Alike, agent=agent, **settings).train()
    metrics = kept.metrics
    assert sum(each["dynamic_sampling/groups_replaced"] for each in metrics) > 3
    assert all(each["tokens/trained"] > 0 for each in metrics)
    assert rows_of(kept) == sorted({*rows_of(kept)})  # none twice
    for each, sizes in zip(metrics, kept.sizes, strict=True):
        alike = each["dynamic_sampling/groups_alike"] * len(sizes)
        assert len(sizes) - alike == 3 - each["dynamic_sampling/groups_missing"]


@pytest.mark.parametrize("agent", SAMPLERS)
def test_a_warm_up_comes_first_and_counts_as_updates(agent: Any) -> None:
    class Solved(SmallLetters):
        def solve(self, row: Any) -> Any:
            return ["aaa"]

    kept = Keeps()
    warmup = {"demonstrations": "solve", "steps": 2}
    make_trainer(environment=Solved, warmup=warmup, observer=kept, agent=agent).train()
    assert len(kept.metrics) == 5 and kept.metrics[0]["staleness/max"] == 0
    assert max(metrics["staleness/max"] for metrics in kept.metrics) == 1


def test_evaluations_are_sampled_from_the_version_that_they_are_of() -> None:
    kept = Keeps()
    make_trainer(observer=kept, eval_rows=ROWS[:3], eval_every_steps=1, max_staleness=2).train()
    assert kept.evaluated == [{step} for step in range(6)]


class Rests:
    """An agent that samples only while nothing is trained."""

    def __init__(self, model: Any) -> None:
        agent = TransformersAgent(model)
        self.context_length, self.generate = agent.context_length, agent.generate
        self.awake, self.update_weights = agent.awake, agent.update_weights


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agent": Rests(tiny_model())}, "max_staleness: is 1, and Rests cannot keep requests"),
        ({"deterministic": True}, "max_staleness: is 1, and deterministic is true"),
        ({"curriculum": {}}, "max_staleness: is 1, and curriculum is set"),
        ({"max_staleness": -1}, "max_staleness: must be >= 0, got -1"),
        ({"on_stale": "stop"}, "on_stale: must be one of 'drop' or 'continue', got 'stop'"),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_a_line(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_trainer(**settings)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(Exception, match=r"device: must be a device of this machine.*'cuda:77'"):
        make_trainer(agent={"backend": "transformers", "device": "cuda:77"})


def test_a_trainer_without_staleness_starts_no_thread() -> None:
    trainer: Trainer = make_trainer(max_staleness=0, steps=1)
    trainer.train()
    assert threads() == []


def test_what_was_played_ahead_is_evaluated_by_any_agent(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        """
        model: {name: "tiny:"}
        environment: {id: gymnast/Arithmetic-v0, context_length: 1024}
        trainer: {max_staleness: 1}
        evaluation: {rows: 2}
        """
    )
    config = evaluation_config(tmp_path / "run.yaml", ["sampling.max_new_tokens=4"])
    config = config.model_copy(update={"output_dir": None})
    assert build_trainer(config).evaluate()["eval/rows"] == 2
