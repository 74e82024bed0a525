"""The config.yaml of a `Trainer` made in Python, as far as a YAML can express it.

Lists of rows are written beside it, but never over an existing file. Functions and objects are left
out; the head of the file names them, so that they can be given on the command line:
`gymnast eval runs/first environment.id=shop.py:Shop`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gymnast.agents.models.quantized import has_quantized_layers
from gymnast.envs import Mixture
from gymnast.envs.composed import classes_of, has_own_box
from gymnast.trainers.base.formats import CONFIG, KEY
from gymnast.trainers.base.settings import Settings
from gymnast.trainers.config.sections import (
    RolloutsSection,
    RunConfig,
    SamplingSection,
    TrainerSection,
)
from gymnast.trainers.data.input_paths import located
from gymnast.trainers.evaluation.settings import EvaluationSettings
from gymnast.trainers.saving.durable import write_text
from gymnast.trainers.saving.run_folder import CONFIG_FILE
from gymnast.types import Sampling

MOST_ROWS = 10_000  # longer lists are not written
ROWS, EVALUATION_ROWS = "rows.jsonl", "evaluation_rows.jsonl"


def write_python_config(folder: Path, given: Mapping[str, Any]) -> None:
    """Write config.yaml and the rows that it names, unless the file exists.

    Args:
        folder: The run's.
        given: The arguments of `Trainer` by name.
    """
    if (folder / CONFIG_FILE).exists():
        return
    sampling, evaluated = given["sampling"] or Sampling(), given["eval_sampling"]
    prefix = EvaluationSettings.prefix
    settings: dict[str, Any] = {
        "model": {"dtype": str(given["model"].dtype).removeprefix("torch.")},
        "algorithm": {"group_size": given["group_size"]},
        "sampling": _sampling(sampling),
        "trainer": {name: given[name] for name in TrainerSection.model_fields if name in given},
        "evaluation": {
            **{name: given[f"{prefix}{name}"] for name in EvaluationSettings.model_fields},
            **({} if given["eval_rows"] else {"every_steps": 0}),
            **(_sampling(evaluated) if evaluated is not None else {}),
        },
        "rollouts": {
            name: given[f"{RolloutsSection.prefix}{name}"] for name in RolloutsSection.model_fields
        },
        "seed": given["seed"],
        "deterministic": given["deterministic"],
        "output_dir": str(folder.resolve()),
    }
    missing = [
        *_add_model(settings, given["model"]),
        *_add_environment(settings, given["environment"]),
        *_add_agent(settings, given["agent"]),
        *_add_algorithm(settings, given),
        *_add_warmup(settings, given["warmup"]),
    ]
    settings = located(settings, RunConfig, Path.cwd())  # where Python looks for them
    missing += _add_rows(settings, folder, given)
    head = "# Written by a Trainer in Python.\n"
    head += "".join(f"# Left out: {line}\n" for line in missing)
    written = {KEY: CONFIG, **_as_written(settings)}
    text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=100)
    write_text(folder / CONFIG_FILE, head + text)


def _sampling(sampling: Sampling) -> dict[str, Any]:
    known = SamplingSection.model_fields
    return {name: value for name, value in asdict(sampling).items() if name in known}


def _add_model(settings: dict[str, Any], model: Any) -> list[str]:
    name = getattr(model.config, "name_or_path", "")
    if not name:
        return ["model.name: the model does not say what name or folder it was loaded from"]
    settings["model"]["name"] = name
    missing = ["model.lora: see adapters/"] if hasattr(model, "peft_config") else []
    if has_quantized_layers(model):
        missing.append("model.quantization: nf4, which takes model.lora")
    return missing


def _add_environment(settings: dict[str, Any], environment: Any) -> list[str]:
    if isinstance(environment, str):
        settings["environment"] = {"id": environment}
        return []
    if isinstance(environment, Mixture):
        return [f"environment.mixture: a Mixture in Python, of {', '.join(environment.weights)}"]
    if not isinstance(environment, type):
        return [f"environment.id: a function makes it ({environment!r:.100})"]
    if has_own_box(environment):
        return [f"environment.compose: {environment.__name__} has a sandbox_spec given in Python"]
    names = []
    for cls in classes_of(environment):
        if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
            return [
                f"environment.id: the class {cls.__qualname__} cannot be imported from a module"
            ]
        names.append(f"{cls.__module__}:{cls.__qualname__}")
    settings["environment"] = {"compose": names} if names[1:] else {"id": names[0]}
    return []


def _add_agent(settings: dict[str, Any], agent: Any) -> list[str]:
    if agent is not None and not isinstance(agent, Mapping):
        return [f"agent: an object in Python ({agent!r:.100})"]
    if agent:
        settings["agent"] = dict(agent)
    return []


def _add_algorithm(settings: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    missing = []
    if isinstance(given["algorithm"], str):
        settings["algorithm"]["name"] = given["algorithm"]
    else:
        missing.append("algorithm: an object in Python")
    if given["rewards"]:
        missing.append(f"rewards: {', '.join(reward.name for reward in given['rewards'])}")
    if given["eval_environments"]:
        missing.append(f"evaluation.environments: {', '.join(given['eval_environments'])}")
    return missing


def _add_warmup(settings: dict[str, Any], warmup: Mapping[str, Any] | None) -> list[str]:
    if warmup is not None and not isinstance(warmup["demonstrations"], str):
        return ["warmup: its demonstrations are a list in Python"]
    if warmup is not None:
        settings["warmup"] = dict(warmup)
    return []


def _add_rows(settings: dict[str, Any], folder: Path, given: Mapping[str, Any]) -> list[str]:
    missing, data = [], {}
    for argument, key, name in (
        ("rows", "train", ROWS),
        ("eval_rows", "evaluation", EVALUATION_ROWS),
    ):
        if given[argument] is None:
            continue
        if why := _write_rows(folder / name, given[argument]):
            missing.append(f"data.{key}: {why}")
        else:
            data[key] = name
    if data:
        settings["data"] = data
    return missing


def _write_rows(path: Path, rows: Any) -> str:
    """Write rows; returns why they cannot be written, or ""."""
    if not isinstance(rows, Sequence):
        return f"the rows are not a list but a {type(rows).__name__}"
    if len(rows) > MOST_ROWS:
        return f"there are {len(rows)} rows, more than the {MOST_ROWS} that are written here"
    try:
        lines = [json.dumps(dict(row), allow_nan=False) + "\n" for row in rows]
    except (TypeError, ValueError) as error:
        return f"the rows hold values that JSON cannot express ({error})"
    text = "".join(lines)
    if path.exists() and path.read_bytes() != text.encode():
        return f"{path.name} is already in the folder and holds something else"
    write_text(path, text)
    return ""


def _as_written(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as YAML expresses them: without None, and with NumPy's numbers as Python's."""
    return {
        name: _as_written(value) if isinstance(value, Mapping) else _as_python(value)
        for name, value in settings.items()
        if value is not None
    }


def _as_python(value: Any) -> Any:
    if isinstance(value, Settings):
        return _as_written(value.model_dump())
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value
