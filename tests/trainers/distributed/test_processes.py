"""Two real processes, joined by gloo: they train as one would, and none waits for ever."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from clocks import without_clocks
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import ConfigError
from gymnast.trainers import Trainer, make_algorithm
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.update import UpdateSettings, update
from process_runs import (
    Found,
    assert_same_run,
    difference,
    in_two_processes,
    lines,
    sampled,
    written,
)
from sampled_groups import KeepsGradients, bfloat16_model, short_groups

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parents[1] / "two_processes.py"
LONGEST_S = 300  # for all scenarios; one that hangs fails here


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """What both processes found in every scenario."""
    return in_two_processes(SCRIPT, folder, longest_s=LONGEST_S)


@pytest.fixture(scope="module")
def scenarios() -> Any:
    """The scenarios' module, for this process alone."""
    spec = importlib.util.spec_from_file_location("two_processes", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def one_process(scenarios: Any, folder: Path) -> dict[str, Any]:
    """The scenario `plain`, in this process alone."""
    alone = folder / "alone"
    alone.mkdir()
    result: dict[str, Any] = scenarios.plain(alone)
    return result


# --- Two are as one


def test_an_evaluation_is_of_the_rows_of_all_processes(
    found: Found, scenarios: Any, folder: Path
) -> None:
    here, there = (process["evaluated"] for process in found)
    assert here == there
    assert (here["eval/rows"], here["eval/other/rows"]) == (5, 2)
    assert (here["eval/by/half=0/rows"], here["eval/by/half=1/rows"]) == (3, 2)
    assert here == pytest.approx(scenarios.evaluated(folder))


def test_two_processes_play_the_episodes_that_one_would(
    found: Found, one_process: dict[str, Any], folder: Path
) -> None:
    assert sampled(folder / "plain") == sampled(folder / "alone/plain")


def test_losses_gradients_and_metrics_are_those_of_one_process(
    found: Found, one_process: dict[str, Any], folder: Path
) -> None:
    assert_same_run(folder / "plain", folder / "alone/plain")
    assert found[0]["plain"]["sizes"] == one_process["sizes"] == [[4, 4, 4]] * 3


def test_the_trained_weights_are_those_of_one_process(
    found: Found, one_process: dict[str, Any], folder: Path
) -> None:
    assert found[0]["plain"]["weights"] == found[1]["plain"]["weights"]
    assert difference(folder / "plain", folder / "alone/plain") < 1e-3


def test_only_the_main_process_tells_and_writes(found: Found, folder: Path) -> None:
    assert found[1]["plain"]["steps"] == []
    assert len(lines(folder / "plain/metrics.jsonl")) == 5


def test_an_estimator_sees_the_rewards_of_all_processes(found: Found) -> None:
    assert [process["estimators_see_all"]["seen"] for process in found] == [[12], [12]]


def test_a_divergence_is_taken_from_the_reward_of_its_own_trajectory(
    found: Found, scenarios: Any, folder: Path
) -> None:
    alone = scenarios.penalised(folder)
    for ours, theirs in zip(found[0]["penalised"]["steps"], alone["steps"], strict=True):
        told = without_clocks(theirs)
        assert {name: ours[name] for name in told} == pytest.approx(told, rel=1e-3, abs=1e-6)
    assert abs(alone["steps"][-1]["kl"]) > 1e-4, "the policy has left its reference"
    assert alone["steps"][-1]["grad_norm"] > 0


def test_a_teacher_and_a_refreshed_reference_say_what_they_say_in_one_process(
    found: Found, scenarios: Any, folder: Path
) -> None:
    for teacher, alone in scenarios.taught(folder).items():
        here, there = (process["taught"][teacher] for process in found)
        for ours, theirs in zip(here["steps"], alone["steps"], strict=True):
            told = without_clocks(theirs)
            assert {name: ours[name] for name in told} == pytest.approx(told, rel=2e-3, abs=1e-5)
        assert here["weights"] == there["weights"]
        assert alone["steps"][0]["teacher/kl"] > 0 and alone["steps"][-1]["kl"] > 0


def test_a_warm_up_learns_what_it_does_in_one_process(
    found: Found, scenarios: Any, folder: Path
) -> None:
    (folder / "warmed_alone").mkdir()
    scenarios.warmed(folder / "warmed_alone")
    ours, theirs = folder / "warmed", folder / "warmed_alone/warmed"
    assert found[0]["warmed"]["weights"] == found[1]["warmed"]["weights"]
    for one, other in zip(written(ours), written(theirs), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    learned = [line["warmup/episodes"] for line in written(ours) if "warmup/loss" in line]
    assert len(learned) == 3 and 1 in learned, "of one row of some step there is no solution"
    assert any("demonstrations/loss" in line for line in written(ours))
    assert difference(ours, theirs) < 1e-3


# --- Processes differ


def test_where_all_episodes_of_a_process_fail_training_goes_on_with_the_others(
    found: Found,
) -> None:
    of_all = found[0]["lost_in_one"]
    assert of_all["sizes"] == [[4, 0, 4]] * 2  # the row in the middle was the second process's
    for step in of_all["steps"]:
        assert step["episodes/finished"] == 8
        assert step["episodes/left_out/infrastructure"] == step["episodes/retried"] == 4
        assert step["grad_norm"] > 0 and step["updates/skipped"] == 0
    assert of_all["weights"] == found[1]["lost_in_one"]["weights"]


def test_processes_may_differ_in_turns_and_in_time(found: Found) -> None:
    for step in found[0]["uneven"]["steps"]:
        assert step["episodes/turns"] == pytest.approx((8 * 1 + 4 * 3) / 12)
        assert step["grad_norm"] > 0
    assert found[0]["uneven"]["weights"] == found[1]["uneven"]["weights"]


def test_there_may_be_fewer_rows_than_processes(found: Found) -> None:
    few = found[0]["fewer_rows_than_processes"]
    assert few["sizes"] == [[4], [4]]
    assert any(step["grad_norm"] > 0 for step in few["steps"])
    assert few["weights"] == found[1]["fewer_rows_than_processes"]["weights"]


def test_each_process_replaces_groups_by_rows_of_its_own_share(found: Found) -> None:
    here, there = (process["replaced"] for process in found)
    played = [step["dynamic_sampling/rows"] for step in here["steps"]]
    assert played == [len(sizes) for sizes in here["sizes"]]
    assert sum(played) == here["rows"]["next"] - len(here["rows"]["left"])  # each row once
    for step in here["steps"]:
        assert step["dynamic_sampling/groups_missing"] == 0
        assert step["dynamic_sampling/groups_replaced"] == step["dynamic_sampling/rows"] - 2
        assert step["episodes/with_gradient"] == 8
    assert max(played) > 2
    assert (here["rows"], here["weights"]) == (there["rows"], there["weights"])


def test_where_no_episode_finished_every_process_says_so(found: Found) -> None:
    for process in found:
        assert process["lost"]["error"] == "TooManyFailures"
        assert "none of 12 episodes finished: 12 were broken" in process["lost"]["message"]


def test_what_the_users_code_raises_in_one_process_ends_all(found: Found) -> None:
    here, there = found[1]["typo_in_one"], found[0]["typo_in_one"]
    assert here["error"] == there["error"] == "UserCodeError"
    assert "anwser" in here["message"] and "KeyError" in here["cause"]
    assert there["message"] == f"process 1: {here['message']}"


def test_how_many_episodes_may_fail_is_counted_over_all_processes(found: Found) -> None:
    (step,) = found[0]["typos_within_the_limit"]["steps"]
    assert step["episodes/left_out/user_code"] == 4
    assert step["episodes/finished"] == 8


def test_any_error_and_what_cannot_be_sent_reach_all_processes(found: Found) -> None:
    first, second = (process["exchange"] for process in found)
    assert first["results"] == second["results"] == [0, 1]
    assert first["messages"][0] == "RuntimeError: process 1: ZeroDivisionError: by nought"
    assert second["messages"][0] == "ZeroDivisionError: by nought"
    assert len(first["messages"]) == len(second["messages"]) == 2
    assert "pickle" in first["messages"][1]


# --- Steps that are skipped


def test_all_processes_skip_a_step_that_is_broken_in_one(found: Found) -> None:
    first, second = (process["skipped_in_one"] for process in found)
    assert [step["updates/skipped"] for step in first["steps"]] == [0, 1, 0]
    assert [step["updates/skipped_total"] for step in first["steps"]] == [0, 1, 1]
    assert first["steps"][2]["grad_norm"] > 0
    assert first["weights"] == second["weights"]


def test_all_processes_end_where_one_diverges_and_a_checkpoint_is_saved(found: Found) -> None:
    for process in found:
        assert process["diverged_in_one"]["error"] == "Diverged"
        assert process["diverged_in_one"]["message"].startswith("step 10: 10 optimisation steps")
        assert process["diverged_in_one"]["saved"] == ["step_00010"]


def test_the_largest_number_is_that_of_all_processes(found: Found) -> None:
    for process in found:
        assert process["largest"] == {"found": [1.0, 0.0, 2.0], "broken": "nan"}


# --- Trackers


def test_only_the_main_process_tracks_and_what_cannot_start_ends_all(found: Found) -> None:
    first, second = (process["tracked"] for process in found)
    assert (first["steps"], second["steps"]) == ([1, 2], [])
    assert first["error"] == second["error"] == "ConfigError"
    assert "no server" in first["message"]
    assert second["message"] == f"process 0: {first['message']}"


# --- Stopped


def test_all_processes_stop_and_save_where_one_gets_ctrl_c_and_can_go_on(found: Found) -> None:
    here, there = (process["interrupted_in_one"] for process in found)
    assert (here["stopped_by"], there["stopped_by"]) == ("another process", "Ctrl-C")
    assert here["saved"] == there["saved"] == ["step_00001"]
    assert here["again"] == there["again"] == 3
    assert here["weights"] == there["weights"]


# --- The end of a process


def test_what_sums_gradients_is_gone_when_a_run_is(found: Found) -> None:
    """Freed after the processes have parted, torch's `Reducer` may wait for ever."""
    for process in found:
        left = {"after": 0, "after_an_error": 0, "error": "made on purpose"}
        assert process["let_go"] == left


@pytest.mark.slow
def test_processes_that_part_thirty_times_never_wait_for_ever(tmp_path: Path) -> None:
    """As a rule, before, they did within four times."""
    script = SCRIPT.with_name("parting_processes.py")
    assert in_two_processes(script, tmp_path, longest_s=240) == [{"parted": 30}] * 2


# --- Resume


def test_a_resumed_run_of_two_processes_goes_on_exactly(found: Found, folder: Path) -> None:
    """Each draws from its own global generators, in step 4 of 4 once before it stops."""
    assert [process["resumed"]["stopped_after"] for process in found] == [3, 3]
    weights = {process["resumed"][name] for process in found for name in ("whole", "resumed")}
    assert len(weights) == 1
    whole, cut = (written(folder / name) for name in ("whole", "cut"))
    assert cut == whole


# --- Sharded weights


def test_sharded_training_is_training(found: Found, folder: Path) -> None:
    assert_same_run(folder / "sharded", folder / "plain")
    assert sampled(folder / "sharded") == sampled(folder / "plain")
    assert found[0]["sharded"]["weights"] == found[1]["sharded"]["weights"]
    assert difference(folder / "sharded", folder / "plain") < 1e-3


def test_each_process_trains_a_share_of_the_weights(found: Found) -> None:
    shares = [process["sharded"]["share"] for process in found]
    assert sum(shares) == pytest.approx(1)
    assert shares == pytest.approx([0.5, 0.5], abs=0.02)


def test_a_resumed_sharded_run_goes_on_exactly(found: Found) -> None:
    weights = {process["sharded"][name] for process in found for name in ("whole", "resumed")}
    assert len(weights) == 1


def test_a_sharded_run_may_go_on_in_one_process(found: Found, scenarios: Any, folder: Path) -> None:
    """A checkpoint holds whole tensors. Its last one is of the last step: nothing is left to do."""
    settings = scenarios.TWO_STEPS
    trainer = scenarios.make_trainer(output_dir=folder / "sharded_whole", **settings)
    trainer.train(resume=True)
    assert scenarios.fingerprint(trainer.model) == found[0]["sharded"]["whole"]


def test_sharded_adapters_keep_float32_masters(found: Found) -> None:
    for process in found:
        adapters = process["sharded_adapters"]
        assert adapters["masters"] == ["DTensor", "torch.float32"]
        assert adapters["weights"] != adapters["before"]
    ours, theirs = found[0]["sharded_adapters"], found[0]["sharded_adapters"]["unsharded"]
    for one, other in zip(ours["steps"], theirs["steps"], strict=True):
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.05)


def test_many_micro_batches_in_bfloat16_add_up_to_the_gradient_of_one_process(
    found: Found, folder: Path
) -> None:
    """In float32; where weights are sharded, each pass's gradient is averaged in bfloat16 first."""
    algorithm = make_algorithm("dr_grpo", loss="reinforce")
    model = bfloat16_model()
    optimizer = KeepsGradients(model.parameters(), learning_rate=0.0)
    settings = UpdateSettings(algorithm, 1e9, tokens_per_microbatch=1)
    update(Policy(model), optimizer, short_groups()[:16], settings, Accelerator())
    alone = torch.cat([gradient.flatten() for gradient in optimizer.gradients])
    for name, most in (("replicated", 1e-5), ("sharded", 5e-3)):
        ours, theirs = (torch.load(folder / f"{name}_{process}.pt") for process in (0, 1))
        assert torch.equal(ours, theirs)
        assert (ours - alone).norm() < most * alone.norm(), name


# --- What a launcher may not ask for


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "Megatron-LM is not supported"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "set mixed_precision: 'no'.*model.dtype"),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, "must be 1, got 4.*tokens_per_micro"),
        ({"ACCELERATE_USE_FSDP": "true"}, "fsdp_version must be 2, got 1"),
        (
            {
                "ACCELERATE_USE_FSDP": "true",
                "FSDP_VERSION": "2",
                "FSDP_OFFLOAD_PARAMS": "true",
            },
            "fsdp_offload_params must be false",
        ),
    ],
)
def test_what_a_launcher_may_not_ask_for_is_refused(
    asked: dict[str, str], message: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        Trainer(tiny_model(), tokenizer, "gymnast/Arithmetic-v0", [{"prompt": "Go."}])
