"""A warm-up learns from demonstrations before RL; what it does is seen, and kept."""

import copy
import json
import math
import os
import signal
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from accelerate import Accelerator

from clocks import without_clocks
from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer, call, tool
from gymnast.errors import ConfigError, DataError, InfrastructureError
from gymnast.trainers import Kl, Trainer, make_algorithm
from gymnast.trainers.base.stopping import Stopping
from gymnast.trainers.data.rows import Row, RowSource
from gymnast.trainers.demonstrations.files import read_demonstrations
from gymnast.trainers.demonstrations.layout import trajectory_of
from gymnast.trainers.demonstrations.sources import SolvedRows
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.update import UpdateSettings, update
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import Sampling, Span, Trajectory
from sampled_groups import KeepsGradients, forward_logprobs, random_groups

ROWS = [{"prompt": word} for word in ("Go.", "Now.", "Then.")]


class Door(Environment):
    """Open the door, then say so: nothing that an untrained model does by chance."""

    @tool
    def open_door(self) -> str:
        """Open the door."""
        return "open"

    def reward(self, episode: Any) -> float:
        called = [made.name for made in episode.tool_calls]
        return float(called == ["open_door"] and episode.answer == "in")

    def solve(self, row: Any) -> Any:
        [result] = yield call("open_door")
        assert result["content"] == "open"
        yield "in"


class Wrong(Door):
    """Whose solution does not do what is asked."""

    def solve(self, row: Any) -> Any:
        yield "in"


class Sees:
    """Keeps what it is told of the warm-up."""

    def __init__(self) -> None:
        self.warmup: list[tuple[int, dict[str, float]]] = []
        self.started: dict[str, Any] = {}

    def on_start(self, trainer_info: Any) -> None:
        self.started = dict(trainer_info)

    def on_rollouts(self, step: int, done: int, total: int) -> None: ...

    def on_warmup_step(self, step: int, metrics: Any) -> None:
        self.warmup.append((step, dict(metrics)))

    def on_step(self, step: int, metrics: Any, groups: Any) -> None: ...

    def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None: ...

    def on_end(self, summary: Any) -> None: ...


def make_trainer(tokenizer: Any, **settings: Any) -> Trainer:
    small: dict[str, Any] = {
        "environment": Door,
        "rows": ROWS,
        "warmup": {"demonstrations": "solve", "steps": 3, "rows_per_step": 2},
        "sampling": Sampling(max_new_tokens=24),
        "learning_rate": 3e-3,
        "group_size": 2,
        "rows_per_step": 2,
        "steps": 1,
        "observer": None,
        **settings,
    }
    environment, rows = small.pop("environment"), small.pop("rows")
    return Trainer(small.pop("model", None) or tiny_model(), tokenizer, environment, rows, **small)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def demonstration(renderer: Renderer, words: str = "in") -> Trajectory:
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": words}]
    return trajectory_of(messages, (), renderer)


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def test_a_model_that_knows_nothing_learns_to_use_a_tool(tokenizer: Any, tmp_path: Path) -> None:
    trainer = make_trainer(
        tokenizer,
        warmup={"demonstrations": "solve", "steps": 40, "rows_per_step": 2},
        rows=ROWS[:2],
        eval_rows=ROWS[2:],
        eval_sampling=Sampling(temperature=0.0, max_new_tokens=24),
        output_dir=tmp_path / "run",
    )
    summary = trainer.train()
    assert (summary["before"], summary["after_warmup"]) == (0.0, 1.0)
    evaluations = [line for line in lines(tmp_path / "run") if "eval/reward/mean" in line]
    places = [(line["step"], line.get("warmup/step")) for line in evaluations]
    assert places == [(0, None), (0, 40), (1, None)]


