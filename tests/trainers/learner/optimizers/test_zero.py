"""DeepSpeed in two real processes: what it trains is what one process trains without it."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from clocks import without_clocks
from gymnast.trainers import make_algorithm
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.update import UpdateSettings, update
from process_runs import Found, assert_same_run, difference, in_two_processes, sampled, written
from sampled_groups import KeepsGradients, bfloat16_model, short_groups
from two_processes import TWO_STEPS, WARMED, make_trainer, train
from zero_processes import LEARNS, rich

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
    ),
]

SCRIPT = Path(__file__).parents[2] / "zero_processes.py"
LONGEST_S = 600  # for all scenarios; one that hangs fails here
every_stage = pytest.mark.parametrize("stage", ["1", "2", "3"])
most_stages = pytest.mark.parametrize("stage", ["2", "3"])  # 1 differs from 2 in gradients alone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """What both processes found in every scenario."""
    return in_two_processes(SCRIPT, folder, longest_s=LONGEST_S)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """The run of the scenario `plain`, in this process and without DeepSpeed."""
    train(output_dir=folder / "alone", **LEARNS)
    return folder / "alone"


@pytest.fixture(scope="module")
def two_steps_alone(folder: Path) -> Path:
    train(output_dir=folder / "two_steps_alone", **TWO_STEPS)
    return folder / "two_steps_alone"


@most_stages
def test_many_micro_batches_in_bfloat16_add_up_in_float32(
    found: Found, folder: Path, stage: str
) -> None:
    """Over the processes, each pass's gradients are averaged in bfloat16 first."""
    algorithm = make_algorithm("dr_grpo", loss="reinforce")
    model = bfloat16_model()
    optimizer = KeepsGradients(model.parameters(), learning_rate=0.0)
    settings = UpdateSettings(algorithm, 1e9, tokens_per_microbatch=1)
    update(Policy(model), optimizer, short_groups(), settings, Accelerator())
    alone = torch.cat([gradient.flatten() for gradient in optimizer.gradients])
    ours = torch.load(folder / f"many{stage}_0.pt")
    assert (ours - alone).norm() < 5e-3 * alone.norm()


# --- As without it


@every_stage
def test_losses_gradients_and_metrics_are_those_of_one_process(
    found: Found, alone: Path, folder: Path, stage: str
) -> None:
    ours = folder / f"stage{stage}"
    assert_same_run(ours, alone)
    assert sampled(ours) == sampled(alone)
    clipped = [step["grad_clipped"] for step in found[0]["plain"][stage]["steps"]]
    assert clipped == [1.0, 1.0, 1.0], "gradients are longer than max_grad_norm, and told so"


@every_stage
def test_the_trained_weights_are_those_of_one_process(
    found: Found, alone: Path, folder: Path, stage: str
) -> None:
    assert found[0]["plain"][stage]["weights"] == found[1]["plain"][stage]["weights"]
    assert difference(folder / f"stage{stage}", alone) < 1e-3


@most_stages
def test_a_warm_up_learns_what_it_does_without(found: Found, folder: Path, stage: str) -> None:
    if not (folder / "warmed_alone").exists():
        train(output_dir=folder / "warmed_alone", **WARMED)
    ours, alone = written(folder / f"warmed{stage}"), written(folder / "warmed_alone")
    assert found[0]["warmed"][stage]["weights"] == found[1]["warmed"][stage]["weights"]
    warm = [[line for line in run if "warmup/loss" in line] for run in (ours, alone)]
    losses = [[line["warmup/loss"] for line in run] for run in warm]
    assert len(losses[0]) == 3 and losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][-1] < losses[0][0]
    assert difference(folder / f"warmed{stage}", folder / "warmed_alone") < 2e-3


@every_stage
def test_each_process_holds_a_share(found: Found, stage: str) -> None:
    shares = [process["plain"][stage]["moments"] for process in found]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    assert shares == pytest.approx([0.5, 0.5], abs=0.02)
    whole = [process["plain"][stage]["weights_whole"] for process in found]
    assert whole == ([0, 0] if stage == "3" else [1, 1])


