"""environment.json says with what, on what and from what a run was made."""

import hashlib
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

import gymnast as package
from command_fixtures import CommandLine
from gymnast.trainers.provenance.environment_file import read_starts, without_secrets
from gymnast.trainers.provenance.sources import revision
from gymnast.trainers.provenance.versions import checkout, gymnast_version, package_versions

DATA = [
    "environment={id: shop.py:Shop, context_length: 700}",
    "data={train: rows.jsonl, columns: {prompt: q.text}}",
]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_an_evaluation_and_a_resumed_run_say_what_they_were_made_with(
    gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["gymnast", "train", "run.yaml", "agent.api_key=hush"])
    monkeypatch.setenv("SOME_SECRET", "hush")
    one = ["trainer.steps=1", "trainer.rows_per_step=1", "evaluation.rows=1"]
    assert gymnast("train", "run.yaml", *DATA, *one).code == 0
    (start,) = read_starts(Path("out"))
    assert start["command"] == ["gymnast", "train", "run.yaml", "agent.api_key=..."]
    assert "hush" not in Path("out/environment.json").read_text()
    assert start["gymnast"]["version"] == package.__version__
    assert start["packages"]["torch"] == version("torch")
    assert start["hardware"]["memory_bytes"] == psutil.virtual_memory().total
    assert start["hardware"]["cpu"] and start["processes"] == 1
    assert start["model"] == {"name": "tiny:"}
    assert start["formats"] == {"config": 1, "checkpoint": 1, "metrics": 1, "rollouts": 2}
    inputs: dict[str, Any] = start["inputs"]
    assert inputs["data.train"]["sha256"] == sha256(Path("rows.jsonl"))
    assert inputs["environment.id"]["sha256"] == sha256(Path("shop.py"))

    again = ["out/config.yaml", "trainer.steps=2", "--resume"]
    assert gymnast("train", *again).code == 0
    first, second = read_starts(Path("out"))
    assert first == start and second["started"] >= first["started"]

    assert gymnast("eval", "out").code == 0
    (evaluated,) = read_starts(Path("out/evaluations/001"))
    assert evaluated["model"]["name"] == str(Path("out/model").resolve())
    assert evaluated["model"]["sha256"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            ["trainer.steps=3", "sampling.max_tokens=5"],
            ["trainer.steps=3", "sampling.max_tokens=5"],
        ),
        (["agent.api_key=abc"], ["agent.api_key=..."]),
        (["agent={api_key: abc, max: 3}"], ["agent={api_key: ..., max: 3}"]),
        (['agent={"token": "a b", "n": 3}'], ['agent={"token": ..., "n": 3}']),
        (["agent.api_key_env=NAME"], ["agent.api_key_env=NAME"]),
        (["--token", "abc", "x"], ["--token", "...", "x"]),
        (["--hub-token=abc"], ["--hub-token=..."]),
        (["agent.url=https://me:abc@host/v1"], ["agent.url=https://...@host/v1"]),
    ],
)
def test_what_looks_like_a_key_is_left_out_of_the_command(
    given: list[str], shown: list[str]
) -> None:
    assert without_secrets(given) == shown


def git(folder: Path, *arguments: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *named, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_checkout_has_a_commit_and_may_differ_from_it(tmp_path: Path) -> None:
    assert checkout(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert checkout(tmp_path) is None  # without a commit
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-qm", "one")
    (tmp_path / "notes.txt").write_text("of nobody's concern")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert checkout(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "a.py").write_text("2")
    assert checkout(tmp_path) == {"commit": commit, "dirty": True}


def test_gymnast_says_its_own_commit_only_where_it_is_in_a_checkout() -> None:
    own = gymnast_version()
    root = checkout(Path(package.__file__).parent)
    assert own == {"version": package.__version__, **(root or {})}


def test_versions_are_those_of_installed_packages_alone() -> None:
    found = package_versions()
    assert {"torch", "transformers", "numpy", "pydantic"} <= {*found}
    assert all(found[name] == version(name) for name in found)
    assert "mypy" not in found


def test_the_fingerprint_of_a_folder_changes_with_a_file_and_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    before = revision(tmp_path, "model")
    assert before["files"] == 2 and before["bytes"] == 6
    (tmp_path / "b").rename(tmp_path / "c")
    renamed = revision(tmp_path, "model")
    (tmp_path / "c").write_text("six")
    assert len({before["sha256"], renamed["sha256"], revision(tmp_path, "model")["sha256"]}) == 3


def test_what_a_hub_has_is_known_by_the_commit_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert revision("org/rows", "dataset") == {}
    refs = tmp_path / "datasets--org--rows/refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("abc123")
    assert revision("org/rows", "dataset") == {"commit": "abc123"}


def test_a_file_that_is_not_ours_counts_as_none(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"starts": 3}', "{"):
        (tmp_path / "environment.json").write_text(text)
        assert read_starts(tmp_path) == []
    (tmp_path / "environment.json").write_text(json.dumps({"starts": [{"a": 1}, 2]}))
    assert read_starts(tmp_path) == [{"a": 1}]
