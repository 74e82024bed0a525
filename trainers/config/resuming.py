"""Whether a run's folder may be written to, and whether a config fits the run in it.

A run may be resumed with another config: most settings take effect from then on, and each
difference is logged. Differences that make the saved weights meaningless are refused.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gymnast.errors import ConfigError, NewerFormat
from gymnast.trainers.config.files import load_config
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.saving.checkpoints import Checkpoints
from gymnast.trainers.saving.run_folder import CONFIG_FILE, OVER, holds_results, is_over
from gymnast.visible import visible_logger

# What the saved weights belong to.
FIXED = (
    "model.name",
    "model.dtype",
    "model.lora.rank",
    "model.lora.alpha",
    "model.lora.target",
    "model.quantization",
)
FIXED_BELOW = "model.lora.extra."

logger = visible_logger(__name__)


def check_output_folder(folder: Path, *, resume: bool) -> None:
    """Make a run's folder, and check that it can be written and holds no other run.

    With `resume`, the run in it may continue. A run that was killed while it started left nothing
    and begins again.

    Raises:
        ConfigError: It cannot be written, holds another run, or holds one that cannot be continued.
    """
    if resume and is_over(folder):
        raise ConfigError(f"output_dir: {shown_path(folder)} {OVER}")
    if holds_results(folder) and not resume:
        raise ConfigError(
            f"output_dir: {shown_path(folder)} already holds a run; continue it with --resume, "
            "remove it, or name another folder (output_dir=...)"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise ConfigError(f"output_dir: {shown_path(folder)} is a file; name a folder") from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(
            f"output_dir: {shown_path(folder)} cannot be written: {reason}"
        ) from error


def check_same_run(config: RunConfig, folder: Path) -> None:
    """Compare a config with that of the run it resumes; log what differs.

    Args:
        config: The config to go on with.
        folder: The run's.

    Raises:
        ConfigError: There are checkpoints, and they are of another model; one line per key.
    """
    path = folder / CONFIG_FILE
    try:
        before = load_config(path)
    except NewerFormat:
        raise
    except ConfigError as error:
        reason = str(error).splitlines()[0]
        logger.warning("the settings are not compared with those of the run: %s", reason)
        return
    changed, place = differences(before, config), shown_path(folder)
    refused = [
        f"{key}: is {ours}, and the run in {place} has {theirs}; set {key}={theirs}, or start anew "
        "in another folder (output_dir=...)"
        if theirs != NOT_SET
        else f"{key}: is {ours}, and the run in {place} has none; leave it out, or start anew in "
        "another folder (output_dir=...)"
        for key, theirs, ours in changed
        if key in FIXED or key.startswith(FIXED_BELOW)
    ]
    if refused and Checkpoints(folder / "checkpoints").any():
        raise ConfigError("\n".join(refused))
    for key, theirs, ours in changed:
        logger.info("changed since the run began: %s was %s, is %s", key, theirs, ours)


NOT_SET = "not set"


def differences(before: RunConfig, after: RunConfig) -> list[tuple[str, str, str]]:
    """(dotted key, value before, value after) of each setting that differs.

    `output_dir` does not count: a run's folder may be moved.
    """
    old, new = (dict(_flat(config.model_dump(mode="json"))) for config in (before, after))
    return [
        (key, _shown(old.get(key)), _shown(new.get(key)))
        for key in dict.fromkeys([*old, *new])
        if key != "output_dir" and old.get(key) != new.get(key)
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _shown(value: Any) -> str:
    return NOT_SET if value is None else str(value)
