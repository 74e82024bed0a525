"""Whole runs whose model has fused modules: the same numbers, and a plain model in the end."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clocks import without_clocks
from gymnast.agents import load_model
from gymnast.agents.models.fused import has_fused_modules, use_fused_modules
from gymnast.agents.models.kernel_choice import request_kernels, requested_kernels
from gymnast.envs import Environment
from gymnast.errors import ModelError
from gymnast.trainers import Trainer
from gymnast.trainers.algorithms.algorithm import make_algorithm
from gymnast.trainers.algorithms.distillation import Teacher
from gymnast.trainers.algorithms.kl import Kl
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import parse_config
from gymnast.trainers.evaluate import evaluate
from gymnast.types import Sampling
from plain_kernels import plain_kernels

ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.")]
SETTINGS: dict[str, Any] = {
    "model": {"name": "tiny:", "dtype": "float32"},
    "environment": {"id": "gymnast/Arithmetic-v0", "max_turns": 1},
    "algorithm": {"group_size": 2},
    "sampling": {"max_new_tokens": 4},
    "trainer": {"steps": 1, "rows_per_step": 2},
    "evaluation": {"rows": 2},
}


class Short(Environment):
    """Pays for short answers."""

    def reward(self, episode: Any) -> float:
        return -float(len(episode.answer))


class Metrics:
    def __init__(self) -> None:
        self.steps: list[Any] = []

    def on_step(self, step: int, metrics: Any, groups: Any) -> None:
        self.steps.append(without_clocks(metrics))


def run(model: Any, tokenizer: Any, folder: Path | None = None, **settings: Any) -> list[Any]:
    """The metrics of two steps."""
    seen: Any = Metrics()
    small: dict[str, Any] = {
        "algorithm": make_algorithm("grpo", kl=Kl(0.1)),
        "group_size": 4,
        "rows_per_step": 2,
        "steps": 2,
        "sampling": Sampling(max_new_tokens=8),
    }
    given = small | settings
    Trainer(model, tokenizer, Short, ROWS, observer=seen, output_dir=folder, **given).train()
    steps: list[Any] = seen.steps
    return steps


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_run_has_the_metrics_of_plain_modules(lora: Any, tokenizer: Any, tmp_path: Path) -> None:
    plain, _ = load_model("tiny:", lora=lora, tokenizer=tokenizer, kernels="none")
    expected = run(plain, tokenizer)
    model, _ = load_model("tiny:", lora=lora, tokenizer=tokenizer)
    use_fused_modules(model, plain_kernels())
    found = run(model, tokenizer, tmp_path / "run")
    assert has_fused_modules(model)
    assert len(found) == len(expected) == 2
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5, nan_ok=True)
    saved, _ = load_model(str(tmp_path / "run" / "model"))
    ids = torch.arange(5, 30)[None]
    merged = plain.merge_and_unload() if lora else plain
    torch.testing.assert_close(
        saved(input_ids=ids).logits, merged(input_ids=ids).logits, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("kernels", ["auto", "none"])
def test_a_config_requests_kernels_of_its_model(kernels: str) -> None:
    model = {"name": "tiny:", "dtype": "float32", "kernels": kernels}
    trainer = build_trainer(parse_config({**SETTINGS, "model": model}))
    assert requested_kernels(trainer.model) == kernels
    assert not has_fused_modules(trainer.model) or trainer.model.device.type == "cuda"


def test_required_kernels_stop_a_run_on_a_cpu(tokenizer: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    model, _ = load_model("tiny:", tokenizer=tokenizer)
    request_kernels(model, "liger")
    with pytest.raises(ModelError, match=r"^model.kernels: .*liger"):
        run(model, tokenizer)


@pytest.mark.parametrize("start", [build_trainer, evaluate])
def test_required_kernels_are_checked_for_each_command(start: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    model = {"name": "tiny:", "dtype": "float32", "kernels": "liger"}
    with pytest.raises(ModelError, match=r"^model.kernels: .*liger"):
        start(parse_config({**SETTINGS, "model": model}))


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", ["auto", "none"])
def test_policy_reference_and_teacher_are_fused_alike(kernels: str, tokenizer: Any) -> None:
    pytest.importorskip("liger_kernel")
    model, _ = load_model("tiny:", tokenizer=tokenizer, dtype="bfloat16", kernels=kernels)
    teacher, _ = load_model("tiny:", tokenizer=tokenizer, dtype="bfloat16")
    algorithm = make_algorithm("distillation", teacher=Teacher(teacher), kl=Kl(0.1))
    run(model, tokenizer, algorithm=algorithm)
    assert has_fused_modules(model) is has_fused_modules(teacher) is (kernels == "auto")
