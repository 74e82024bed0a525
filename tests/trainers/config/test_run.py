"""From a config to a trainer: what each section becomes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.envs import Environment
from gymnast.errors import ConfigError, DataError, UsageError, UserCodeError
from gymnast.trainers.build import build_trainer, evaluation_config
from gymnast.trainers.config.files import parse_config
from gymnast.types import Sampling

SETTINGS: dict[str, Any] = {
    "model": {"name": "tiny:", "dtype": "float32"},
    "environment": {"id": "gymnast/Arithmetic-v0", "max_turns": 2, "system_prompt": "Be brief."},
    "algorithm": {"name": "rloo", "group_size": 2},
    "sampling": {"temperature": 0.7, "max_new_tokens": 8},
    "trainer": {"steps": 1, "rows_per_step": 2},
    "evaluation": {"rows": 5, "temperature": 0.0, "group_size": 3},
    "seed": 4,
}


class WrongGenerator(Environment):
    """Rows from a generator that is written wrongly in one way or another."""

    def sample_row(self, rng: Any) -> Any:
        return self.broken(rng)

    def broken(self, rng: Any) -> Any:
        raise ZeroDivisionError("made on purpose")


class WrongRow(WrongGenerator):
    """Gives a row that is no dict."""

    def broken(self, rng: Any) -> Any:
        return [1]


class AsyncRow(WrongGenerator):
    """Makes rows without blocking."""

    async def sample_row(self, rng: Any) -> Any:
        return {"prompt": f"Say {rng.integers(1000)}."}


def changed(**sections: Any) -> dict[str, Any]:
    return {
        name: {**SETTINGS.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in {**SETTINGS, **sections}.items()
    }


def build(**sections: Any) -> Any:
    return build_trainer(parse_config(changed(**sections)))


def here(name: str) -> dict[str, Any]:
    return {"environment": {"id": f"{__file__}:{name}", "max_turns": 2}}


def test_every_section_reaches_the_trainer() -> None:
    trainer = build()
    assert trainer.sampling == Sampling(temperature=0.7, max_new_tokens=8)
    assert trainer.eval_sampling == Sampling(temperature=0.0, max_new_tokens=8)
    assert (trainer.group_size, trainer.eval_group_size, trainer.steps) == (2, 3, 1)
    assert (len(trainer.eval_rows), trainer.seed, trainer.folder) == (5, 4, None)
    metrics = trainer.evaluate()
    assert metrics["eval/episodes/finished"] == 15


def test_the_environment_gets_its_settings_and_the_models_context() -> None:
    trainer = build(environment={"context_length": 900, "worked_turns": 1})
    env = trainer._rollouts.make_env()
    assert (env.max_turns, env.context_length, len(env.worked)) == (2, 900, 1)
    assert env.system_prompt == "Be brief."
    assert build()._rollouts.make_env().context_length == 2048


def test_adapters_are_trained_where_a_config_says_so() -> None:
    trainer = build(model={"lora": {"rank": 2, "target": ["q_proj"]}, "dtype": "bfloat16"})
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    assert len(trained) == 8  # two matrices in each of four layers
    assert trainer.model.dtype == torch.bfloat16


def test_a_chat_template_may_be_text_or_a_file(tmp_path: Path) -> None:
    template = build().tokenizer.chat_template.replace("Tools:", "You have:")
    (tmp_path / "template.jinja").write_text(template)
    for given in (template, str(tmp_path / "template.jinja")):
        trainer = build(model={"chat_template": given})
        ids, _ = trainer._rollouts.make_env().reset(seed=0)
        assert "You have:" in trainer.tokenizer.decode(ids)


def test_rows_come_from_files_and_no_held_out_one_is_trained_on(tmp_path: Path) -> None:
    rows = [{"q": f"What is {n} plus 1?", "answer": n + 1} for n in range(6)]
    train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.json"
    train.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    held_out.write_text(json.dumps(rows[4:]))
    data = {"train": str(train), "columns": {"prompt": "q", "answer": "answer"}}
    trainer = build(data=data, evaluation={"rows": 2})
    kept, trained = trainer.eval_rows, trainer._rows.batch(0, 4)
    assert sorted(row["answer"] for row in [*kept, *trained]) == [1, 2, 3, 4, 5, 6]

    trainer = build(data=data | {"evaluation": str(held_out)}, evaluation={"rows": None})
    assert sorted(row["answer"] for row in trainer.eval_rows) == [5, 6]
    assert sorted(row["answer"] for row in trainer._rows.batch(0, 4)) == [1, 2, 3, 4]

    with pytest.raises(DataError, match=r"evaluation.rows: must be <= 2"):
        build(data=data | {"evaluation": str(held_out)}, evaluation={"rows": 3})


def test_rows_may_be_made_without_blocking() -> None:
    trainer = build(**here("AsyncRow"))
    assert len({row["prompt"] for row in trainer.eval_rows}) == 5


def test_a_row_generator_that_is_wrong_is_named() -> None:
    with pytest.raises(UserCodeError, match="sample_row: raised ZeroDivisionError"):
        build(**here("WrongGenerator"))
    with pytest.raises(UserCodeError, match=r"sample_row: gave \[1\]; a row must be a dict"):
        build(**here("WrongRow"))


def test_the_config_is_kept_in_the_runs_folder(tmp_path: Path) -> None:
    from gymnast.trainers.config.files import load_config

    trainer = build(output_dir=str(tmp_path / "out"))
    assert trainer.folder.path == tmp_path / "out"
    kept = load_config(tmp_path / "out" / "config.yaml")
    assert kept == parse_config(changed(output_dir=str(tmp_path / "out")))


def test_a_config_that_does_not_hold_never_reaches_a_model() -> None:
    with pytest.raises(ConfigError, match=r"trainer.steps: must be >= 1"):
        build(trainer={"steps": 0})


# Evaluation

LARGE: dict[str, Any] = {
    "id": "gymnast/Arithmetic-v0",
    "max_turns": 2,
    "min_operand": 100,
    "max_operand": 999,
}


def test_evaluation_has_a_sampling_of_its_own_and_training_keeps_its_check() -> None:
    own: dict[str, Any] = {"top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}
    trainer = build(evaluation=own | {"max_new_tokens": 3})
    assert trainer.eval_sampling == Sampling(temperature=0.0, max_new_tokens=3, **own)
    assert trainer.sampling == Sampling(temperature=0.7, max_new_tokens=8)
    with pytest.raises(ConfigError, match=r"For evaluation alone set evaluation.top_k"):
        build(sampling={"top_k": 5})


def test_an_evaluation_alone_takes_any_sampling(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(json.dumps(changed(evaluation={"temperature": None})))
    overrides = ["sampling.temperature=0", "sampling.top_p=0.5", "evaluation.top_k=3"]
    config = evaluation_config(tmp_path / "run.yaml", overrides)
    trainer = build_trainer(config.model_copy(update={"output_dir": None}))
    assert trainer.eval_sampling == Sampling(temperature=0, top_p=0.5, top_k=3, max_new_tokens=8)


def test_an_evaluation_alone_needs_rows_also_where_there_is_a_second_dataset(
    tmp_path: Path,
) -> None:
    data = {"train": "a.jsonl", "evaluation": "b.jsonl"}
    (tmp_path / "run.yaml").write_text(json.dumps(changed(data=data)))
    with pytest.raises(ConfigError, match=r"evaluation.rows: is required to evaluate"):
        evaluation_config(tmp_path / "run.yaml", ["evaluation.rows=0"])


def test_further_environments_and_tags_are_evaluated_by_name() -> None:
    evaluation = {"by": {"large": "a > `99`"}, "environments": {"large": LARGE | {"rows": 2}}}
    metrics = build(evaluation=evaluation | {"pass_reward": 0.0}).evaluate()
    assert metrics["eval/pass@1"] == 1  # whatever the reward
    assert (metrics["eval/rows"], metrics["eval/large/rows"]) == (5, 2)
    assert metrics["eval/episodes/finished"] == 15
    assert metrics["eval/large/episodes/finished"] == 6
    divisions = {name.split("/reward")[0] for name in metrics if "by/" in name and "mean" in name}
    assert divisions == {"eval/by/large=false", "eval/large/by/large=true"}
    assert {"eval/pass@1", "eval/pass@2", "eval/pass@3", "eval/large/pass@3/low"} <= set(metrics)


def test_a_further_environment_may_have_a_file_of_rows_none_of_which_is_trained_on(
    tmp_path: Path,
) -> None:
    rows = [{"q": f"What is {n} plus 1?", "answer": n + 1} for n in range(6)]
    train, exam = tmp_path / "train.jsonl", tmp_path / "exam.json"
    train.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    exam.write_text(json.dumps(rows[3:]))
    columns = {"prompt": "q", "answer": "answer"}
    section = {"id": "gymnast/Arithmetic-v0", "data": str(exam), "columns": columns}
    trainer = build(
        data={"train": str(train), "columns": columns},
        evaluation={"rows": 1, "environments": {"exam": section}, "group_size": 1},
    )
    trained = {row["answer"] for row in trainer._rows.batch(0, 60)}
    assert trained == {1, 2, 3} - {row["answer"] for row in trainer.eval_rows}
    assert trainer.evaluate()["eval/exam/rows"] == 3
    with pytest.raises(DataError, match=r"evaluation.environments.exam.rows: must be <= 3, the"):
        build(evaluation={"environments": {"exam": section | {"rows": 4}}})


def test_rows_made_by_a_further_environment_are_not_trained_on() -> None:
    """Both make rows by one generator; the further environment holds out more of them."""
    few = {"min_operand": 2, "max_operand": 4}
    more = {"id": "gymnast/Arithmetic-v0", **few, "rows": 12}
    trainer = build(environment=few, evaluation={"rows": 3, "environments": {"more": more}})
    held_out = [row for _, rows in trainer._evaluation.others.values() for row in rows]
    assert len(held_out) == 12
    assert not [row for row in trainer._rows.batch(0, 50) if row in held_out]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"id": "gymnast/Arithmetik-v0"}, "there is no environment 'gymnast/Arithmetik-v0'"),
        ({"id": "gymnast/Arithmetic-v0", "max_turn": 3}, "Arithmetic has no setting 'max_turn'"),
        (
            LARGE | {"context_length": 9999},
            "context_length: must be <= 2048, the context that tiny:",
        ),
        (LARGE | {"max_operand": 102, "rows": 99}, "rows: must be < 18, got 99"),
        ({"id": "gymnast.envs:Environment"}, "data: is required: Environment makes no rows"),
    ],
)
def test_a_further_environment_that_is_wrong_is_named(section: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(evaluation={"environments": {"other": section}})
    place = "evaluation.environments.other"
    assert str(caught.value).startswith((f"{place}: {said}", f"{place}.{said}"))
