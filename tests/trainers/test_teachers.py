"""Whole runs with a teacher: what a small student takes over, what is refused, how it resumes."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.envs import Environment, Renderer
from gymnast.errors import ConfigError, ModelError
from gymnast.trainers import Kl, Teacher, Trainer, make_algorithm
from gymnast.trainers.algorithms.distillation import EstimatorName
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import load_config
from gymnast.trainers.evaluating.targets import evaluation_config
from gymnast.types import Sampling

TOKENIZER = tiny_tokenizer()
ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.", "Then.")]
HINT = "What is 3 plus 3?"


class Answers(Environment):
    """Whether the answer is the one of the hint."""

    def hint(self, row: Mapping[str, Any]) -> Any:
        return [{"role": "user", "content": HINT}]

    def reward(self, episode: Any) -> float:
        return float(episode.answer == "33 and 33")


class Plain(Environment):
    """Neither a hint nor a reward."""


class Keeps:
    """Keeps the metrics of steps."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []

    def on_start(self, trainer_info: Any) -> None: ...

    def on_rollouts(self, step: int, done: int, total: int) -> None: ...

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self.steps.append(dict(metrics))

    def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None: ...

    def on_end(self, summary: Any) -> None: ...


def trainer(teacher: Teacher, model: Any = None, **settings: Any) -> Trainer:
    small: dict[str, Any] = {
        "environment": Answers,
        "algorithm": make_algorithm("distillation", teacher=teacher),
        "sampling": Sampling(max_new_tokens=6),
        "group_size": 1,
        "rows_per_step": 4,
        "learning_rate": 3e-3,
        "steps": 2,
        "deterministic": True,
        "observer": None,
    }
    small |= settings
    environment = small.pop("environment")
    return Trainer(model or tiny_model(), TOKENIZER, environment, ROWS, **small)


# --- What is learned


def sharp(seed: int) -> Any:
    """A model that is sure of what it says."""
    model = tiny_model(seed=seed)
    with torch.no_grad():
        model.model.norm.weight.mul_(6.0)
    return model


