"""RUN/model is the model that was trained: after a run, resumed, exported, and evaluated."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from command_fixtures import CommandLine
from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.merging import save_merged
from gymnast.errors import ModelError
from gymnast.trainers import load_rollouts
from gymnast.trainers.learner.memory.available import Available
from gymnast.trainers.saving import model_check
from gymnast.trainers.saving.model_check import check_saved_model
from gymnast.trainers.saving.run_folder import save_model

pytestmark = [  # of peft, where a test loads adapters
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`"),
]
EXACT = 1e-5  # of the largest logit
IDS = torch.arange(3, 40)[None]
# Demonstrations give gradients to a model that earns nothing, and large steps.
SHORT = [
    "warmup={demonstrations: solve, steps: 2, rows_per_step: 2, learning_rate: 0.02}",
    "trainer.rows_per_step=1",
    "evaluation.rows=2",
    "-q",
]
TRAINED = {
    "the head": "{rank: 4, target: [lm_head]}",
    "the embedding": "{rank: 4, target: [embed_tokens]}",
    "both": "{rank: 4, target: [embed_tokens, lm_head]}",
    "a copy of the head": "{rank: 4, extra: {modules_to_save: [lm_head]}}",
    "tokens": "{rank: 4, extra: {trainable_token_indices: [3, 5]}}",
}


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model.eval()(IDS).logits
    return found


def differ(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours - theirs).abs().max() / ours.abs().max()).item()


def check_run(folder: str = "out/model") -> None:
    base, _ = load_model("tiny:")
    before = logits(base)
    adapted = logits(PeftModel.from_pretrained(base, "out/adapters"))
    assert differ(before, adapted) > 100 * EXACT, "the run has trained"
    assert differ(adapted, logits(AutoModelForCausalLM.from_pretrained(folder))) < EXACT


@pytest.mark.parametrize("lora", TRAINED.values(), ids=list(TRAINED))
def test_a_run_saves_what_it_trained(lora: str, gymnast: CommandLine) -> None:
    lora = f"model.lora={lora}"
    assert gymnast("train", "run.yaml", *SHORT, lora, "trainer.steps=1").code == 0
    check_run()
    assert gymnast("train", "run.yaml", *SHORT, lora, "trainer.steps=2", "--resume").code == 0
    check_run()
    assert gymnast("export", "out", "--output", "exported").code == 0
    check_run("exported")


def test_an_evaluation_of_a_run_samples_as_its_last_one(gymnast: CommandLine) -> None:
    """With the same seeds, which another model would make other tokens of."""
    lora = "model.lora={rank: 4, target: [embed_tokens, lm_head]}"
    assert gymnast("train", "run.yaml", *SHORT, lora, "trainer.steps=1").code == 0
    assert gymnast("eval", "out").code == 0
    own = load_rollouts("out", step=1, evaluations=True)
    again = load_rollouts("out/evaluations/001", evaluations=True)
    assert [each.trajectory.messages for each in own] == [
        each.trajectory.messages for each in again
    ]


def test_a_saved_model_can_be_trained_again(gymnast: CommandLine) -> None:
    lora = "model.lora={rank: 4, target: [lm_head]}"
    assert gymnast("train", "run.yaml", *SHORT, lora, "trainer.steps=1").code == 0
    again = ["model.name=out/model", "output_dir=again", "trainer.steps=1"]
    assert gymnast("train", "run.yaml", *SHORT, lora, *again).code == 0
    base, _ = load_model("out/model")
    adapted = logits(PeftModel.from_pretrained(base, "again/adapters"))
    assert differ(adapted, logits(AutoModelForCausalLM.from_pretrained("again/model"))) < EXACT


def test_one_adapter_for_both_ends_is_refused_before_the_run(gymnast: CommandLine) -> None:
    lora = "model.lora={target: [embed_tokens], extra: {ensure_weight_tying: true}}"
    ran = gymnast("train", "run.yaml", *SHORT, lora)
    assert ran.code != 0 and "lora.extra.ensure_weight_tying" in ran.errors
    assert not Path("out/checkpoints").exists()


def head_trained(dtype: str) -> Any:
    model, _ = load_model("tiny:", dtype=dtype, lora={"rank": 4, "target": ["lm_head"]})
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_model_in_the_folder_is_an_error(dtype: str, tmp_path: Path) -> None:
    """As it was saved when the head's adapter was merged into the embedding, too."""
    model = head_trained(dtype)
    head = model.get_base_model().lm_head
    wrong = tiny_model().to(model.dtype)
    with torch.no_grad():
        wrong.lm_head.weight += head.get_delta_weight("default")
    wrong.save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError) as raised:
        check_saved_model(model, tmp_path / "model", "out/model")
    message = str(raised.value)
    assert "out/model" in message and "LoRA is on lm_head" in message and dtype in message

    save_merged(model, tmp_path / "right")
    check_saved_model(model, tmp_path / "right", "out/model")


def test_a_model_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was saved before stays."""
    model, tokenizer = load_model("tiny:", dtype="float32")
    save_model(model, tokenizer, tmp_path / "model")
    before = logits(model)
    monkeypatch.setattr(
        "gymnast.trainers.saving.run_folder.save_merged",
        lambda _, folder: tiny_model(seed=1).save_pretrained(folder),
    )
    with pytest.raises(ModelError, match="All weights were trained"):
        save_model(model, tokenizer, tmp_path / "model")
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(logits(kept), before)


def test_the_check_changes_nothing(tmp_path: Path) -> None:
    model = head_trained("bfloat16").train()
    save_merged(model, tmp_path / "model")
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    drawn = torch.get_rng_state()
    check_saved_model(model, tmp_path / "model", "out/model")
    assert model.training and torch.equal(torch.get_rng_state(), drawn)
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in weights.items())


def test_without_room_for_a_second_model_it_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_check, "available", lambda _: Available(1000, "the machine"))
    model, _ = load_model("tiny:")
    save_merged(model, tmp_path / "model")
    check_saved_model(model, tmp_path / "model", "out/model")
    assert "out/model was not compared with the trained model" in caplog.text
    assert "the machine has 0.0 GB free" in caplog.text
