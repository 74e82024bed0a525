"""Which model and which inputs a run was made with: hub commits, and fingerprints of files.

An input is what a key of a config names: rows, code, chat templates, models
(`trainers/data/input_paths.py`).
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gymnast.errors import ConfigError
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.yaml_reader import read_yaml
from gymnast.trainers.data.input_paths import named_inputs

MOST_BYTES = 2**30  # what is larger would take seconds to read, and has its date instead


def model_revision(model: Any, config: Path) -> dict[str, Any]:
    """The name that a model was loaded by, and its commit or fingerprint.

    Args:
        model: Of Transformers, or of peft around one.
        config: The run's config.yaml, whose name counts where there is one.
    """
    own = getattr(model, "config", None)
    loaded = str(getattr(own, "name_or_path", "") or "")
    section = _settings(config).get("model")
    named = section.get("name") if isinstance(section, dict) else None
    commit = getattr(own, "_commit_hash", None)
    told = {"commit": commit} if commit is not None else revision(loaded, "model") if loaded else {}
    return {"name": named or loaded or None, **told}


def input_revisions(config: Path) -> dict[str, dict[str, Any]]:
    """The inputs that a run's config.yaml names, by dotted key; the policy has its own entry.

    Args:
        config: The file; without one, there are no inputs.
    """
    named = named_inputs(_settings(config), RunConfig, config.parent)
    named.pop("model.name", None)
    return {
        place: {"name": value, **revision(value, "model" if "model" in place else "dataset")}
        for place, value in named.items()
    }


def _settings(config: Path) -> dict[str, Any]:
    try:
        return read_yaml(config) if config.exists() else {}
    except ConfigError:
        return {}


def revision(name: str | Path, kind: str) -> dict[str, Any]:
    """What tells an input from another of its name.

    Args:
        name: A file, a folder or a hub's id.
        kind: "model" or "dataset", for a hub's.

    Returns:
        `bytes` and `sha256` of a file or of all files of a folder, or in place of the latter
        `modified`, where there is more than a GiB; `commit` of what a hub has, if it is known.
    """
    path = Path(name)
    try:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file())
            return {"files": len(inside), **_fingerprint(path, inside)}
        if path.is_file():
            return _fingerprint(path.parent, [path])
    except OSError as error:
        return {"problem": f"cannot be read: {error.strerror}"}
    return _hub_commit(str(name), kind)


def _fingerprint(folder: Path, paths: Iterable[Path]) -> dict[str, Any]:
    sizes: Mapping[Path, int] = {path: path.stat().st_size for path in paths}
    total = sum(sizes.values())
    if total > MOST_BYTES:
        latest = max(path.stat().st_mtime for path in sizes)
        return {"bytes": total, "modified": datetime.fromtimestamp(latest, UTC).isoformat()}
    digests = {}
    for path in sizes:
        with path.open("rb") as file:
            digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
    if len(digests) == 1:
        return {"bytes": total, "sha256": next(iter(digests.values()))}
    listed = "".join(f"{digest}  {path.relative_to(folder)}\n" for path, digest in digests.items())
    return {"bytes": total, "sha256": hashlib.sha256(listed.encode()).hexdigest()}


def _hub_commit(name: str, kind: str) -> dict[str, Any]:
    """The commit that the hub's cache has of a name's main branch."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    if name.count("/") > 1 or ":" in name:  # tiny:, pypi:NAME==VERSION say what they are
        return {}
    cached = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)
    try:
        return {"commit": (cached / "refs" / "main").read_text(encoding="utf-8").strip()}
    except OSError:
        return {}
