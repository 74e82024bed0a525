"""The sandbox benchmark runs, and finds what is left behind."""

import tempfile
from pathlib import Path

import pytest

from sandbox import QUICK, SCENARIOS, peers
from sandbox_leaks import held

COUNTS = type(QUICK)(calls=3, peer_calls=1, takes=1, boxes=2, long_calls=3, episodes=2)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_runs_and_meets_what_is_not_a_time(scenario: str) -> None:
    report = SCENARIOS[scenario]("local", COUNTS)
    assert report.lines
    assert all(target.met for target in report.targets if "ms" not in target.what), str(report)


def test_a_peer_that_does_not_run_here_is_told_with_its_reason() -> None:
    _, line, other = peers(COUNTS, ["subprocess", "docker exec"]).lines
    assert float(line.split("|")[1].split()[0]) > 0
    assert other.startswith("docker exec")


def test_what_is_left_behind_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = held()
    with tempfile.TemporaryDirectory(prefix="gymnast-"), Path("/dev/null").open("rb"):
        assert held().more_than(before) == {"descriptors": 1, "files": 1}
    assert held().more_than(before) == {}
