"""A run that is killed at any moment and resumed is the run that was not killed.

Processes are killed by SIGKILL, in a fork that plays a run as `gymnast train` does
(`killed_runs.py`), and resumed in another by the same way.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

from clocks import without_clocks
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.trainers.saving.checkpoints import Checkpoints
from model_families import tiny

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parents[1] / "killed_runs.py"
KILLED = -signal.SIGKILL
STEPS = [2, 4, 4, 6]  # as in killed_runs.py
Kill = tuple[str, int]

ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.", "Then.", "Well.")]
SETTINGS: dict[str, Any] = {
    "model": {"name": "tiny:", "dtype": "float32", "parser": "killed_runs:calls_when_long"},
    "environment": {"id": "killed_runs:Letters", "max_turns": 2, "context_length": 512},
    "algorithm": {"name": "grpo", "group_size": 2, "loss": "killed_runs:noisy", "epochs": 2},
    "sampling": {"max_new_tokens": 6},
    "trainer": {
        "steps": 5,
        "rows_per_step": 2,  # two rows are held out: an epoch ends amid the second step
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
        "warmup_steps": 4,
        "checkpoint_every_steps": 2,
        "keep_checkpoints": 1,
    },
    "evaluation": {"rows": 2, "every_steps": 2},
    "seed": 4,
    "deterministic": True,
}
# One episode at a time: the order in which several would draw depends on the clock.
DRAWING = ["environment.id=killed_runs:Drawing", "trainer.concurrency=1"]


class Runs:
    """Runs in a folder, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rows = folder / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        self.config = folder / "run.yaml"
        self.config.write_text(yaml.safe_dump(SETTINGS | {"data": {"train": str(rows)}}))
        self.server = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "random"},
        )

    def play(
        self,
        name: str,
        *overrides: str,
        kill: Kill = ("nowhere", 0),
        signals: Sequence[int] = (signal.SIGKILL,),
        resume: bool = False,
        notes: Path | None = None,
    ) -> int:
        """Play a run; returns how its process ended."""
        job = {
            "config": str(self.config),
            "overrides": [f"output_dir={self.folder / name}", *overrides],
            "kill": kill,
            "signals": list(signals),
            "resume": resume,
            "notes": str(notes) if notes is not None else None,
            "log": str(self.folder / f"{name}.log"),
        }
        return self.send(job)

    def send(self, job: dict[str, Any]) -> int:
        """Send a job of any kind; returns how its process ended."""
        job = {"log": str(self.folder / "checkpoints.log")} | job
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def end(self) -> None:
        """Kill what is left."""
        self.server.kill()
        self.server.communicate()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    found = Runs(tmp_path_factory.mktemp("runs"))
    yield found
    found.end()


@pytest.fixture(scope="module")
def whole(runs: Runs) -> Path:
    """The run that nobody kills."""
    assert runs.play("whole") == 0, runs.log("whole")
    return runs.folder / "whole"


@pytest.fixture(scope="module")
def whole_drawing(runs: Runs) -> Path:
    """The same with an environment that draws from global generators."""
    assert runs.play("whole_drawing", *DRAWING) == 0, runs.log("whole_drawing")
    return runs.folder / "whole_drawing"


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [without_clocks(json.loads(line)) for line in lines]


