"""docs/extending.md: its files make a run, by path and by the entry points that it shows."""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents.backends import AGENTS
from gymnast.envs import make, registered
from gymnast.envs.registry import ENVIRONMENTS
from gymnast.envs.rendering.user_parser import PARSERS
from gymnast.sandboxes.backends.open import BACKENDS, backends
from gymnast.trainers import load_config
from gymnast.trainers.algorithms.advantages import ESTIMATORS
from gymnast.trainers.algorithms.aggregations import AGGREGATIONS
from gymnast.trainers.algorithms.losses import LOSSES
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.environments import WRAPPERS
from gymnast.trainers.learner.optimizers.by_name import OPTIMIZERS
from gymnast.trainers.learner.optimizers.schedules import SCHEDULES
from gymnast.trainers.reporting.trackers import TRACKERS
from gymnast.trainers.rollouts.rewards import REWARDS

PAGE = (Path(__file__).parents[2] / "docs/extending.md").read_text()
KINDS: dict[str, Any] = {
    "gymnast.environments": ENVIRONMENTS,
    "gymnast.wrappers": WRAPPERS,
    "gymnast.sandboxes": BACKENDS,
    "gymnast.agents": AGENTS,
    "gymnast.estimators": ESTIMATORS,
    "gymnast.losses": LOSSES,
    "gymnast.aggregations": AGGREGATIONS,
    "gymnast.rewards": REWARDS,
    "gymnast.parsers": PARSERS,
    "gymnast.optimizers": OPTIMIZERS,
    "gymnast.schedules": SCHEDULES,
    "gymnast.trackers": TRACKERS,
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def entry_points() -> dict[str, dict[str, str]]:
    (text,) = blocks("toml")
    groups: dict[str, dict[str, str]] = tomllib.loads(text)["project"]["entry-points"]
    return groups


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's files; the working folder is another."""
    files = tmp_path / "files"
    files.mkdir()
    for text in [*blocks("python"), *blocks("yaml")]:
        if named := re.match(r"# (\w+\.\w+)\n", text):
            (files / named[1]).write_text(text)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", [*sys.path])
    registries: list[Any] = [ESTIMATORS, LOSSES, AGGREGATIONS]  # decorators add to them
    before = [dict(registry) for registry in registries]
    yield files
    for registry, parts in zip(registries, before, strict=True):
        registry.clear()
        registry.update(parts)
    for name in ("parts", "boxes"):
        sys.modules.pop(name, None)


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files as an installed distribution."""
    info = folder / "kit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kit\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in entry_points().items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def board(config: Path, output_dir: Path) -> list[dict[str, Any]]:
    """What the page's tracker has kept of the run that a YAML describes."""
    trainer = build_trainer(load_config(config, [f"output_dir={output_dir}"]))
    trainer.train()
    assert type(trainer.agent).__name__ == "BriefAgent"
    lines = (output_dir / "board.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_parts_named_by_their_files_make_a_run(folder: Path, tmp_path: Path) -> None:
    (step,) = board(folder / "parts.yaml", tmp_path / "run")
    assert step["title"] == "first" and step["step"] == 1
    assert -0.12 <= step["reward_parts/brevity"] < 0  # at most 6 tokens a turn
    assert "sandbox/broken" in step


def test_parts_named_by_entry_points_make_a_run(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.yaml").write_text((installed / "installed.yaml").read_text())
    (step,) = board(tmp_path / "elsewhere.yaml", tmp_path / "run")
    assert step["title"] == "second" and "reward_parts/kit-brevity" in step


def test_every_kind_has_a_short_name_by_an_entry_point(installed: Path) -> None:
    assert list(entry_points()) == list(KINDS)
    for group, points in entry_points().items():
        for name, value in points.items():
            thing = KINDS[group].find(name)
            thing = getattr(thing, "function", thing)  # of a part of an algorithm
            assert f"{thing.__module__}:{thing.__qualname__}" == value
            assert name in KINDS[group].known()
    assert "kit/Count-v0" in registered() and "folder" in backends()


def test_the_table_names_every_group() -> None:
    rows = re.findall(r"^\| [\w -]+ \| .*\| `(gymnast\.\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(KINDS)


def test_an_episode_plays_in_a_box_of_such_a_backend(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its file was named in another working folder than the one that boxes are opened in."""
    monkeypatch.chdir(folder)
    env = make("boxes.py:Count", sandbox={"backend": "boxes.py:FolderSandbox", "timeout_s": 3})
    monkeypatch.chdir(tmp_path)
    env.reset(options={"row": {"prompt": "Count.", "lines": 4}})
    assert env.sandbox.exec("wc -l < lines.txt").stdout.strip() == "4"
    env.close()


def test_the_programs_of_the_page_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    programs = [text for text in blocks("python") if not re.match(r"# \w+\.py\n", text)]
    assert programs
    for text in programs:
        exec(compile(text, "docs/extending.md", "exec", dont_inherit=True), {})
