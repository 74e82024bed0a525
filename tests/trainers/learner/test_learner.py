"""What a run's settings make of its optimizer: schedules, rates, classes, also when resumed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.envs import Environment
from gymnast.errors import ConfigError, ModelError
from gymnast.trainers import Kl, Trainer, make_algorithm
from gymnast.trainers.learner.optimizers.schedules import cosine
from gymnast.types import Sampling

TOKENIZER = tiny_tokenizer()
ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.")]
FULL = 1e-3


class Letters(Environment):
    """The share of small letters in the answer."""

    def reward(self, episode: Any) -> float:
        return sum(map(str.islower, episode.answer)) / max(1, len(episode.answer))


SEED = 1  # with which every step has something to learn


def trainer(model: Any = None, **settings: Any) -> Trainer:
    small: dict[str, Any] = {
        "sampling": Sampling(max_new_tokens=6),
        "group_size": 3,
        "rows_per_step": 1,
        "learning_rate": FULL,
        "seed": SEED,
        "deterministic": True,
        "observer": None,
    }
    return Trainer(model or tiny_model(), TOKENIZER, Letters, ROWS, **(small | settings))


def metrics(folder: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


def test_a_resumed_run_follows_its_schedule_and_a_longer_one_the_longer_schedule(
    tmp_path: Path,
) -> None:
    """Every batch has two optimisation steps, over three of which the learning rate warms up."""
    settings: dict[str, Any] = {
        "schedule": {"name": "cosine", "final": 0.1},
        "optimizer": {"name": "adamw", "betas": [0.9, 0.95]},
        "warmup_steps": 3,
        "algorithm": make_algorithm("grpo", epochs=2),
        "checkpoint_every_steps": 2,
        "steps": 4,
    }
    whole = trainer(output_dir=tmp_path / "whole", **settings)
    whole.train()
    rates = metrics(tmp_path / "whole", "learning_rate")
    warmed = [2 / 4, 4 / 4, 1, 1]
    shares = [w * cosine(step / 4, final=0.1) for step, w in enumerate(warmed)]
    assert rates == pytest.approx([FULL * share for share in shares])

    cut = trainer(output_dir=tmp_path / "cut", **settings)
    cut.loop.begin(resume=False)
    for _ in range(2):  # of four
        cut.train_step()
    cut.loop._save_checkpoint()
    again = trainer(output_dir=tmp_path / "cut", **settings)
    again.train(resume=True)
    assert metrics(tmp_path / "cut", "learning_rate") == rates
    assert torch.equal(weights(again), weights(whole))

    longer = trainer(output_dir=tmp_path / "cut", **(settings | {"steps": 8}))
    longer.train(resume=True)
    rates = metrics(tmp_path / "cut", "learning_rate")
    late = [FULL * cosine(step / 8, final=0.1) for step in range(4, 8)]
    assert rates[4:] == pytest.approx(late)


def test_adapters_have_a_learning_rate_of_their_own_beside_a_whole_module(tmp_path: Path) -> None:
    lora = {"rank": 4, "extra": {"modules_to_save": ["norm"]}}
    model, _ = load_model("tiny:", lora=lora, tokenizer=TOKENIZER)
    before = {n: w.detach().clone() for n, w in model.named_parameters() if w.requires_grad}
    settings: dict[str, Any] = {"learning_rate": 1e-5, "adapter_learning_rate": FULL}
    trainer(model, steps=1, output_dir=tmp_path / "run", **settings).train()
    # AdamW's first step is as long as the learning rate, where the gradient is not nearly zero.
    moved = {n: (w - before[n]).abs().max().item() for n, w in model.named_parameters()
             if n in before}  # fmt: skip
    adapters = [length for name, length in moved.items() if "lora_B" in name]
    modules = [length for name, length in moved.items() if "modules_to_save" in name]
    assert max(adapters) == pytest.approx(FULL, rel=0.01)
    assert max(modules) == pytest.approx(1e-5, rel=0.05)
    assert metrics(tmp_path / "run", "learning_rate") == [1e-5]
    assert metrics(tmp_path / "run", "learning_rate/adapters") == [FULL]
    assert metrics(tmp_path / "run", "engine/logprob_difference_max")[0] < 1e-4


def test_dora_samples_as_it_trains_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    def make(folder: str) -> Trainer:
        lora = {"rank": 2, "extra": {"use_dora": True, "use_rslora": True}}
        model, _ = load_model("tiny:", lora=lora, tokenizer=TOKENIZER)
        return trainer(model, steps=2, output_dir=tmp_path / folder, checkpoint_every_steps=1)

    whole = make("whole")
    whole.train()
    cut = make("cut")
    cut.loop.begin(resume=False)
    cut.train_step()
    cut.loop._save_checkpoint()
    again = make("cut")
    again.train(resume=True)
    assert torch.equal(weights(again), weights(whole))
    assert max(metrics(tmp_path / "whole", "engine/logprob_difference_max")) < 1e-4
    saved, _ = load_model(str(tmp_path / "whole" / "model"), tokenizer=TOKENIZER)
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(saved(ids).logits, whole.model(ids).logits, rtol=1e-4, atol=1e-4)


def test_muon_trains_all_weights_with_another_for_the_rest() -> None:
    made = trainer(steps=1, optimizer={"name": "torch.optim:Muon", "others": "adamw"})
    before = weights(made).clone()
    made.train()
    assert not torch.equal(weights(made), before)
    kinds = [sorted(s) for s in made.learner.optimizer.state_dict()["states"].values()]
    assert kinds.count(["momentum_buffer"]) == 28, "seven matrices in each of four layers"


def test_muon_alone_is_refused_with_the_names_of_the_weights_that_it_does_not_take() -> None:
    with pytest.raises(ConfigError, match=r"no matrices: model\.layers\.0.*`others: adamw`"):
        trainer(optimizer="torch.optim:Muon")


def test_a_rate_of_adapters_needs_adapters() -> None:
    with pytest.raises(ConfigError, match="the model has no adapters that are trained"):
        trainer(adapter_learning_rate=1e-3)


def test_adapters_at_a_rate_for_all_weights_are_pointed_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, _ = load_model("tiny:", lora={"rank": 2}, tokenizer=TOKENIZER)
    trainer(model, steps=1, learning_rate=1e-6).train()
    assert "learning_rate: 1e-06 is far below what adapters learn with" in caplog.text


def test_a_divergence_needs_the_model_from_before_training_under_its_adapters() -> None:
    lora = {"rank": 2, "extra": {"init_lora_weights": "pissa"}}
    model, _ = load_model("tiny:", lora=lora, tokenizer=TOKENIZER)
    with pytest.raises(ModelError, match="is 'pissa', with which the model under its adapters is"):
        trainer(model, algorithm=make_algorithm("grpo", kl=Kl(0.1)))
