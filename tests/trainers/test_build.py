"""From a config to a trainer: what each section becomes."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

from gymnast.agents.loading.load import load_tokenizer
from gymnast.envs import Environment
from gymnast.errors import ConfigError, ModelError
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import load_config, parse_config
from gymnast.trainers.evaluating.targets import evaluation_config
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


class Wanders(Environment):
    """Changes the working folder in every episode."""

    def __init__(self, *args: Any, folder: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.folder = folder

    def sample_row(self, rng: Any) -> Any:
        return {"prompt": f"Say {rng.integers(1000)}."}

    def setup(self, row: Any) -> None:
        os.chdir(self.folder)

    def reward(self, episode: Any) -> float:
        return 0.0


def changed(**sections: Any) -> dict[str, Any]:
    return {
        name: {**SETTINGS.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in {**SETTINGS, **sections}.items()
    }


def build(**sections: Any) -> Any:
    return build_trainer(parse_config(changed(**sections)))


def test_every_section_reaches_the_trainer() -> None:
    trainer = build()
    assert trainer.sampling == Sampling(temperature=0.7, max_new_tokens=8)
    assert trainer.eval_sampling == Sampling(temperature=0.0, max_new_tokens=8)
    assert (trainer.group_size, trainer.eval_group_size, trainer.steps) == (2, 3, 1)
    assert (len(trainer.eval_rows), trainer.seed, trainer.folder) == (5, 4, None)
    metrics = trainer.evaluate()
    assert metrics["eval/episodes/finished"] == 15


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
        kept = Mock()
        trainer.observer = SimpleNamespace(on_evaluation=kept)
        trainer.evaluate()
        _, _, groups = kept.call_args.args
        assert "You have:" in trainer.tokenizer.decode(groups[0][0].ids)


def test_the_config_is_kept_in_the_runs_folder(tmp_path: Path) -> None:
    trainer = build(output_dir=str(tmp_path / "out"))
    assert trainer.folder.path == tmp_path / "out"
    kept = load_config(tmp_path / "out" / "config.yaml")
    assert kept == parse_config(changed(output_dir=str(tmp_path / "out")))


def test_a_config_that_does_not_hold_never_reaches_a_model() -> None:
    with pytest.raises(ConfigError, match=r"trainer.steps: must be >= 1"):
        build(trainer={"steps": 0})


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"model": {"lora": {"extra": {"r": 8}}}},
            "model.lora.extra.r: leave it out, and set model.lora.rank",
        ),
        ({"model": {"lora": {"target": ["qproj"]}}}, "model.lora.target: "),
        ({"trainer": {"activations": "offload"}}, "trainer.activations: must be auto, keep or"),
    ],
)
def test_what_is_found_while_the_model_is_made_is_named_as_in_the_yaml(
    sections: dict[str, Any], said: str
) -> None:
    with pytest.raises((ConfigError, ModelError)) as caught:
        build(**sections)
    assert str(caught.value).startswith(said)


def test_an_agent_that_cannot_play_ahead_is_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = {"backend": "vllm", "launch": {"command": ["sh"]}, "share_device": True}
    said = "agent.backend 'vllm' cannot keep requests while the model is trained"
    monkeypatch.setattr("gymnast.trainers.build.load_model", Mock(side_effect=AssertionError))
    with pytest.raises(ConfigError) as caught:
        build(agent=agent, trainer={"max_staleness": 1})
    assert str(caught.value).startswith(f"trainer.max_staleness: is 1, and {said}")


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


def test_the_output_dir_of_a_config_stays_where_it_was_when_an_environment_changes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is tried before the trainer is made."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    trainer = build(
        environment={"id": f"{__file__}:Wanders", "folder": str(tmp_path / "elsewhere")},
        output_dir="run",
    )
    trainer.evaluate()
    assert trainer.folder.path == tmp_path / "run"
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"config.yaml", "metrics.jsonl"}
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_model_without_a_longest_context_takes_that_of_the_config(tmp_path: Path) -> None:
    folder, tokenizer = str(tmp_path / "mamba2"), load_tokenizer("tiny:")
    shape: dict[str, Any] = {
        "hidden_size": 64,
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 8,
        "n_groups": 1,
    }
    Mamba2ForCausalLM(
        Mamba2Config(vocab_size=len(tokenizer), num_hidden_layers=1, **shape)
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    kept = build(model={"name": folder, "dtype": None}, environment={"context_length": 700})
    assert kept.longest_episode == 700
    with pytest.raises(ConfigError, match="context_length: must be set"):
        build(model={"name": folder})