def test_every_step_of_it_is_a_line_and_an_event(tokenizer: Any, tmp_path: Path) -> None:
    sees = Sees()
    make_trainer(tokenizer, observer=sees, output_dir=tmp_path / "run").train()
    found = [line for line in lines(tmp_path / "run") if "warmup/loss" in line]
    assert [(line["step"], line["warmup/step"]) for line in found] == [(0, 1), (0, 2), (0, 3)]
    assert [step for step, _ in sees.warmup] == [1, 2, 3]
    assert sees.started["warmup_steps"] == 3
    losses = [line["warmup/loss"] for line in found]
    assert losses[0] > losses[1] > losses[2] > 0
    assert all(line["warmup/episodes"] == 2 and line["warmup/reward"] == 1 for line in found)
    assert all(line["warmup/learning_rate"] == 3e-3 for line in found)


def test_the_rollouts_of_both_first_evaluations_are_kept(tokenizer: Any, tmp_path: Path) -> None:
    make_trainer(tokenizer, eval_rows=ROWS[:1], output_dir=tmp_path / "run").train()
    names = {path.stem for path in (tmp_path / "run/rollouts").iterdir()}
    assert names == {"eval_00000", "eval_00000_warmup", "step_00001", "eval_00001"}


# --- What it leaves behind


def test_it_goes_on_where_it_was_stopped_bit_for_bit(tokenizer: Any, tmp_path: Path) -> None:
    """Stopped amid the warm-up, after it, and amid RL; with a reference that has to be kept."""
    settings: dict[str, Any] = {
        "algorithm": make_algorithm("grpo", kl=Kl(0.1), demonstration_weight=0.5),
        "eval_rows": ROWS[2:],
        "steps": 2,
        "deterministic": True,
        "checkpoint_every_steps": 1,
    }
    whole = make_trainer(tokenizer, output_dir=tmp_path / "whole", **settings)
    whole.train()
    stopped = Stops(after=[2, 3, 4])
    for _ in range(4):
        parted = make_trainer(
            tokenizer, output_dir=tmp_path / "parted", observer=stopped, **settings
        )
        stopped.trainer = parted
        summary = parted.train(resume=stopped.count > 0)
    assert summary["stopped_by"] == "steps" and stopped.after == []
    assert all(map(torch.equal, weights(whole), weights(parted)))
    written = [list(map(without_clocks, lines(tmp_path / name))) for name in ("whole", "parted")]
    assert written[0] == written[1]


def test_a_run_that_goes_on_with_a_shorter_warm_up_can_be_stopped_before_its_first_step(
    tokenizer: Any, tmp_path: Path
) -> None:
    class StopsAtAnEvaluation(Sees):
        def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    def go_on(observer: Any, steps: int, *, resume: bool) -> str:
        trainer = make_trainer(
            tokenizer,
            warmup={"demonstrations": "solve", "steps": steps, "rows_per_step": 2},
            eval_rows=ROWS[2:],
            output_dir=tmp_path / "run",
            observer=observer,
        )
        stopped_by: str = trainer.train(resume=resume)["stopped_by"]
        return stopped_by

    assert go_on(Stops(after=[2]), 3, resume=False) == "Ctrl-C"
    assert go_on(StopsAtAnEvaluation(), 1, resume=True) == "Ctrl-C"
    assert go_on(None, 1, resume=True) == "steps"


class Stops(Sees):
    """Asks the run to stop after some of its steps, those of the warm-up included."""

    def __init__(self, after: list[int]) -> None:
        super().__init__()
        self.after, self.count = after, 0
        self.trainer: Trainer | None = None

    def on_warmup_step(self, step: int, metrics: Any) -> None:
        self._count()

    def on_step(self, step: int, metrics: Any, groups: Any) -> None:
        self._count()

    def _count(self) -> None:
        self.count += 1
        if self.after and self.count == self.after[0]:
            del self.after[0]
            os.kill(os.getpid(), signal.SIGINT)


def test_rl_begins_with_a_fresh_optimizer_and_the_warm_model_as_its_reference(
    tokenizer: Any,
) -> None:
    """As if the warm model had been saved, and loaded by another run."""
    warm = make_trainer(tokenizer, algorithm=make_algorithm("grpo", kl=Kl(0.1)), steps=2)
    seen: list[Any] = []
    step = warm.train_step

    def keeping() -> None:
        if not seen:
            seen.append(copy.deepcopy(warm.model))
        step()

    warm.train_step = keeping  # type: ignore[method-assign]
    warm.train()
    loaded = make_trainer(
        tokenizer,
        model=seen[0],
        algorithm=make_algorithm("grpo", kl=Kl(0.1)),
        steps=2,
        warmup=None,
    )
    loaded.train()
    assert all(map(torch.equal, weights(warm), weights(loaded)))


