"""What of DeepSpeed a launcher may ask for, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from gymnast.errors import ConfigError
from gymnast.trainers.distributed.zero_settings import INSTEAD, Zero, wants_zero, zero_from_config

PLAIN: dict[str, Any] = {"zero_optimization": {"stage": 2}}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    return monkeypatch


def test_nobody_asks_for_deepspeed_by_default() -> None:
    assert wants_zero() is None


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_accelerates_config_names_the_stage(asked: pytest.MonkeyPatch, stage: int) -> None:
    asked.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", str(stage))
    asked.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none")
    asked.setenv("ACCELERATE_DEEPSPEED_ZERO3_INIT", "false")
    assert wants_zero() == Zero(stage)


def test_a_file_may_tune_and_print(asked: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    section = {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
        "stage3_param_persistence_threshold": 0,
        "offload_optimizer": {"device": "none"},
        "offload_param": {"device": "none", "pin_memory": True},
    }
    neutral = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 1,
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": False, "loss_scale": 0},
        "steps_per_print": 100,
    }
    printed = {"wall_clock_breakdown": True}
    file.write_text(json.dumps({"zero_optimization": section, **neutral, **printed}))
    asked.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    tuning = {"overlap_comm": True, "stage3_param_persistence_threshold": 0}
    assert wants_zero() == Zero(3, tuning, printed)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DEEPSPEED_ZERO_STAGE", "0", r"zero_stage must be 1, 2 or 3, got '0'; without ZeRO"),
        ("DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "cpu", "offload_optimizer_device must be left out"),
        ("DEEPSPEED_OFFLOAD_PARAM_DEVICE", "nvme", "offload_param_device .* got 'nvme'"),
        ("DEEPSPEED_ZERO3_INIT", "true", "zero3_init must .* whole copy"),
        ("GRADIENT_CLIPPING", "1.0", "gradient_clipping must .* set trainer.max_grad_norm"),
        ("DEEPSPEED_CONFIG_FILE", "nowhere.json", "nowhere.json cannot be read as JSON"),
    ],
)
def test_what_accelerates_config_may_not_say(
    asked: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    asked.setenv(f"ACCELERATE_{name}", value)
    with pytest.raises(ConfigError, match=message):
        wants_zero()


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_file_that_is_no_config(asked: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (tmp_path / "zero.json").write_text(text)
    asked.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(tmp_path / "zero.json"))
    with pytest.raises(ConfigError, match=r"zero\.json.*JSON"):
        wants_zero()


@pytest.mark.parametrize("key", INSTEAD)
def test_what_the_run_decides_is_refused_with_the_way_out(key: str) -> None:
    value = {"enabled": True} if key in ("fp16", "bf16") else {"type": "AdamW"}
    with pytest.raises(ConfigError, match=f"{key} must be left out, got .*: {INSTEAD[key]}"):
        zero_from_config(PLAIN | {key: value}, "zero.json")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "zero_optimization must be a section with a stage, got None"),
        ({"zero_optimization": {"stage": 0}}, "stage must be 1, 2 or 3, got 0"),
        ({"zero_optimization": {"stage": "auto"}}, "stage must be 1, 2 or 3, got 'auto'"),
        (PLAIN | {"gradient_accumulation_steps": 4}, "got 4: set trainer.tokens_per_microbatch"),
        (PLAIN | {"compression_training": {}}, "compression_training must be left out"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            "zero_optimization.offload_optimizer must be left out",
        ),
        (
            {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}},
            "zero_optimization.zero_quantized_weights must be left out, got True: taken are stage,",
        ),
    ],
)
def test_what_else_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        zero_from_config(config, "zero.json")
