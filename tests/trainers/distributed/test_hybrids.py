"""Hybrids in two real processes: with DDP, FSDP2 and DeepSpeed they learn what one process does."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import hybrid_processes
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

SCRIPT = Path(__file__).parents[1] / "hybrid_processes.py"
LONGEST_S = 1200  # for all scenarios; one that hangs fails here
WAYS = hybrid_processes.WAYS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hybrids")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """What both processes found in every scenario."""
    return in_two_processes(SCRIPT, folder, longest_s=LONGEST_S)


def assert_as_one(run: Path, alone: Path, start: Any, folder: Path) -> None:
    """Equal metrics but for rounding, and weights whose differences are rounding's."""
    for ours, theirs in zip(written(run), written(alone), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    start.save_pretrained(folder / "start" / "model")
    changed = (weights(alone) - weights(folder / "start")).norm()
    assert changed > 0
    assert (weights(run) - weights(alone)).norm() / changed < 1e-3


@pytest.mark.parametrize("family", hybrid_processes.FAMILIES)
def test_two_processes_learn_what_one_does_in_every_way(
    family: str, found: Found, folder: Path, tmp_path: Path
) -> None:
    model = hybrid_processes.hybrid(family)
    train(model=model, output_dir=tmp_path / "alone", **hybrid_processes.LEARNS)
    ways = WAYS if family == hybrid_processes.FAMILIES[0] else ("ddp", "fsdp2", "zero3")
    for way in ways:
        name = f"{family}_{way}"
        assert found[0]["plain"][name] == found[1]["plain"][name]
        start = hybrid_processes.hybrid(family)
        assert_as_one(folder / name, tmp_path / "alone", start, tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_adapters_with_a_divergence_and_layers_computed_again_resume_bit_for_bit(
    found: Found, way: str
) -> None:
    for process in found:
        whole, resumed = process["adapted"][way]
        assert whole == resumed


def test_weights_in_float32_train_beside_those_in_bfloat16_and_are_not_shared_out(
    found: Found,
) -> None:
    ours, theirs = (process["in_bfloat16"] for process in found)
    assert ours["weights"] == theirs["weights"]
    assert ours["dtypes"] == ["torch.bfloat16", "torch.float32"]
    assert ours["steps"][0]["grad_norm"] > 0
    assert ours["fsdp2"]["error"] == "ModelError"
    assert "of one dtype, and these are bfloat16 and float32" in ours["fsdp2"]["message"]


@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_other_optimizers_have_shares_of_their_state_and_resume(
    found: Found, folder: Path, name: str
) -> None:
    for process in found:
        for way in ("ddp", "fsdp2"):
            whole, resumed = process["by_other_optimizers"][f"{name}_{way}"]
            assert whole == resumed
    whole, divided = (weights(folder / f"{name}_{way}") for way in ("ddp", "fsdp2"))
    # Muon computes in bfloat16: its steps are of at most 1e-3 here, and rounding is a part of them.
    torch.testing.assert_close(divided, whole, rtol=0, atol=2e-4 if name == "muon" else 1e-6)