def test_the_reference_of_adapters_is_the_warm_model_too(tokenizer: Any, tmp_path: Path) -> None:
    model, _ = load_model("tiny:", lora={"rank": 4}, tokenizer=tokenizer)
    trainer = make_trainer(
        tokenizer,
        model=model,
        algorithm=make_algorithm("rejection", threshold=-1.0, kl=Kl(0.1)),
        output_dir=tmp_path / "run",
    )
    trainer.train()
    (line,) = [line for line in lines(tmp_path / "run") if "kl" in line]
    assert line["kl"] == pytest.approx(0.0, abs=1e-6), "in the first step nothing has moved yet"


# --- Beside RL


def test_demonstrations_teach_beside_episodes_that_teach_nothing(
    tokenizer: Any, tmp_path: Path
) -> None:
    trainer = make_trainer(
        tokenizer,
        warmup={"demonstrations": "solve", "steps": 0},
        algorithm=make_algorithm("grpo", demonstration_weight=0.1),
        steps=3,
        output_dir=tmp_path / "run",
    )
    trainer.train()
    found = lines(tmp_path / "run")
    assert all(line["reward/mean"] == 0 and line["loss"] == 0 for line in found)
    losses = [line["demonstrations/loss"] for line in found]
    assert losses[0] > losses[1] > losses[2]


class Sometimes(Door):
    """Has a solution for one of the rows."""

    def solve(self, row: Any) -> Any:
        return None if row["prompt"] == "Stay." else super().solve(row)


def test_a_step_of_rl_whose_rows_have_no_demonstration_learns_without(
    tokenizer: Any, tmp_path: Path
) -> None:
    trainer = make_trainer(
        tokenizer,
        environment=Sometimes,
        rows=Listed([{"prompt": word} for word in ("Go.", "Stay.", "Now.")]),
        warmup={"demonstrations": "solve", "steps": 0},
        algorithm=make_algorithm("grpo", demonstration_weight=0.1),
        rows_per_step=1,
        steps=3,
        output_dir=tmp_path / "run",
    )
    assert trainer.train()["steps"] == 3
    found = lines(tmp_path / "run")
    assert ["demonstrations/loss" in line for line in found] == [True, False, True]


class Listed(RowSource):
    """Rows in the order of a list."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def row(self, position: int) -> Row:
        return self._rows[position % len(self._rows)]


class Breaks(Door):
    """Whose tool's machine is always broken in one row, and once in another."""

    broken: ClassVar[list[str]] = []

    def setup(self, row: Any) -> None:
        word = row["prompt"]
        if word == "Now." or (word == "Then." and word not in self.broken):
            self.broken.append(word)
            raise InfrastructureError(f"no machine for {word}")


