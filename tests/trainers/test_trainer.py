"""The trainer on a real, tiny model: it learns, repeats, resumes, and refuses what cannot work."""

import asyncio
import json
import math
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import AutoModelForCausalLM

from clocks import without_clocks
from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer
from gymnast.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    InfrastructureError,
    ModelError,
    TemplateError,
    TooManyFailures,
    UnknownEnvironment,
    UserCodeError,
)
from gymnast.trainers import Trainer, load_rollouts
from gymnast.types import Sampling, Trajectory

ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.")]
SHORT = Sampling(max_new_tokens=8)


class SmallLetters(Environment):
    """The share of small letters in the answer: about 0.2 before training."""

    def reward(self, episode: Any) -> float:
        text = episode.answer
        return sum(letter in "abcdefghijklmnopqrstuvwxyz" for letter in text) / max(1, len(text))


class Events:
    """Keeps what it is told, and does what a test wants after a step."""

    def __init__(self, after_step: Any = None) -> None:
        self.seen: list[Any] = []
        self.after_step = after_step

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        self.seen.append(("start", trainer_info["start"], trainer_info["steps"]))

    def on_rollouts(self, step: int, done: int, total: int) -> None:
        if done == total:
            self.seen.append(("rollouts", step, total))

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self.seen.append(("step", step, [len(group) for group in groups]))
        if self.after_step is not None:
            self.after_step(step)

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self.seen.append(("evaluation", step, len(groups)))

    def on_end(self, summary: Mapping[str, float]) -> None:
        self.seen.append(("end", sorted(summary)))


def make_trainer(tokenizer: Any, **settings: Any) -> Trainer:
    model = settings.pop("model", None) or tiny_model()
    environment = settings.pop("environment", SmallLetters)
    rows: Sequence[Mapping[str, Any]] = settings.pop("rows", ROWS)
    small: dict[str, Any] = {
        "sampling": SHORT,
        "group_size": 4,
        "rows_per_step": 2,
        "steps": 2,
        "learning_rate": 1e-2,
    }
    return Trainer(model, tokenizer, environment, rows, **(small | settings))


def written(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what is measured by a clock."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [without_clocks(line) for line in lines]


# --- It learns


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_training_raises_the_reward_on_held_out_episodes(
    device: torch.device, algorithm: str, tokenizer: Any
) -> None:
    trainer = make_trainer(
        tokenizer, algorithm=algorithm, group_size=16, steps=12, eval_rows=ROWS * 16
    )
    if device.type == "cuda":  # which the launcher takes wherever there is one
        assert trainer.model.device.type == "cuda"
    summary = trainer.train()
    assert summary["before"] < 0.35
    assert summary["after"] > 0.75
    assert summary["seconds"] >= summary["train/seconds"] > 0


def test_adapters_alone_learn_and_the_rest_stays(tokenizer: Any) -> None:
    model, _ = load_model("tiny:", lora={"rank": 8}, tokenizer=tokenizer)
    with torch.no_grad():  # a random head hardly hears its decoder; make it listen
        model.get_input_embeddings().weight.mul_(3)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    adapters = {n: p.clone() for n, p in model.named_parameters() if p.requires_grad}
    trainer = make_trainer(
        tokenizer,
        model=model,
        rows=ROWS[:1],
        rows_per_step=1,
        group_size=32,
        steps=16,
        eval_rows=ROWS[:1] * 32,
        seed=4,
    )
    summary = trainer.train()
    assert summary["after"] > summary["before"] + 0.15
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], weight) for name, weight in frozen.items())
    assert not any(torch.equal(after[name], weight) for name, weight in adapters.items())


