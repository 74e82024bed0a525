"""From a config to a trainer: what each section becomes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.envs import Environment
from gymnast.errors import ConfigError, DataError, UserCodeError
from gymnast.trainers.config import parse_config
from gymnast.trainers.run import build_trainer
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
    env = trainer._make_env()
    assert (env.max_turns, env.context_length, len(env.worked)) == (2, 900, 1)
    assert env.system_prompt == "Be brief."
    assert build()._make_env().context_length == 2048


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
        ids, _ = trainer._make_env().reset(seed=0)
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
    from gymnast.trainers.config import load_config

    trainer = build(output_dir=str(tmp_path / "out"))
    assert trainer.folder.path == tmp_path / "out"
    kept = load_config(tmp_path / "out" / "config.yaml")
    assert kept == parse_config(changed(output_dir=str(tmp_path / "out")))


def test_a_config_that_does_not_hold_never_reaches_a_model() -> None:
    with pytest.raises(ConfigError, match=r"trainer.steps: must be >= 1"):
        build(trainer={"steps": 0})