def test_solutions_that_cannot_be_played_now_or_are_too_long_are_left_out(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Breaks.broken.clear()
    source = SolvedRows(
        Accelerator(),
        lambda: Breaks(Renderer(tokenizer), context_length=600),
        Listed([*ROWS, {"prompt": "Go on. " * 200}]),
        seed=0,
        min_reward=1.0,
        stopping=Stopping(),
    )
    assert [found.row["prompt"] for found in source.take(0, 4)] == ["Go.", "Then."]
    assert sorted(Breaks.broken) == ["Now.", "Now.", "Then."]
    assert "a solution broke twice and is left out: no machine for Now." in caplog.text


def test_the_gradient_is_that_of_both_losses_in_one_step(
    tokenizer: Any, renderer: Renderer
) -> None:
    """RL's gradient plus the weight times that of the mean negative log-likelihood."""
    groups, shown = random_groups(tiny_model(), [[0.0, 1.0], [1.0, 0.5]]), demonstration(renderer)

    def gradients(weight: float, groups: Any) -> list[torch.Tensor]:
        model = tiny_model()
        optimizer = KeepsGradients(model.parameters(), learning_rate=0.1)
        settings = UpdateSettings(make_algorithm("rloo", demonstration_weight=weight), math.inf, 64)
        given = (groups, settings, Accelerator())
        update(Policy(model), optimizer, *given, demonstrations=[shown, shown])
        return optimizer.gradients

    model = tiny_model()
    actions = torch.tensor(shown.action_mask, dtype=torch.bool)
    nll = -forward_logprobs(model, shown.ids)[actions].mean()
    alone = torch.autograd.grad(nll, list(model.parameters()))
    both, rl = gradients(0.3, groups), gradients(0.0, groups)
    for ours, first, second in zip(both, rl, alone, strict=True):
        torch.testing.assert_close(ours, first + 0.3 * second, rtol=1e-4, atol=1e-6)


# --- What is given


def test_a_list_or_a_file_of_conversations_will_do(
    tokenizer: Any, renderer: Renderer, tmp_path: Path
) -> None:
    file = tmp_path / "demos.jsonl"
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "in"}]
    file.write_text(json.dumps({"messages": messages}) + "\n\n")
    named = {"demonstrations": str(file), "steps": 2, "rows_per_step": 1}
    listed = named | {"demonstrations": [demonstration(renderer)]}
    trainers = [make_trainer(tokenizer, warmup=warmup) for warmup in (named, listed)]
    for trainer in trainers:
        trainer.train()
    assert all(map(torch.equal, *map(weights, trainers)))