@most_stages
def test_a_reference_an_entropy_bonus_and_several_steps_a_batch(
    found: Found, alone_with_everything: list[dict[str, float]], stage: str
) -> None:
    here, there = (process["with_everything"][stage] for process in found)
    assert here["weights"] == there["weights"]
    for ours, theirs in zip(here["steps"], alone_with_everything, strict=True):
        told = without_clocks(theirs)
        assert {name: ours[name] for name in told} == pytest.approx(told, rel=1e-3, abs=1e-5)
    assert here["steps"][-1]["updates/taken"] == 4


@pytest.fixture(scope="module")
def alone_with_everything() -> list[dict[str, float]]:
    steps: list[dict[str, float]] = train(algorithm=rich(), steps=2)[1]["steps"]
    return steps


@most_stages
def test_adapters_alone_are_trained_with_float32_masters(found: Found, stage: str) -> None:
    ours, theirs = (found[0]["adapters"][each] for each in (stage, "0"))
    assert ours["weights"] == found[1]["adapters"][stage]["weights"]
    assert ours["dtypes"] == ["torch.float32"]
    assert ours["changed"] == theirs["changed"] > 0
    assert ours["frozen_changed"] == 0
    for one, other in zip(ours["steps"], theirs["steps"], strict=True):
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.05)


@most_stages
def test_bfloat16_weights_have_float32_masters_and_go_on_exactly(found: Found, stage: str) -> None:
    for process in found:
        told = process["in_bfloat16"][stage]
        assert told["dtype"] == "torch.float32"
        assert told["difference"] < 1e-2
    weights = {each for process in found for each in process["in_bfloat16"][stage]["weights"]}
    assert len(weights) == 1


# --- Steps that are skipped


@most_stages
def test_all_processes_skip_a_step_that_is_broken_in_one(found: Found, stage: str) -> None:
    first, second = (process["skipped"][stage] for process in found)
    assert [step["updates/skipped"] for step in first["steps"]] == [0, 1, 0]
    assert [step["updates/skipped_total"] for step in first["steps"]] == [0, 1, 1]
    assert first["steps"][2]["grad_norm"] > 0
    assert first["weights"] == second["weights"]


@most_stages
def test_a_skipped_step_leaves_weights_and_optimizer_as_they_are(found: Found, stage: str) -> None:
    for process in found:
        told = process["skips_exactly"][stage]
        before, broken_gradient, broken_loss, taken = told["states"]
        assert before == broken_gradient == broken_loss
        assert taken[0] != before[0] and taken[1] != before[1]
        assert told["norms"][0] == "inf"
        assert told["norms"][1] == told["norms"][2] != "inf"
        counts = {"steps": 2, "skipped": 2, "skipped_in_a_row": 0}
        assert told["counts"] == counts | {"last_share": 2 / 4}  # of a warm-up over three steps


# --- Resume


@most_stages
def test_a_resumed_run_goes_on_exactly(found: Found, stage: str) -> None:
    weights = {each for process in found for each in process["resumed"][stage]}
    assert len(weights) == 1


@most_stages
def test_a_run_may_go_on_with_deepspeed(
    found: Found, two_steps_alone: Path, folder: Path, stage: str
) -> None:
    assert difference(folder / f"begun_without{stage}", two_steps_alone) < 1e-3


@most_stages
def test_a_run_may_go_on_without_deepspeed_in_one_process(
    found: Found, two_steps_alone: Path, folder: Path, stage: str
) -> None:
    settings: dict[str, Any] = TWO_STEPS | {"output_dir": folder / f"begun{stage}"}
    trainer = make_trainer(**settings)
    trainer.train(resume=True)
    assert trainer.step == 2
    assert difference(folder / f"begun{stage}", two_steps_alone) < 1e-3


# --- Refused


def test_a_dtype_that_deepspeed_would_change_is_refused(found: Found) -> None:
    for process in found:
        assert process["refused"]["error"] == "ModelError"
        assert "all float32 or all bfloat16, and these are float16" in process["refused"]["message"]