def test_the_trained_model_is_written_for_plain_transformers(
    tokenizer: Any, tmp_path: Path
) -> None:
    trainer = make_trainer(tokenizer, output_dir=tmp_path)
    trainer.train()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for ours, theirs in zip(trainer.model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(next(loaded.parameters()), next(tiny_model().parameters()))


# --- What it does in which order


def test_it_evaluates_before_between_and_after_and_tells_its_observer(tokenizer: Any) -> None:
    events = Events()
    settings: dict[str, Any] = {"steps": 3, "eval_rows": ROWS, "eval_every_steps": 2}
    make_trainer(tokenizer, observer=events, **settings).train()
    assert events.seen[:-1] == [
        ("start", 0, 3),
        ("evaluation", 0, 3),
        ("rollouts", 1, 8),
        ("step", 1, [4, 4]),
        ("rollouts", 2, 8),
        ("step", 2, [4, 4]),
        ("evaluation", 2, 3),
        ("rollouts", 3, 8),
        ("step", 3, [4, 4]),
        ("evaluation", 3, 3),
    ]
    name, summary = events.seen[-1]
    assert name == "end" and {"before", "after", "seconds", "cpu_seconds"} <= set(summary)


def test_the_run_folder_has_metrics_rollouts_and_checkpoints(
    tokenizer: Any, tmp_path: Path
) -> None:
    make_trainer(
        tokenizer, steps=3, eval_rows=ROWS, checkpoint_every_steps=1, output_dir=tmp_path
    ).train()
    lines = written(tmp_path)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 3]
    assert ["eval/reward/mean" in line for line in lines] == [True, False, False, False, True]
    assert all(math.isfinite(line["loss"]) for line in lines[1:4])
    assert all(0 <= line["reward/mean"] <= 1 for line in lines[1:4])
    names = ["eval_00000", "eval_00003", "step_00001", "step_00002", "step_00003"]
    assert sorted(path.stem for path in (tmp_path / "rollouts").iterdir()) == names
    rollouts = load_rollouts(tmp_path, step=2)
    assert [saved.group for saved in rollouts] == [0] * 4 + [1] * 4
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step_00002", "step_00003"]