def near(model: Any) -> Any:
    """The model with noise on its weights: a teacher of what the policy samples already."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.6 * weight.std())
    return model


def divergences(teacher: Teacher, **settings: Any) -> list[float]:
    """The divergence from a teacher in each of twelve steps."""
    seen = Keeps()
    settings = {"environment": Plain, "steps": 12, "observer": seen} | settings
    trainer(teacher, sharp(0), **settings).train()
    return [step["teacher/kl"] for step in seen.steps]


def test_from_sampled_tokens_a_student_halves_its_divergence_from_a_teacher() -> None:
    found = divergences(Teacher(near(sharp(0))), group_size=8, learning_rate=3e-4)
    assert found[0] > 1.5 and sum(found[-3:]) / 3 < found[0] / 2


def test_over_the_vocabulary_a_student_takes_over_a_teacher_of_other_habits() -> None:
    found = divergences(Teacher(sharp(1), estimator="exact"), group_size=4)
    assert found[0] > 1.0 and found[-1] < found[0] / 3


def knows_two_answers() -> Any:
    """A model that says 33 and 33 where it is hinted at it, and 77 and 77 where it is not."""
    model, renderer = tiny_model(), Renderer(TOKENIZER)
    hint = [{"role": "user", "content": HINT}]
    examples: list[tuple[torch.Tensor, int]] = []
    for row in ROWS:
        prompt = [{"role": "user", "content": row["prompt"]}]
        for messages, answer in ((prompt, "77 and 77"), ([*hint, *prompt], "33 and 33")):
            prompt_ids = renderer.prompt(messages)
            said = TOKENIZER.encode(f"{answer}<|im_end|>")
            examples.append((torch.tensor([*prompt_ids, *said]), len(prompt_ids)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(25):
        loss = torch.zeros(())
        for ids, start in examples:
            logits = model(ids[None]).logits[0, start - 1 : -1]
            loss = loss + torch.nn.functional.cross_entropy(logits, ids[start:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl"])
def test_a_model_does_without_the_hint_what_it_did_with_it(divergence: Any) -> None:
    run = trainer(
        Teacher("base", estimator="exact", divergence=divergence),
        knows_two_answers(),
        steps=12,
        learning_rate=1e-3,
        eval_rows=ROWS,
        eval_sampling=Sampling(max_new_tokens=6, temperature=0.0),
    )
    summary = run.train()
    assert summary["before"] == 0.0 and summary["after"] == 1.0


# --- What is refused


def test_hints_of_an_environment_that_has_none_are_refused() -> None:
    message = r"algorithm.teacher.hints: is true, and Plain has no hook hint\(row\)"
    with pytest.raises(ConfigError, match=message):
        trainer(Teacher("policy"), environment=Plain)
    made = trainer(Teacher("policy"), environment=lambda: Plain(Renderer(TOKENIZER)))
    with pytest.raises(ConfigError, match=message):  # a function shows it in its first episode
        made.train()


def test_a_teacher_of_another_vocabulary_is_refused_with_tokens_that_differ(
    tmp_path: Path,
) -> None:
    other = tiny_tokenizer()
    other.add_tokens(["<think>", "</think>"])
    tiny_model(vocab_size=1040).save_pretrained(tmp_path / "other")
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match=r"<think>' \(none, the teacher's 1030\)"):
        trainer(Teacher(str(tmp_path / "other")))


def test_a_teacher_with_fewer_logits_than_tokens_is_refused() -> None:
    with pytest.raises(ModelError, match="Qwen3ForCausalLM has logits for 1,000 tokens"):
        trainer(Teacher(tiny_model(vocab_size=1000)), environment=Plain)


def test_a_teacher_with_more_logits_than_the_policy_teaches_the_tokens_both_have() -> None:
    seen = Keeps()
    for estimator in get_args(EstimatorName):
        teacher = Teacher(tiny_model(vocab_size=1088, seed=1), estimator=estimator)
        trainer(teacher, environment=Plain, steps=1, observer=seen).train()
    assert [step["teacher/episodes"] for step in seen.steps] == [1.0, 1.0]


def test_a_teacher_that_does_not_exist_is_said_before_the_run() -> None:
    with pytest.raises(ModelError, match="no/such"):
        trainer(Teacher("./no/such"))


# --- Runs


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def metrics(folder: Path, *names: str) -> list[list[float]]:
    return [[line[name] for name in names] for line in metrics_of(folder)]


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["all weights", "adapters"])
def test_a_resumed_run_is_the_whole_run_with_a_teacher_and_a_reference_that_is_refreshed(
    lora: Any, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "algorithm": make_algorithm(
            "grpo",
            kl=Kl(0.5, refresh_every_steps=2),
            teacher=Teacher("base"),
            epochs=2,
        ),
        "group_size": 2,
        "rows_per_step": 1,
        "steps": 5,
        "checkpoint_every_steps": 3,
    }

    def made(name: str) -> Trainer:
        model, _ = load_model("tiny:", lora=lora, tokenizer=TOKENIZER)
        return trainer(Teacher("base"), model, output_dir=tmp_path / name, **settings)

    whole = made("whole")
    whole.train()
    cut = made("cut")
    cut.loop.begin(resume=False)
    for _ in range(3):  # the reference was refreshed before the third, and is before the fifth
        cut.train_step()
    cut.loop._save_checkpoint()
    again = made("cut")
    again.train(resume=True)
    assert torch.equal(weights(again), weights(whole))
    names = ("kl", "teacher/kl", "loss")
    assert metrics(tmp_path / "cut", *names) == metrics(tmp_path / "whole", *names)


def test_evaluations_ask_for_no_hint() -> None:
    asked = []

    class Counts(Answers):
        """Counts who asks."""

        def hint(self, row: Mapping[str, Any]) -> Any:
            asked.append(row)
            return super().hint(row)

    run = trainer(Teacher("policy"), environment=Counts, steps=1, eval_rows=ROWS)
    run.train()
    assert len(asked) == 4


def test_a_yaml_names_a_teacher_beside_it_and_an_evaluation_does_without(tmp_path: Path) -> None:
    tiny_model(seed=1).save_pretrained(tmp_path / "teacher")
    TOKENIZER.save_pretrained(tmp_path / "teacher")
    (tmp_path / "run.yaml").write_text(
        """\
model: {name: "tiny:"}
environment: {id: gymnast/Arithmetic-v0, max_turns: 3}
algorithm:
  name: distillation
  group_size: 1
  teacher: {model: ./teacher, estimator: exact, dtype: float32}
sampling: {max_new_tokens: 6}
trainer: {steps: 1, rows_per_step: 2}
evaluation: {rows: 2}
"""
    )
    folder = tmp_path / "run"
    config = load_config(tmp_path / "run.yaml", [f"output_dir={folder}"])
    build_trainer(config).train()
    (line,) = (line for line in metrics_of(folder) if "teacher/kl" in line)
    assert line["teacher/kl"] > 0 and line["teacher/episodes"] == 1.0
    shutil.rmtree(tmp_path / "teacher")
    alone = evaluation_config(folder, []).model_copy(update={"output_dir": None})
    assert build_trainer(alone).evaluate()["eval/episodes/finished"] == 2
