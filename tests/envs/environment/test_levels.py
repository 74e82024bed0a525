"""The message level knows no tokens; the token level is put around it."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from gymnast.envs.environment import episode_runner, hooks, rows, state
from gymnast.envs.environment.state import EpisodeState

MESSAGE_LEVEL = [Path(str(module.__file__)) for module in (episode_runner, hooks, rows, state)]


def imported(path: Path) -> set[str]:
    """The modules that a file imports, for type checkers as well."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    plain = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    return named | plain


@pytest.mark.parametrize("path", MESSAGE_LEVEL, ids=lambda path: path.stem)
def test_the_message_level_imports_nothing_that_knows_tokens(path: Path) -> None:
    for module in imported(path):
        assert not module.startswith("gymnast.envs.rendering"), module
        assert module not in {
            f"gymnast.envs.environment.{name}"
            for name in ("context", "spaces", "turn", "environment")
        }


def test_the_state_of_an_episode_holds_no_ids() -> None:
    assert not {field.name for field in fields(EpisodeState)} & {"ids", "budget", "context"}