def test_conversations_that_answer_an_evaluation_row_are_left_out(
    renderer: Renderer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def talk(*asked: str) -> str:
        said = [
            ({"role": "user", "content": a}, {"role": "assistant", "content": "42"}) for a in asked
        ]
        return json.dumps({"messages": [message for pair in said for message in pair]})

    file = tmp_path / "demos.jsonl"
    file.write_text(
        "\n".join(map(talk, ["Own?", "Exam?", "Shared?"])) + "\n" + talk("Own?", "Exam?")
    )
    system = {"role": "system", "content": "Be brief."}
    exam = {"prompt": [system, {"role": "user", "content": [{"type": "text", "text": "Exam?"}]}]}
    shared = [{"prompt": "Shared?", "seed": seed} for seed in range(2)]
    excluded: list[Row] = [exam, *shared, {"no": "prompt"}]
    found = read_demonstrations(file, renderer, min_reward=1.0, excluded=excluded)
    assert [each.messages[0]["content"] for each in found] == ["Own?", "Shared?"]
    assert "2 of 4 demonstrations are of evaluation rows, and left out" in caplog.text


def test_only_a_new_line_ends_a_line(renderer: Renderer, tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Go.\u2028Now."}, {"role": "assistant", "content": "in"}]
    text = json.dumps({"messages": said}, ensure_ascii=False) + "\r\n"
    (tmp_path / "demos.jsonl").write_bytes(text.encode())
    (found,) = read_demonstrations(tmp_path / "demos.jsonl", renderer, min_reward=1.0)
    assert found.messages[0]["content"] == "Go.\u2028Now."


def test_rows_are_compared_as_a_file_has_them(renderer: Renderer, tmp_path: Path) -> None:
    row = {"prompt": "Go.", "day": datetime(2024, 1, 2), "board": (1, 2)}
    good = replace(demonstration(renderer), turn_rewards=[1.0], no_reward=False)
    write_rollouts(tmp_path / "demos.parquet", [[replace(good, row=row), good]])
    found = read_demonstrations(
        tmp_path / "demos.parquet", renderer, min_reward=1.0, excluded=[row]
    )
    assert [each.row for each in found] == [{}]


def test_a_file_is_not_learned_from_where_a_further_environment_is_evaluated(
    tokenizer: Any, renderer: Renderer, tmp_path: Path
) -> None:
    row = {"prompt": "Exam."}
    exam = replace(demonstration(renderer), turn_rewards=[1.0], no_reward=False, row=row)
    write_rollouts(tmp_path / "demos.parquet", [[exam]], tokenizer=tokenizer)
    warmup = {"demonstrations": str(tmp_path / "demos.parquet")}
    with pytest.raises(DataError, match="has no demonstration to learn from: it is empty"):
        make_trainer(tokenizer, warmup=warmup, eval_environments={"exam": (Door, [row])})


def test_saved_episodes_of_the_same_tokenizer_keep_their_ids(
    tokenizer: Any, renderer: Renderer, tmp_path: Path
) -> None:
    odd = demonstration(renderer, "answer")
    letters = [number for letter in "answer" for number in tokenizer.encode(letter)]
    ids = [*odd.ids[: odd.prompt_length], *letters, *renderer.stop_ids[:1]]
    assert ids != odd.ids, "the same text, as another tokenization"
    length = len(ids) - odd.prompt_length
    odd = replace(
        odd,
        ids=ids,
        action_mask=[0] * odd.prompt_length + [1] * length,
        logprobs=[0.0] * len(ids),
        turns=[Span(odd.prompt_length, len(ids))],
        turn_rewards=[1.0],
        no_reward=False,
    )
    worse = replace(odd, turn_rewards=[0.5])
    held_out = replace(odd, row={"prompt": "held out"})
    write_rollouts(tmp_path / "demos.parquet", [[odd, worse, held_out]], tokenizer=tokenizer)
    (found,) = read_demonstrations(
        tmp_path / "demos.parquet", renderer, min_reward=1.0, excluded=[{"prompt": "held out"}]
    )
    assert found.ids == ids
    write_rollouts(tmp_path / "other.parquet", [[odd]])  # nobody says of which tokenizer
    (found,) = read_demonstrations(tmp_path / "other.parquet", renderer, min_reward=1.0)
    assert found.ids == demonstration(renderer, "answer").ids, "laid out anew"


@pytest.mark.parametrize(
    ("warmup", "message"),
    [
        ({"steps": 3}, "warmup.demonstrations: "),
        ({"demonstrations": "solve", "steps": -1}, "warmup.steps: must be >= 0, got -1"),
        ({"demonstrations": "solve", "stps": 1}, "warmup.stps: unknown key; did you mean steps?"),
        ({"demonstrations": []}, "warmup.demonstrations: is empty"),
        ({"demonstrations": ["solve"]}, "entry 0 must be a Trajectory with action tokens"),
        ({"demonstrations": "nowhere.jsonl"}, "there is no such file. `gymnast demos` writes one"),
        ({"demonstrations": "."}, "is a folder; name a file in it"),
    ],
)
def test_what_does_not_hold_is_refused(warmup: Any, message: str, tokenizer: Any) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        make_trainer(tokenizer, warmup=warmup)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_weight_without_demonstrations_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"demonstration_weight: is 0.1, and there are no demo"):
        make_trainer(
            tokenizer, warmup=None, algorithm=make_algorithm("grpo", demonstration_weight=0.1)
        )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: is not JSON"),
        ("{}", 'line 1: must have "messages"'),
        (
            '{"messages": [{"role": "user", "content": "Go."}]}',
            "must hold at least one of the assistant, got 0",
        ),
        ('{"messages": [], "tools": 3}', '"tools" must be a list of schemas'),
        ('{"messages": [], "turns": "2"}', '"turns" must be a whole number'),
    ],
)
def test_a_line_that_is_no_conversation_is_named(
    line: str, message: str, tokenizer: Any, tmp_path: Path
) -> None:
    (tmp_path / "demos.jsonl").write_text(line + "\n")
    with pytest.raises(DataError) as caught:
        make_trainer(tokenizer, warmup={"demonstrations": str(tmp_path / "demos.jsonl")})
    assert message in str(caught.value)


def test_a_solution_that_earns_too_little_ends_the_run_with_its_reward(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"the best reward is 0, and warmup.min_reward is 1"):
        make_trainer(tokenizer, environment=Wrong).train()
