"""Exporting a run: its model whole, or its adapters alone, in a folder of its own, with a card."""

import shutil
from pathlib import Path

from gymnast.errors import ConfigError, first_line
from gymnast.trainers.base.formats import newer_metrics
from gymnast.trainers.config.files import load_config
from gymnast.trainers.exporting.card import model_card
from gymnast.trainers.saving.best import read_best, run_of
from gymnast.trainers.saving.durable import written_aside
from gymnast.trainers.saving.run_folder import ADAPTERS, CONFIG_FILE, MODEL

CARD = "README.md"
_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.jinja", "special_tokens_map.json")


def export_run(run: Path, output: Path, *, merged: bool, place: str | None = None) -> None:
    """Copy a run's model, or its adapters, and write its card.

    Args:
        run: The run's folder, or the `best` in it.
        output: A folder, made here; it must be empty if it is there.
        merged: Export the whole model, with adapters merged into its weights.
        place: Where others will find it, for the card; `output` by default.

    Raises:
        ConfigError: It is no run's folder, the run has not ended or has no adapters, or `output`
            holds something.
        DiskFull: There is no room for it; nothing is left behind.
    """
    source = _source(run, merged=merged)
    best, weights, run = read_best(run), run, run_of(run)
    if problem := newer_metrics(run):
        raise ConfigError(problem)
    config = load_config(run / CONFIG_FILE)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output: {output} is there already; name another folder")
    try:
        with written_aside(output) as folder:
            shutil.copytree(source, folder, dirs_exist_ok=True)
            if not merged:
                for pattern in _TOKENIZER:
                    for path in (weights / MODEL).glob(pattern):
                        shutil.copy(path, folder)
            card = model_card(run, config, merged=merged, place=place or str(output), best=best)
            card.save(folder / CARD)
    except OSError as error:
        raise ConfigError(f"--output: {output} cannot be written: {first_line(error)}") from error


def has_adapters(run: Path) -> bool:
    """Whether a run trained adapters."""
    return (run / ADAPTERS).is_dir()


def check_repository(name: str) -> None:
    """Check the name of a repository on the hub, without asking the hub.

    Raises:
        ConfigError: It is not of the form org/name, or has characters that the hub does not take.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if name.count("/") != 1:
        raise ConfigError(f"--push: must be org/name, as my-org/my-model, got {name!r}")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(f"--push: must be org/name as the hub takes it: {error}") from error


def push(folder: Path, repository: str, *, private: bool = False) -> str:
    """Put an exported folder on the hub; returns where it is.

    Raises:
        ConfigError: The hub does not take it, or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Model trained by Gymnast"
        )
    except Exception as error:  # each transport has its own exceptions
        answered = isinstance(error, HfHubHTTPError)
        first = "log in with `hf auth login`" if answered else "check that the hub can be reached"
        raise ConfigError(
            f"--push: {repository} cannot be pushed to {api.endpoint}: {first_line(error)}; "
            f"{first}. The export is in {folder}: `hf upload {repository} {folder}` pushes it"
        ) from error
    return str(made)


def _source(run: Path, *, merged: bool) -> Path:
    if not (run_of(run) / CONFIG_FILE).exists():
        raise ConfigError(
            f"{run}: has no {CONFIG_FILE}, so it is no run's folder; name the output_dir of a run"
        )
    if not merged and not has_adapters(run):
        raise ConfigError(
            f"--adapter: {run} has no {ADAPTERS}/, so all weights were trained, or the run has not "
            "ended; export it with --merged"
        )
    if not (run / MODEL).exists():
        raise ConfigError(
            f"{run}: has no {MODEL}/, so the run has not ended; continue it with `gymnast train "
            f"{run / CONFIG_FILE} --resume`"
        )
    return run / (MODEL if merged else ADAPTERS)
