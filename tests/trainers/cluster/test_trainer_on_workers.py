"""A run whose episodes are played on Ray workers is the run that is played here."""

from pathlib import Path

import pytest

from process_runs import in_two_processes
from ray_processes import trained

pytestmark = pytest.mark.ray

SCRIPT = Path(__file__).parent.parent / "ray_processes.py"


def test_a_deterministic_run_is_the_same_on_workers_bit_for_bit(two_nodes: str) -> None:
    far = trained(rollouts_backend="ray", rollouts_workers=2, rollouts_address=two_nodes)
    assert far == trained()


def test_two_training_processes_each_play_their_share_on_the_cluster(
    two_nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", two_nodes)
    for found in in_two_processes(SCRIPT, tmp_path, longest_s=300):
        assert found["on workers"] == found["here"]
