"""Two real processes, each with the whole base in 4 bits: gradients of adapters are summed."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from process_runs import Found, assert_same_run, in_two_processes
from quantized_processes import learned

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parents[1] / "quantized_processes.py"
LONGEST_S = 300  # for all scenarios; one that hangs fails here


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """What both processes found in every scenario."""
    return in_two_processes(SCRIPT, folder, longest_s=LONGEST_S)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """The scenario `learned`, in this process alone."""
    own = folder / "alone"
    own.mkdir()
    learned(own)
    return own / "learned"


def changed(run: Path) -> torch.Tensor:
    """What training made of the matrices that begin as zeros, in one row."""
    adapters = load_file(run / "adapters/adapter_model.safetensors")
    return torch.cat([adapters[name].flatten() for name in sorted(adapters) if "lora_B" in name])


def test_two_processes_learn_what_one_does(found: Found, folder: Path, alone: Path) -> None:
    assert_same_run(folder / "learned", alone)
    ours, theirs = changed(folder / "learned"), changed(alone)
    assert theirs.norm() > 0
    assert (ours - theirs).norm() < 1e-3 * theirs.norm()


def test_every_process_has_the_same_adapters_and_base(found: Found) -> None:
    for scenario in ("learned", "in_bfloat16"):
        assert found[0][scenario]["weights"] == found[1][scenario]["weights"]
    assert all(each["learned"]["codes"] == each["learned"]["before"] > 0 for each in found)


def test_a_resumed_run_goes_on_exactly(found: Found) -> None:
    assert all(each["resumed"]["weights"] == each["learned"]["weights"] for each in found)


def test_a_base_is_not_divided(found: Found) -> None:
    for process in found:
        assert process["divided"]["error"] == "ConfigError"
        assert process["divided"]["message"].startswith("model.quantization: is nf4")
