"""Imports point down: trainers -> agents, envs -> sandboxes -> types, errors, hints, visible."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT: dict[str, set[str]] = {
    "sandboxes": set(),
    "envs": {"sandboxes"},
    "agents": set(),
    "trainers": {"agents", "envs"},
}
EVERYONE = {"types", "errors", "hints", "visible"}
OF_THE_FACE = {"envs": {"gymnasium_ids"}}  # which ids there are


def imported(path: Path) -> list[tuple[int, str]]:
    """Every (line, second part of `gymnast.x`) that a file imports."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found += [
            (node.lineno, name.split(".")[1]) for name in names if name.startswith("gymnast.")
        ]
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_down(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        for line, target in imported(path):
            assert target in MAY_IMPORT[folder] | EVERYONE | OF_THE_FACE.get(folder, set()) | {
                folder
            }, f"{path}:{line}"


def test_only_the_rollout_driver_knows_both_agents_and_environments() -> None:
    both = {
        path.name
        for path in (ROOT / "trainers").rglob("*.py")
        if {"agents", "envs"} <= {target for _, target in imported(path)}
    }
    assert both <= {"rollout.py"}
