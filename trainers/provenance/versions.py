"""Which software a run was made with: packages, and the commits of checkouts."""

import json
import os
import subprocess
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

import gymnast

# What is not required and changes what a run does, where it is installed.
_BESIDE = (
    *("bitsandbytes", "deepspeed", "flash-attn", "huggingface_hub", "numpy", "peft", "ray"),
    *("safetensors", "tokenizers", "triton", "vllm"),
)
_GIT_S = 10.0


def package_versions() -> dict[str, str]:
    """The versions of the packages that Gymnast requires, and of those that it can use."""
    found = {}
    for name in sorted({*_required(), *_BESIDE}, key=str.lower):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # an optional one
            continue
    return found


def _required() -> list[str]:
    try:
        requirements = distribution("gymnast-rl").requires or []
    except PackageNotFoundError:  # it runs without being installed
        return []
    names = []
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            names.append(requirement.name)
    return names


def gymnast_version() -> dict[str, Any]:
    """Gymnast's own version, and its commit, where it is a checkout or was installed from one."""
    package = Path(gymnast.__file__)
    commit = None
    if _git(package.parent, "ls-files", "--error-unmatch", package.name) is not None:
        commit = checkout(package.parent)
    return {"version": gymnast.__version__, **(commit or _installed_commit())}


def checkout(folder: Path) -> dict[str, Any] | None:
    """The commit of the checkout that a folder is in; None where there is none.

    Returns:
        `commit`, and `dirty`: whether a file that git tracks differs from it.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if not commit or changes is None:
        return None
    return {"commit": commit, "dirty": bool(changes)}


def _installed_commit() -> dict[str, str]:
    """The commit that pip installed Gymnast from, where it was a repository's."""
    try:
        origin = json.loads(distribution("gymnast-rl").read_text("direct_url.json") or "{}")
        return {"commit": str(origin["vcs_info"]["commit_id"])}
    except (PackageNotFoundError, ValueError, LookupError):
        return {}


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; None where it is not there, or knows no such thing."""
    try:
        asked = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None
