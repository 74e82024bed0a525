"""Mixtures of experts in two real processes: adapters of experts, and replayed routing."""

import importlib.util
from pathlib import Path

import pytest

import expert_processes
from gymnast.agents.models.merging import save_merged
from hybrid_processes import WAYS
from process_runs import Found, in_two_processes, weights, written
from two_processes import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deepspeed,
    pytest.mark.filterwarnings("ignore"),  # models tell of kernels that they do without
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
    ),
]

SCRIPT = Path(__file__).parents[1] / "expert_processes.py"
LONGEST_S = 1200  # for all scenarios; one that hangs fails here


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """What both processes found in every scenario."""
    return in_two_processes(SCRIPT, folder, longest_s=LONGEST_S)


@pytest.mark.parametrize("family", expert_processes.FAMILIES)
def test_adapters_of_experts_learn_what_one_process_learns_in_every_way(
    family: str, found: Found, folder: Path, tmp_path: Path
) -> None:
    settings = expert_processes.TWO_UPDATES
    train(model=expert_processes.adapted(family), output_dir=tmp_path / "alone", **settings)
    save_merged(expert_processes.adapted(family), tmp_path / "start" / "model")
    alone = weights(tmp_path / "alone")
    changed = (alone - weights(tmp_path / "start")).norm()
    assert changed > 0
    ways = WAYS if family == expert_processes.FAMILIES[0] else ("ddp", "fsdp2", "zero2", "zero3")
    for way in ways:
        here, there = (process["learned"][f"{family}_{way}"] for process in found)
        assert here["weights"] == there["weights"]
        run = folder / f"{family}_{way}"
        for ours, theirs in zip(written(run), written(tmp_path / "alone"), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
        assert (weights(run) - alone).norm() / changed < 1e-3


@pytest.mark.parametrize("way", ["ddp", "fsdp2", "zero2", "zero3"])
def test_adapters_of_experts_resume_bit_for_bit(found: Found, way: str) -> None:
    for process in found:
        whole, resumed = process["resumed"][way]
        assert whole == resumed


@pytest.mark.parametrize("way", ["fsdp2", "zero3"])
def test_experts_travel_with_trajectories_of_all_processes(way: str, found: Found) -> None:
    here, there = (process["replayed"][way] for process in found)
    assert here["weights"] == there["weights"]
    assert len(here["digests"]) == 8
    assert here["digests"] == found[0]["replayed"]["ddp"]["digests"]