def test_a_relative_output_dir_stays_where_it_was_when_an_environment_changes_the_folder(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wanders(SmallLetters):
        def setup(self, row: Any) -> None:
            os.chdir(tmp_path / "elsewhere")

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer(tokenizer, environment=Wanders, output_dir="run", eval_rows=ROWS)
    assert trainer.train()["folder"] == str(tmp_path / "run")
    assert len(written(tmp_path / "run")) == 4
    assert (tmp_path / "run" / "model").is_dir()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_an_output_dir_nothing_is_written(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_trainer(tokenizer, checkpoint_every_steps=1, eval_rows=ROWS).train()
    assert list(tmp_path.iterdir()) == []


def test_evaluation_may_have_more_rows_than_training_and_its_own_sampling(tokenizer: Any) -> None:
    trainer = make_trainer(
        tokenizer,
        rows_per_step=1,
        concurrency=4,
        eval_group_size=2,
        eval_sampling=Sampling(temperature=0.0, max_new_tokens=3),
    )
    before = [weight.clone() for weight in trainer.model.parameters()]
    events = Events()
    trainer.observer = events
    many = [{"prompt": f"Go {i}."} for i in range(40)]
    metrics = trainer.evaluate(many)
    assert metrics["eval/episodes/finished"] == 80
    assert metrics["eval/tokens/sampled"] <= 3 * 80
    assert trainer.evaluate(many)["eval/reward/mean"] == metrics["eval/reward/mean"]
    assert events.seen == [("evaluation", 0, 40)] * 2
    assert all(map(torch.equal, before, trainer.model.parameters()))
    trainer.train()  # and training goes on with its own rows


def test_rows_may_be_a_dataset(tokenizer: Any) -> None:
    rows = datasets.Dataset.from_list(ROWS)
    trainer = make_trainer(tokenizer, rows=rows, eval_rows=rows, steps=1)
    assert 0 <= trainer.train()["after"] <= 1


def test_it_trains_inside_a_running_event_loop(tokenizer: Any) -> None:
    async def notebook() -> dict[str, float]:
        return make_trainer(tokenizer, steps=1, eval_rows=ROWS).train()

    assert 0 <= asyncio.run(notebook())["after"] <= 1


def test_an_error_reaches_a_running_event_loop_as_it_is(tokenizer: Any) -> None:
    class Typo(SmallLetters):
        def reward(self, episode: Any) -> float:
            raise KeyError("anwser")

    async def notebook() -> None:
        make_trainer(tokenizer, environment=Typo).train()

    with pytest.raises(UserCodeError, match="anwser"):
        asyncio.run(notebook())


def test_an_environment_named_by_its_class_gets_the_agents_context_length(tokenizer: Any) -> None:
    lengths = set()

    class Seen(SmallLetters):
        def setup(self, row: Any) -> None:
            lengths.add(self.context_length)

    model = tiny_model(max_position_embeddings=96)
    make_trainer(tokenizer, model=model, environment=Seen, steps=1).train()
    assert lengths == {96}


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["all weights", "adapters"])
def test_the_loss_sees_the_distribution_that_was_sampled(
    lora: dict[str, Any] | None, tokenizer: Any, tmp_path: Path
) -> None:
    """Also at another temperature, and after the weights have changed."""
    model, _ = load_model("tiny:", lora=lora, tokenizer=tokenizer)
    sampling = Sampling(temperature=0.6, max_new_tokens=8)
    make_trainer(tokenizer, model=model, sampling=sampling, steps=3, output_dir=tmp_path).train()
    lines = written(tmp_path)
    assert [line["engine/logprob_difference"] for line in lines] == pytest.approx([0] * 3, abs=1e-5)
    assert [line["clipped"] for line in lines] == [0.0] * 3
    assert all(line["grad_norm"] > 0 for line in lines)


# --- It repeats and resumes


EVERYTHING: dict[str, Any] = {
    "steps": 4,
    "deterministic": True,
    "eval_rows": ROWS,
    "eval_every_steps": 2,
    "checkpoint_every_steps": 2,
    "warmup_steps": 3,
    "weight_decay": 0.01,
}


class Restless(SmallLetters):
    """Every episode takes another time at every place."""

    def setup(self, row: Any) -> None:
        time.sleep(random.random() * 0.01)

    async def turn_reward(self, turn: Any) -> float:
        await asyncio.sleep(random.random() * 0.01)
        return 0.0


@pytest.mark.parametrize("environment", [SmallLetters, Restless])
def test_a_deterministic_run_repeats_bit_for_bit(
    environment: type[Environment], tokenizer: Any, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        make_trainer(
            tokenizer, environment=environment, output_dir=tmp_path / name, **EVERYTHING
        ).train()
    make_trainer(tokenizer, output_dir=tmp_path / "other", seed=1, **EVERYTHING).train()
    first = written(tmp_path / "first")
    assert len(first) == 7
    assert written(tmp_path / "second") == first
    assert written(tmp_path / "other") != first


class Chancy(SmallLetters):
    """A reward that draws from Python's global generator."""

    def reward(self, episode: Any) -> float:
        return random.random()


def test_an_evaluation_changes_nothing_of_what_training_draws(
    tokenizer: Any, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"environment": Chancy, "concurrency": 1, "steps": 3}
    for name, more in {
        "without": {},
        "with": {"eval_rows": ROWS, "eval_every_steps": 1},
    }.items():
        make_trainer(tokenizer, output_dir=tmp_path / name, **settings, **more).train()
    with_evaluations = written(tmp_path / "with")
    steps = [line for line in with_evaluations if "eval/rows" not in line]
    assert steps == written(tmp_path / "without")
    evaluated = [line for line in with_evaluations if "eval/rows" in line]
    assert len({line["eval/reward/mean"] for line in evaluated}) == 1, "and they compare"


@pytest.mark.parametrize(
    "lora", [None, {"rank": 4, "dropout": 0.3}], ids=["all weights", "adapters"]
)
def test_a_run_that_was_killed_resumes_exactly(
    lora: dict[str, Any] | None, tokenizer: Any, tmp_path: Path
) -> None:
    def run(name: str, *, resume: bool = False, **more: Any) -> Trainer:
        model, _ = load_model("tiny:", lora=lora, tokenizer=tokenizer)
        trainer = make_trainer(
            tokenizer, model=model, output_dir=tmp_path / name, **EVERYTHING, **more
        )
        trainer.train(resume=resume)
        return trainer

    def kill(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("killed", observer=Events(kill))
    assert [line["step"] for line in written(tmp_path / "killed")] == [0, 1, 2, 2, 3]
    events = Events()
    with torch.random.fork_rng(devices=[]):
        torch.rand(7)  # in another process, the global generator is somewhere else
        resumed = run("killed", resume=True, observer=events)
    assert events.seen[0] == ("start", 2, 4)
    assert written(tmp_path / "killed") == written(tmp_path / "whole")
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_killed_between_a_step_and_its_evaluation_still_has_both_in_the_end(
    tokenizer: Any, tmp_path: Path
) -> None:
    def kill(step: int) -> None:
        if step == 4:  # its evaluation comes next
            raise KeyboardInterrupt

    settings = EVERYTHING | {"steps": 6}
    make_trainer(tokenizer, output_dir=tmp_path / "whole", **settings).train()
    killed = make_trainer(
        tokenizer, output_dir=tmp_path / "killed", observer=Events(kill), **settings
    )
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    make_trainer(tokenizer, output_dir=tmp_path / "killed", **settings).train(resume=True)
    assert written(tmp_path / "killed") == written(tmp_path / "whole")


def test_what_was_killed_before_it_wrote_anything_begins_again(
    tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no output_dir to resume from"):
        make_trainer(tokenizer).train(resume=True)
    assert make_trainer(tokenizer, output_dir=tmp_path).train(resume=True)["steps"] == 2


def test_a_run_that_ended_is_not_thrown_away_though_its_checkpoints_are(
    tokenizer: Any, tmp_path: Path
) -> None:
    make_trainer(tokenizer, output_dir=tmp_path).train()
    shutil.rmtree(tmp_path / "checkpoints")
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(CheckpointError, match="has ended, and its checkpoints are gone"):
        make_trainer(tokenizer, output_dir=tmp_path, steps=4).train(resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_a_checkpoint_of_another_model_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"output_dir": tmp_path, "checkpoint_every_steps": 1, "steps": 1}
    make_trainer(tokenizer, **settings).train()
    other = tiny_model(num_hidden_layers=2)
    before = [weight.clone() for weight in other.parameters()]
    with pytest.raises(CheckpointError, match="of this model"):
        make_trainer(tokenizer, model=other, **settings).train(resume=True)
    assert all(map(torch.equal, before, other.parameters()))


# --- What cannot go on


def test_a_step_without_any_episode_says_why(tokenizer: Any) -> None:
    long = [{"prompt": "word " * 3000}]
    with pytest.raises(
        TooManyFailures, match=r"step 1: none of 8 .*2 rows have a prompt that leaves no room"
    ):
        make_trainer(tokenizer, rows=long).train()


def test_an_evaluation_without_any_episode_says_why(tokenizer: Any) -> None:
    class Lost(SmallLetters):
        def setup(self, row: Any) -> None:
            raise InfrastructureError("no sandbox")

    with pytest.raises(
        TooManyFailures,
        match=r"evaluation after step 0: none of 3 .*3 were broken by the infrastructure",
    ):
        make_trainer(tokenizer, environment=Lost, eval_rows=ROWS).train()


# --- A deadline


class Hangs(SmallLetters):
    """Answers that the class attributes name never get a reward; the others get it at once."""

    hang: Callable[[int], bool] = staticmethod(lambda number: False)
    begun = 0

    async def reward(self, episode: Any) -> float:  # type: ignore[override]
        number = Hangs.begun
        Hangs.begun += 1
        if Hangs.hang(number):
            await asyncio.Event().wait()
        return float(number)


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_a_step_learns_from_what_finished_by_the_deadline(
    algorithm: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time, each row after the other: groups of four, of one and of none."""
    monkeypatch.setattr(Hangs, "begun", 0)
    monkeypatch.setattr(Hangs, "hang", staticmethod(lambda number: number == 5))
    metrics: list[Mapping[str, float]] = []
    sizes: list[list[int]] = []

    class Keeps(Events):
        def on_step(self, step: int, found: Any, groups: Any) -> None:
            metrics.append(found)
            sizes.append([len(group) for group in groups])

    trainer = make_trainer(
        tokenizer,
        environment=Hangs,
        algorithm=algorithm,
        rows_per_step=3,
        steps=1,
        concurrency=1,
        rollout_deadline_s=4.0,
        observer=Keeps(),
    )
    before = [weight.clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert sizes == [[4, 1, 0]]
    assert metrics[0]["episodes/left_out/deadline"] == 7
    assert metrics[0]["episodes/with_gradient"] == 4  # one alone has nothing to be compared with
    assert math.isfinite(metrics[0]["loss"]) and metrics[0]["grad_norm"] > 0
    assert not all(map(torch.equal, before, trainer.model.parameters()))


def test_a_step_of_single_episodes_goes_on_without_learning(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hangs, "begun", 0)
    monkeypatch.setattr(Hangs, "hang", staticmethod(lambda number: number > 0))
    trainer = make_trainer(tokenizer, environment=Hangs, steps=1, rollout_deadline_s=4.0)
    before = [weight.clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_a_step_without_any_episode_by_the_deadline_says_so(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hangs, "hang", staticmethod(lambda number: True))
    message = r"step 1: none of 8 .*8 were not finished when rollout_deadline_s was over; raise it"
    with pytest.raises(TooManyFailures, match=message):
        make_trainer(tokenizer, environment=Hangs, rollout_deadline_s=0.5).train()


def test_training_begins_when_the_engine_has_let_the_model_go(tokenizer: Any) -> None:
    """The deadline comes amid a slow forward pass; training mode comes after it."""
    sampling, passes, overlaps = threading.Event(), [], list[bool]()
    model = tiny_model()
    train = model.train

    def enter(*_: Any) -> None:
        if threading.current_thread().name == "gymnast-engine":
            sampling.set()
            passes.append(1)
            if len(passes) == 10:  # the short row is done
                time.sleep(1.5)

    def noticed(mode: bool = True) -> Any:
        overlaps.append(sampling.is_set())
        return train(mode)

    def leave(*_: Any) -> None:
        if threading.current_thread().name == "gymnast-engine":
            sampling.clear()

    class Uneven(SmallLetters):
        def setup(self, row: Any) -> None:
            self.max_tokens = row["most"]

        def reward(self, episode: Any) -> float:
            return float(self.np_random.random() + len(episode.answer))

    rows = [{"prompt": "Go.", "most": 4}, {"prompt": "Go on.", "most": 1900}]
    trainer = make_trainer(
        tokenizer,
        model=model,
        environment=Uneven,
        rows=rows,
        sampling=Sampling(max_new_tokens=1900),
        steps=1,
        rollout_deadline_s=1.0,
    )
    model.get_decoder().register_forward_pre_hook(enter)
    model.get_decoder().register_forward_hook(leave)
    model.train = noticed
    trainer.train()
    assert overlaps and not any(overlaps)


def test_an_evaluation_waits_for_all(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Deliberate(SmallLetters):
        async def reward(self, episode: Any) -> float:  # type: ignore[override]
            await asyncio.sleep(0.3)
            return 1.0

    trainer = make_trainer(tokenizer, environment=Deliberate, rollout_deadline_s=0.1)
    assert trainer.evaluate(ROWS)["eval/episodes/finished"] == 3


class FailsOnce(SmallLetters):
    """Raises in the first episode of a step that the class attribute names."""

    episodes = 0
    fails_at = 0

    def reward(self, episode: Any) -> float:
        FailsOnce.episodes += 1
        if FailsOnce.episodes == FailsOnce.fails_at:
            raise ValueError("typo")
        return super().reward(episode)


@pytest.mark.parametrize(
    ("fails_at", "allowed", "goes_on"),
    [(1, None, False), (1, 1, True), (21, None, True), (21, 0, False)],
)
def test_how_many_episodes_may_fail_by_the_users_code(
    fails_at: int, allowed: int | None, goes_on: bool, tokenizer: Any
) -> None:
    """By default none in the first step, and a tenth of a step's twenty episodes after it."""
    FailsOnce.episodes, FailsOnce.fails_at = 0, fails_at
    events = Events()
    trainer = make_trainer(
        tokenizer,
        environment=FailsOnce,
        group_size=10,
        max_failed_episodes=allowed,
        observer=events,
    )
    if goes_on:
        trainer.train()
        sizes = [sorted(event[2]) for event in events.seen if event[0] == "step"]
        assert sorted(sizes) == [[9, 10], [10, 10]]
    else:
        with pytest.raises(UserCodeError, match="typo"):
            trainer.train()


@pytest.mark.parametrize(("allowed", "goes_on"), [(None, True), (1, True), (0, False)])
def test_an_evaluation_excludes_episodes_of_failing_hooks(
    allowed: int | None, goes_on: bool, tokenizer: Any
) -> None:
    """By default a tenth of its episodes may fail."""
    FailsOnce.episodes, FailsOnce.fails_at = 0, 1
    rows = [ROWS[n % len(ROWS)] for n in range(10)]
    trainer = make_trainer(
        tokenizer,
        environment=FailsOnce,
        eval_rows=rows,
        max_failed_episodes=allowed,
    )
    if goes_on:
        metrics = trainer.evaluate()
        assert metrics["eval/episodes/left_out/user_code"] == 1
        assert 0 <= metrics["eval/reward/mean"] <= 1
    else:
        with pytest.raises(UserCodeError) as raised:
            trainer.evaluate()
        assert raised.value.hook == "reward"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"algorithm": "gppo"},
            ConfigError,
            r"algorithm: there is no algorithm 'gppo'.*mean 'g.po'",
        ),
        ({"rows": []}, DataError, "rows: is empty"),
        (
            {"sampling": Sampling(temperature=0.0)},
            ConfigError,
            "temperature: must be > 0 while training, got 0.*evaluation.temperature",
        ),
        ({"sampling": Sampling(top_p=0.9)}, ConfigError, "top_p: must be 1.0 while training"),
        ({"sampling": Sampling(top_k=5)}, ConfigError, "top_k: must be 0 while training"),
        ({"group_size": 1}, ConfigError, "group_size: must be >= 2, got 1"),
        ({"steps": 0}, ConfigError, "steps: must be >= 1, got 0"),
        ({"concurrency": 0}, ConfigError, "concurrency: must be >= 1, got 0"),
        ({"warmup_steps": -1}, ConfigError, "warmup_steps: must be >= 0, got -1"),
        ({"eval_every_steps": -1}, ConfigError, "eval_every_steps: must be >= 0, got -1"),
        ({"checkpoint_every_steps": -1}, ConfigError, "checkpoint_every_steps: must be >= 0"),
        ({"rows_per_step": -1}, ConfigError, "rows_per_step: must be >= 1, got -1"),
        ({"rollout_deadline_s": 0.0}, ConfigError, "rollout_deadline_s: must be > 0, got 0"),
        ({"learning_rate": 0.0}, ConfigError, "learning_rate: must be > 0, got 0"),
        (
            {"learning_rate": math.nan},
            ConfigError,
            "learning_rate: must be a finite number, got nan",
        ),
        (
            {"max_grad_norm": math.nan},
            ConfigError,
            "max_grad_norm: must be a finite number, got nan",
        ),
        ({"weight_decay": -0.1}, ConfigError, "weight_decay: must be >= 0, got -0.1"),
        ({"eval_by": "kind"}, ConfigError, "eval_by: must be a list of columns, or jmespath"),
        ({"environment": "gymnast/Arithmetik-v0"}, UnknownEnvironment, "gymnast/Arithmetic-v0"),
        ({"environment": SmallLetters()}, ConfigError, "a function that makes an environment"),
    ],
)
def test_what_cannot_work_is_refused_before_training(
    settings: dict[str, Any], error: type[Exception], message: str, tokenizer: Any
) -> None:
    with pytest.raises(error, match=message):
        make_trainer(tokenizer, **settings)


def test_a_tokenizer_without_a_chat_template_is_refused_before_training() -> None:
    _, tokenizer = load_model("tiny:")
    tokenizer.chat_template = None
    with pytest.raises(TemplateError, match="has no chat template"):
        make_trainer(tokenizer)


def test_a_model_in_float16_is_not_trained(tokenizer: Any) -> None:
    """Without a scaled loss, gradients of long batches would be zero."""
    trainer = make_trainer(tokenizer, model=tiny_model().half())
    with pytest.raises(ModelError, match=r"in float16.*bfloat16"):
        trainer.train()


def test_an_evaluation_needs_rows(tokenizer: Any) -> None:
    trainer = make_trainer(tokenizer)
    with pytest.raises(ConfigError, match="evaluate: no rows"):
        trainer.evaluate()
    with pytest.raises(ConfigError, match="evaluate: no rows"):
        trainer.evaluate([])


def test_an_estimator_of_ones_own_gets_the_parts_and_decides_what_is_learned(
    tokenizer: Any,
) -> None:
    class TwoParts(SmallLetters):
        def reward(self, episode: Any) -> Any:
            return {"letters": super().reward(episode), "row": ROWS.index(episode.row)}

    seen: list[Any] = []

    def nothing(batch: Any) -> list[torch.Tensor]:
        seen.append(batch)
        return [torch.zeros(len(turns)) for turns in batch.turn_rewards]

    trainer = make_trainer(
        tokenizer, environment=TwoParts, algorithm=nothing, group_size=1, rows_per_step=3, steps=1
    )
    before = [weight.clone() for weight in trainer.model.parameters()]
    trainer.train()
    (batch,) = seen
    assert batch.group.tolist() == [0, 1, 2]
    assert sorted(batch.parts["row"].tolist()) == [0.0, 1.0, 2.0]
    torch.testing.assert_close(batch.parts["row"] + batch.parts["letters"], batch.rewards)
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_a_factory_makes_the_environments(tokenizer: Any) -> None:
    made: list[Environment] = []

    def factory() -> Environment:
        made.append(SmallLetters(Renderer(tokenizer), context_length=64))
        return made[-1]

    groups: list[Sequence[Sequence[Trajectory]]] = []

    class Keeps(Events):
        def on_step(self, step: int, metrics: Any, trajectories: Any) -> None:
            groups.append(trajectories)

    make_trainer(tokenizer, environment=factory, steps=1, concurrency=3, observer=Keeps()).train()
    assert 2 <= len(made) <= 1 + 3  # one was only looked at
    assert all(len(t.ids) <= 64 for group in groups[0] for t in group)
