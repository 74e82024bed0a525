"""A step's benchmark: its sides play what they are given, and what does not install is said."""

import re
from pathlib import Path
from typing import Any

import pytest

import step
import step_calls
import step_gymnast
from gymnast.agents.loading.tiny import tiny_tokenizer

pytestmark = pytest.mark.slow  # the environment of a peer takes seconds


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> step_calls.Workload:
    monkeypatch.setattr(step_calls, "tokenizer", tiny_tokenizer)
    monkeypatch.setattr(step_calls, "TURN_TOKENS", 400)  # the tiny tokenizer knows few words
    return step_calls.workload(2, 50, tmp_path)


def test_gymnast_plays_every_call_in_three_ways(work: step_calls.Workload) -> None:
    for spent in step_gymnast.play(work):
        assert len(spent.wall_ms) == len(spent.cpu_ms) == 2 * step_calls.CALLS
        assert min(spent.wall_ms) > 0
        assert 300 < spent.read <= 400 and spent.written > step_calls.RESULT_TOKENS
        assert re.fullmatch(r"\| Gymnast, [a-z, ]+ \|( [\d.]+ \|){6}", step.line(spent, 2))


def test_a_peer_that_cannot_be_installed_or_run_says_so(
    work: step_calls.Workload, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(step.PEERS, "gem", ["/no/such/package.whl"])
    said: Any = step.play_peer("gem", work, tmp_path / "environments")
    assert said.startswith("cannot be installed: ")
    monkeypatch.setitem(step.PEERS, "gem", ["pip"])
    said = step.play_peer("gem", work, tmp_path / "environments")
    assert said == "does not run: ModuleNotFoundError: No module named 'gem'"