def episodes(run: Path, *keys: str) -> dict[str, list[Any]]:
    """Something of every episode, by file."""
    keys = keys or ("group", "row", "seed", "ids", "logprobs", "turn_rewards")
    return {
        path.name: [
            [json.loads(record[key]) if key == "row" else record[key] for key in keys]
            for record in pq.read_table(path).to_pylist()
        ]
        for path in sorted((run / "rollouts").iterdir())
    }


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_equal_states(ours: Any, theirs: Any) -> None:
    """Nested dicts and lists of numbers and tensors, equal bit for bit."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_equal_states(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_equal_states(one, other)
    elif isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    else:
        assert ours == theirs


def assert_same_run(ours: Path, theirs: Path) -> None:
    """Metrics, episodes, the last checkpoint and the trained model, all equal bit for bit."""
    assert metrics(ours) == metrics(theirs)
    assert episodes(ours) == episodes(theirs)
    (mine,), (other,) = ((run / "checkpoints").iterdir() for run in (ours, theirs))
    assert mine.name == other.name
    assert_equal_states(*(torch.load(path / "state.pt") for path in (mine, other)))
    files = [load_file(run / "model" / "model.safetensors") for run in (ours, theirs)]
    assert_equal_states(*files)
    assert list(ours.rglob(".*")) == [], "what a killed process left is cleared away"


# --- The run that nobody kills


def test_the_run_to_compare_with_does_what_it_should(whole: Path, whole_drawing: Path) -> None:
    """It learns from all, calls tools, repeats its rows, and differs in every step."""
    lines = metrics(whole)
    assert [line["step"] for line in lines] == [0, 1, 2, 2, 3, 4, 4, 5, 5]
    trained = [line for line in lines if "loss" in line]
    assert all(line["tools/calls"] > 0 and line["grad_norm"] > 0 for line in trained)
    assert len({line["loss"] for line in trained}) == 5
    rows = [row["prompt"] for step in episodes(whole, "row").items() if "step" in step[0]
            for (row,) in step[1][::2]]  # fmt: skip
    assert len(rows) == 10 and len(set(rows[:3])) == len(set(rows)) == 3
    assert metrics(whole_drawing) != lines


# --- Killed, and resumed


# Each run is killed at all of its moments, one after the other, and resumed after each.
MOMENTS: dict[str, list[Kill]] = {
    "before there is a checkpoint": [
        ("loading", 1),
        ("evaluation 0: reward", 1),
        ("evaluation 0: metrics", 1),  # half a line
        ("step 1: tool", 2),
        ("state", 1),  # half of the file
    ],
    "in rollouts, in training and in metrics": [
        ("step 3: loss", 1),  # its rows begin to repeat those of before
        ("step 4: tool", 2),
        ("step 4: optimizer step", 1),  # between the two epochs of a batch
        ("step 4: metrics", 1),
    ],
    "while a checkpoint is saved": [
        ("state", 2),
        ("rename .step_00004.new", 1),  # whole, and without its name
        ("remove step_00002", 1),  # both have their names
        ("rmtree .step_00002.gone", 2),  # the old one is being removed
        ("remove step_00004", 1),  # that of the last step is whole, and nothing follows it
    ],
    "at the end": [
        ("evaluation 4: reward", 2),
        ("evaluation 5: checkpoint", 1),
        ("step 5: tool", 1),
        ("rename .model.new", 1),
    ],
    "while it is resumed": [
        ("step 3: optimizer step", 1),
        ("replace .metrics.jsonl.new", 1),
        ("dropped", 1),
        ("loading", 1),
    ],
}


@pytest.mark.parametrize("kills", MOMENTS.values(), ids=list(MOMENTS))
def test_a_run_killed_at_any_moment_and_resumed_is_the_whole_run(
    kills: Sequence[Kill], runs: Runs, whole: Path
) -> None:
    name = f"killed_{list(MOMENTS.values()).index(list(kills))}"
    for number, kill in enumerate(kills):
        assert runs.play(name, kill=kill, resume=number > 0) == KILLED, (kill, runs.log(name))
    assert runs.play(name, resume=True) == 0, runs.log(name)
    assert_same_run(runs.folder / name, whole)


def test_global_generators_go_on_where_they_were(runs: Runs, whole_drawing: Path) -> None:
    kills = [("step 2: tool", 1), ("step 4: loss", 2), ("evaluation 4: reward", 1)]
    for number, kill in enumerate(kills):
        assert runs.play("drawing", *DRAWING, kill=kill, resume=number > 0) == KILLED
    assert runs.play("drawing", *DRAWING, resume=True) == 0, runs.log("drawing")
    assert_same_run(runs.folder / "drawing", whole_drawing)


@pytest.mark.slow
def test_a_run_killed_in_its_warm_up_is_the_whole_run(runs: Runs) -> None:
    """With a reference, which is the policy after the warm-up."""
    warm = [
        "model.parser=null",
        "environment.id=killed_runs:Solved",
        "warmup={demonstrations: solve, steps: 4, rows_per_step: 2, min_reward: 0.5}",
        "algorithm.kl={coefficient: 0.1}",
        "trainer.steps=2",
    ]
    assert runs.play("warm", *warm) == 0, runs.log("warm")
    kills = [
        ("warm-up 2: optimizer step", 1),  # before there is a checkpoint
        ("warm-up 3: tool", 1),
        ("warm-up 4: optimizer step", 1),
        ("warm-up 4: metrics", 1),  # half a line
        ("step 1: loss", 1),
    ]
    for number, kill in enumerate(kills):
        assert runs.play("cut", *warm, kill=kill, resume=number > 0) == KILLED, kill
    assert runs.play("cut", *warm, resume=True) == 0, runs.log("cut")
    assert_same_run(runs.folder / "cut", runs.folder / "warm")


@pytest.mark.slow
def test_adapters_of_experts_are_resumed_exactly(runs: Runs, tmp_path: Path) -> None:
    tiny("qwen3_moe", vocab_size=len(tokenizer := tiny_tokenizer())).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lora = (f"model.name={tmp_path}", "model.lora.rank=4")
    assert runs.play("whole_experts", *lora) == 0, runs.log("whole_experts")
    kills = [("step 3: loss", 1), ("step 4: optimizer step", 1), ("evaluation 4: reward", 2)]
    for number, kill in enumerate(kills):
        assert runs.play("experts", *lora, kill=kill, resume=number > 0) == KILLED, kill
    assert runs.play("experts", *lora, resume=True) == 0, runs.log("experts")
    assert_same_run(runs.folder / "experts", runs.folder / "whole_experts")
    (checkpoint,) = (runs.folder / "experts" / "checkpoints").iterdir()
    adapters = load_file(next(checkpoint.parents[1].rglob("adapter_model.safetensors")))
    assert any(".experts." in name and weight.any() for name, weight in adapters.items())


def test_a_model_of_fewer_steps_is_replaced_though_killed_between_the_renames(
    runs: Runs, whole: Path
) -> None:
    """A run of 2 steps that goes on to 5, and is killed when neither model has its name."""
    assert runs.play("longer", "trainer.steps=2") == 0, runs.log("longer")
    assert runs.play("longer", resume=True, kill=("rename .model.new", 1)) == KILLED
    run = runs.folder / "longer"
    assert not (run / "model").exists() and (run / ".model.old").exists()
    assert runs.play("longer", resume=True) == 0, runs.log("longer")
    assert_same_run(run, whole)
    assert "changed since the run began: trainer.steps was 2, is 5\n" in runs.log("longer")


# --- Stopped, or ended by an error

NO_CHECKPOINTS = ("trainer.checkpoint_every_steps=0", "trainer.checkpoint_every_s=0")
CTRL_C, TWICE, ERROR = (signal.SIGINT,), (signal.SIGINT, signal.SIGINT), ()


def state(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_a_run_stopped_by_ctrl_c_at_any_moment_and_resumed_is_the_whole_run(
    runs: Runs, whole: Path
) -> None:
    """Each time it saves the last whole step, though nobody asked for checkpoints."""
    run, log = runs.folder / "stopped", ""
    moments = {
        ("step 1: tool", 2): 0,
        ("step 2: tool", 1): 1,  # a rollout is given up
        ("step 3: loss", 1): 3,  # an update is finished
        ("step 4: optimizer step", 1): 4,  # its evaluation is owed
        ("evaluation 4: reward", 2): 4,
        ("step 5: loss", 2): 5,
        ("evaluation 5: reward", 1): 5,
    }
    for number, (kill, step) in enumerate(moments.items()):
        resume = number > 0
        code = runs.play("stopped", *NO_CHECKPOINTS, kill=kill, signals=CTRL_C, resume=resume)
        assert code == 0, runs.log("stopped")
        said, log = runs.log("stopped").removeprefix(log), runs.log("stopped")
        assert "Ctrl-C: the run stops and is saved; a second one ends it at once\n" in said
        assert f"stopped by Ctrl-C after step {step} of 5; " in said
        if step:
            assert state(run) == [f"step_{step:05d}"]
            assert (run / "model" / "model.safetensors").exists()
            assert f"saved in {run}: checkpoints/step_{step:05d}, model/; to continue: " in said
    assert runs.play("stopped", *NO_CHECKPOINTS, resume=True) == 0, runs.log("stopped")
    assert_same_run(run, whole)


def test_a_second_ctrl_c_ends_a_run_at_once_and_leaves_what_is_whole(
    runs: Runs, whole: Path
) -> None:
    """It comes while the first one has step 3 saved, or just before or after.

    A folder that was being written or removed then has a hidden name, and is gone after the next
    run.
    """
    assert runs.play("twice", kill=("step 4: tool", 1), signals=TWICE) == 1
    assert "KeyboardInterrupt" in runs.log("twice")
    run = runs.folder / "twice"
    left = [name for name in state(run) if not name.startswith(".")]
    assert left in (["step_00002"], ["step_00003"])
    (run / "checkpoints" / ".step_00001.gone").mkdir()
    assert runs.play("twice", resume=True) == 0, runs.log("twice")
    assert not any(name.startswith(".") for name in state(run))
    assert_same_run(run, whole)


def test_sigterm_saves_a_run_and_then_ends_the_process(runs: Runs, whole: Path) -> None:
    kill = ("step 4: tool", 1)
    code = runs.play("term", *NO_CHECKPOINTS, kill=kill, signals=(signal.SIGTERM,))
    assert code == -signal.SIGTERM, runs.log("term")
    assert "stopped by SIGTERM after step 3 of 5; saved in " in runs.log("term")
    assert state(runs.folder / "term") == ["step_00003"]
    assert runs.play("term", *NO_CHECKPOINTS, resume=True) == 0, runs.log("term")
    assert_same_run(runs.folder / "term", whole)


def test_a_reward_that_raises_costs_the_step_it_raises_in_and_no_more(
    runs: Runs, whole_drawing: Path
) -> None:
    """What the step drew from global generators before it is as if it was not drawn."""
    settings = (*DRAWING, *NO_CHECKPOINTS)
    assert runs.play("raised", *settings, kill=("step 4: reward", 3), signals=ERROR) == 1
    run = runs.folder / "raised"
    log = runs.log("raised")
    assert "made on purpose (row: " in log
    assert f"saved in {run}: checkpoints/step_00003, model/; to continue: train(resume=True)" in log
    assert runs.play("raised", *settings, resume=True) == 0, runs.log("raised")
    assert_same_run(run, whole_drawing)


def test_no_state_is_saved_of_an_update_that_an_error_ended(runs: Runs, whole: Path) -> None:
    """The fourth step takes one of its two optimisation steps."""
    assert runs.play("amid", kill=("step 4: loss", 2), signals=ERROR) == 1
    run = runs.folder / "amid"
    assert state(run) == ["step_00002"] and not (run / "model").exists()
    assert f"saved in {run}: checkpoints/step_00002; to continue: " in runs.log("amid")
    assert runs.play("amid", resume=True) == 0, runs.log("amid")
    assert_same_run(run, whole)


# --- Checkpoints, at every moment


def test_killed_at_any_file_operation_the_newest_checkpoint_is_never_lost(
    runs: Runs, tmp_path: Path
) -> None:
    """Only the newest is kept, and one step is saved twice."""
    code, operation = KILLED, 0
    while code == KILLED:
        operation += 1
        folder, told = tmp_path / str(operation), tmp_path / f"{operation}.told"
        code = runs.send({"checkpoints": str(folder), "told": str(told), "operation": operation})
        saved = [int(step) for step in told.read_text().split()]
        after = Checkpoints(folder)
        after.sweep()
        newest = after.newest() or 0
        assert newest in (max(saved, default=0), STEPS[min(len(saved), len(STEPS) - 1)])
        if newest:
            assert after.load(newest)["weight"].tolist() == [newest] * 100
        after.save(newest + 1, {"weight": torch.zeros(1)}, keep=1)
        assert [path.name for path in folder.iterdir()] == [f"step_{newest + 1:05d}"]
    assert code == 0, runs.folder.joinpath("checkpoints.log").read_text()
    assert saved == STEPS and operation > 40


# --- Torn checkpoints


def test_a_torn_checkpoint_is_said_and_the_one_before_it_used(runs: Runs, whole: Path) -> None:
    keep = "trainer.keep_checkpoints=2"
    assert runs.play("torn", keep, kill=("step 5: tool", 1)) == KILLED, runs.log("torn")
    run = runs.folder / "torn"
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_00002", "step_00004"]
    state = run / "checkpoints" / "step_00004" / "state.pt"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    assert runs.play("torn", resume=True) == 0, runs.log("torn")
    said = f"{state.parent} is torn (state.pt is not what was written): the one before it is used\n"
    assert said in runs.log("torn")
    assert f"continuing from {run}/checkpoints/step_00002\n" in runs.log("torn")
    assert_same_run(run, whole)


# --- What is said, and what is refused


def test_a_run_without_a_checkpoint_begins_at_step_0_and_says_so(runs: Runs, whole: Path) -> None:
    none = "trainer.checkpoint_every_steps=0"
    assert runs.play("early", none, kill=("step 4: loss", 2)) == KILLED
    assert runs.play("early", none, resume=True) == 0, runs.log("early")
    run = runs.folder / "early"
    said = f"{run}: no complete checkpoint yet, so the run begins at step 0\n"
    assert runs.log("early").count(said) == 1
    assert metrics(run) == metrics(whole)


def test_a_run_that_is_done_says_so_and_saves_a_model_that_is_missing(runs: Runs) -> None:
    one = "trainer.steps=1"
    assert runs.play("done", one, kill=("rename .model.new", 1)) == KILLED
    model = runs.folder / "done" / "model"
    assert not model.exists()
    assert runs.play("done", one, resume=True) == 0, runs.log("done")
    said = "nothing is left to train: step 1 of 1 is done; raise trainer.steps to continue\n"
    assert said in runs.log("done")
    assert (model / "model.safetensors").exists()


def test_a_run_that_ended_is_not_begun_again_though_its_checkpoints_are_gone(runs: Runs) -> None:
    assert runs.play("over", "trainer.steps=1") == 0, runs.log("over")
    shutil.rmtree(runs.folder / "over" / "checkpoints")
    before = metrics(runs.folder / "over")
    assert runs.play("over", "trainer.steps=2", resume=True) != 0
    assert "holds a run that has ended, and its checkpoints are gone" in runs.log("over")
    assert metrics(runs.folder / "over") == before


def test_what_the_weights_depend_on_must_not_change_and_other_settings_may(runs: Runs) -> None:
    assert runs.play("changed", "trainer.steps=1") == 0, runs.log("changed")
    run = runs.folder / "changed"
    before = contents(run)
    changes = ["model.dtype=bfloat16", "model.lora.rank=4", "trainer.steps=3"]
    assert runs.play("changed", *changes, resume=True) == 1
    log = runs.log("changed")
    assert (
        f"model.dtype: is bfloat16, and the run in {run} has float32; set model.dtype=float32, or "
        "start anew in another folder (output_dir=...)\n"
    ) in log
    assert f"model.lora.rank: is 4, and the run in {run} has none; leave it out, or" in log
    assert "ConfigError" in log and "changed since" not in log
    assert contents(run) == before

    changes = ["trainer.steps=2", "trainer.learning_rate=5e-4", "environment.max_turns=1"]
    changes.append("evaluation.temperature=0.5")
    assert runs.play("changed", *changes, resume=True) == 0, runs.log("changed")
    said = [line for line in runs.log("changed").splitlines() if "changed since" in line]
    assert [line.removeprefix("changed since the run began: ") for line in said] == [
        "environment.max_turns was 2, is 1",
        "trainer.steps was 1, is 2",
        "trainer.learning_rate was 0.001, is 0.0005",
        "evaluation.temperature was not set, is 0.5",
    ]
    assert metrics(run)[-2]["episodes/turns"] == 1
    assert runs.play("changed", *changes, resume=True) == 0
    assert runs.log("changed").count("changed since") == 4, "the folder has the new config"


# --- Without `deterministic`


def test_without_deterministic_rows_seeds_counters_and_optimizer_are_exact(
    runs: Runs, tmp_path: Path
) -> None:
    settings = ["deterministic=false", "seed=3"]  # with which the fifth step has two updates
    notes = {name: tmp_path / name for name in ("uncut", "cut", "again")}
    for folder in notes.values():
        folder.mkdir()
    assert runs.play("uncut", *settings, notes=notes["uncut"]) == 0, runs.log("uncut")
    kill = ("step 5: optimizer step", 1)
    assert runs.play("cut", *settings, kill=kill, notes=notes["cut"]) == KILLED
    assert sorted(path.name for path in notes["cut"].iterdir())[-1] == "step_4.pt"
    assert runs.play("cut", *settings, resume=True, notes=notes["again"]) == 0, runs.log("cut")

    at_kill, at_start = (
        torch.load(path) for path in (notes["cut"] / "step_4.pt", notes["again"] / "start_4.pt")
    )
    assert_equal_states(at_kill, at_start)
    assert at_start["steps"] == 8  # two epochs of each of four batches
    assert sorted(path.name for path in notes["again"].iterdir()) == ["start_4.pt", "step_5.pt"]
    cut, uncut = runs.folder / "cut", runs.folder / "uncut"
    which = ("group", "row", "seed")
    assert episodes(cut, *which) == episodes(uncut, *which)
    assert [line["step"] for line in metrics(cut)] == [line["step"] for line in metrics(uncut)]


# --- The command line


def train(config: Path, output_dir: Path, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gymnast.cli", "train", str(config)]
    with output_dir.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [*command, f"output_dir={output_dir}", "trainer.steps=30", *flags],
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": str(SCRIPT.parent), "OMP_NUM_THREADS": "1"},
        )


@pytest.mark.slow
def test_the_command_line_killed_at_random_moments_ends_with_the_same_run(
    runs: Runs, tmp_path: Path
) -> None:
    """Each time a bit after it has written so many lines of metrics, or while it starts."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(runs.config, whole).wait() == 0, whole.with_suffix(".log").read_text()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for lines in sorted(rng.randrange(lines_of(whole) - 12) for _ in range(5)):
        run = train(runs.config, killed, "--resume")
        while lines_of(killed) < lines and run.poll() is None:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.5))
        run.kill()
        assert run.wait() == KILLED, killed.with_suffix(".log").read_text()
        print(f"killed with {lines_of(killed)} lines of metrics")
    code = train(runs.config, killed, "--resume").wait()
    assert code == 0, killed.with_suffix(".log").read_text()
    assert_same_run(killed, whole)


def lines_of(run: Path) -> int:
    """How many lines of metrics there are, torn ones included."""
    path = run / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0
