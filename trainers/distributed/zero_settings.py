"""What the launcher asks of DeepSpeed: the stage of ZeRO and how it works, or an error.

A DeepSpeed config may hold a whole training recipe, but a run has its own. Only the section
`zero_optimization` and the settings of what is printed are taken from the launcher's; what would
change the numbers, or what Gymnast does itself, is refused by name.
`trainers/learner/optimizers/zero.py` uses the result.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymnast.errors import ConfigError

# Settings of ZeRO that are about speed and memory alone.
TUNING = (
    "allgather_bucket_size",
    "allgather_partitions",
    "contiguous_gradients",
    "overlap_comm",
    "reduce_bucket_size",
    "reduce_scatter",
    "stage3_gather_16bit_weights_on_model_save",  # Gymnast saves the model itself
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_param_persistence_threshold",
    "stage3_prefetch_bucket_size",
    "sub_group_size",
)
# What only prints.
PRINTED = ("comms_logger", "flops_profiler", "memory_breakdown", "wall_clock_breakdown")
# Values that ask for nothing.
NOTHING = ("auto", "none", "None", "false", "False", None, False)
# What else a DeepSpeed config has, and who does it.
INSTEAD = {
    "optimizer": "the optimizer is AdamW; set trainer.learning_rate and trainer.optimizer",
    "scheduler": "set trainer.schedule and trainer.warmup_steps",
    "gradient_clipping": "set trainer.max_grad_norm",
    "fp16": "the model computes in the run's model.dtype",
    "bf16": "the model computes in the run's model.dtype",
    "train_batch_size": "set trainer.rows_per_step",
    "train_micro_batch_size_per_gpu": "set trainer.tokens_per_microbatch",
    "gradient_accumulation_steps": "set trainer.tokens_per_microbatch",
    "activation_checkpointing": "set trainer.activations",
}
OTHERS = "Gymnast takes zero_optimization alone"
_PREFIX = "ACCELERATE_DEEPSPEED_"


@dataclass(frozen=True)
class Zero:
    """How optimizer, gradients and weights are shared out.

    Attributes:
        stage: 1 shares out master weights and the optimizer's state, 2 gradients too, 3 weights
            too.
        tuning: Further keys of DeepSpeed's `zero_optimization`.
        printed: Keys of DeepSpeed's config that only print.
    """

    stage: int
    tuning: Mapping[str, Any] = field(default_factory=dict)
    printed: Mapping[str, Any] = field(default_factory=dict)


def wants_zero() -> Zero | None:
    """What the launcher asks for (`distributed_type: DEEPSPEED` in accelerate's config).

    Returns:
        None, where it does not ask for DeepSpeed.

    Raises:
        ConfigError: It asks for a part of DeepSpeed that is not supported.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() != "true":
        return None
    _check_fields()
    file = os.environ.get(f"{_PREFIX}CONFIG_FILE", "none")
    if file != "none":
        return zero_from_config(_read(Path(file)), file)
    stage = os.environ.get(f"{_PREFIX}ZERO_STAGE", "2")
    return Zero(_stage(stage, "deepspeed_config.zero_stage"))


def zero_from_config(config: Mapping[str, Any], name: str) -> Zero:
    """Take what is taken of a DeepSpeed config; "auto" counts as left out.

    Args:
        config: Of DeepSpeed.
        name: Of its file, for errors.

    Raises:
        ConfigError: It asks for what is not supported; names the first such key.
    """
    for key, value in config.items():
        if key in ("zero_optimization", "steps_per_print", *PRINTED) or _is_nothing(value):
            continue
        if key == "gradient_accumulation_steps" and value == 1:
            continue
        raise _refused(f"{name}: {key}", value, INSTEAD.get(key, OTHERS))
    section = config.get("zero_optimization")
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"{name}: zero_optimization must be a section with a stage, got {section!r}"
        )
    for key, value in section.items():
        if key not in ("stage", *TUNING) and not _is_nothing(value):
            raise _refused(
                f"{name}: zero_optimization.{key}", value, f"taken are stage, {', '.join(TUNING)}"
            )
    return Zero(
        _stage(section.get("stage", 2), f"{name}: zero_optimization.stage"),
        tuning={k: v for k, v in section.items() if k in TUNING and v != "auto"},
        printed={k: config[k] for k in PRINTED if k in config},
    )


def _check_fields() -> None:
    """Check what accelerate's own config may say of DeepSpeed."""
    fields = {
        f"{_PREFIX}OFFLOAD_OPTIMIZER_DEVICE": "the optimizer stays on the device of the model",
        f"{_PREFIX}OFFLOAD_PARAM_DEVICE": "weights are not moved to the CPU between passes",
        f"{_PREFIX}ZERO3_INIT": "every process loads a whole copy of the model to sample with",
        "ACCELERATE_GRADIENT_CLIPPING": "set trainer.max_grad_norm",
    }
    for name, reason in fields.items():
        if not _is_nothing(value := os.environ.get(name)):
            field = name.removeprefix("ACCELERATE_").removeprefix("DEEPSPEED_").lower()
            raise _refused(f"accelerate launch: deepspeed_config.{field}", value, reason)


def _is_nothing(value: Any) -> bool:
    """Whether a setting is off or left to others; a section is where its switch is."""
    if isinstance(value, Mapping):
        return all(_is_nothing(value.get(switch)) for switch in ("enabled", "device")) and (
            "enabled" in value or "device" in value
        )
    return value in NOTHING


def _stage(value: Any, name: str) -> int:
    if str(value) not in ("1", "2", "3"):
        raise ConfigError(
            f"{name} must be 1, 2 or 3, got {value!r}; without ZeRO use distributed_type: MULTI_GPU"
        )
    return int(value)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"accelerate launch: deepspeed_config_file {path} cannot be read as JSON: {error}"
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} must hold a JSON object, got {type(config).__name__}")
    return config


def _refused(name: str, value: Any, reason: str) -> ConfigError:
    return ConfigError(f"{name} must be left out, got {value!r}: {reason}")
