"""What test_resume.py kills: a run's own code, and a process that plays runs in forks of itself.

    python killed_runs.py        reads jobs as JSON lines, writes how each one ended

A job is a run (`config`, `overrides`, `resume`), or some checkpoints to save, and where it is
killed (`kill`: the name of a place, or of none, and at which visit; `signals`: by which, or none
for an error; `operation`: before which operation on files). Importing torch takes seconds, so it is
done once; the fork that plays the job is killed by a real signal.
"""

import importlib.util
import json
import os
import pickle
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

import asked_once
from gymnast.envs import Environment, call, tool
from gymnast.trainers import build as run
from gymnast.trainers import losses
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.run_loop import RunLoop
from gymnast.trainers.saving import checkpoints, run_folder
from gymnast.trainers.trainer import Trainer

visits: Counter[str] = Counter()
phase = "no step"  # "step 3", "evaluation 2": what the trainer is at, or was last
KILL: tuple[str, int] = ("nowhere", 0)  # the place, and at which visit
SIGNALS: list[int] = []  # what is sent there; none raises an error instead
LOG = ""  # where the run says that it stops
TOLD = "the run stops and is saved"  # at a first signal
HANDLED_S = 5.0


def visit(place: str) -> None:
    """Be killed here, where the job says so."""
    visits[place] += 1
    if (place, visits[place]) == KILL:
        before = _times_told()
        for number in SIGNALS:
            os.kill(os.getpid(), number)
            _wait_until_told(before)  # two at once would be one, and a late one would miss the run
        if not SIGNALS:
            raise ArithmeticError("made on purpose")


def _times_told() -> int:
    return Path(LOG).read_text().count(TOLD)


def _wait_until_told(before: int) -> None:
    """Wait until the main thread has handled a first signal; at a second one it says nothing."""
    deadline = time.monotonic() + HANDLED_S
    while _times_told() == before and time.monotonic() < deadline:
        time.sleep(0.002)


def visit_in_phase(place: str) -> None:
    """Visit a place of what the trainer is at, such as "step 3: tool"."""
    visit(f"{phase}: {place}")


# --- A run's own code


def calls_when_long(text: str) -> list[dict[str, Any]]:
    """A parser by which even a random model calls a tool."""
    return [{"name": "measure", "arguments": {"text": text}}] if len(text) % 4 else []


class Letters(Environment):
    """The share of small letters in the answer."""

    @tool
    def measure(self, text: str) -> int:
        """Measure a text.

        Args:
            text: To measure.
        """
        visit_in_phase("tool")
        return len(text)

    def reward(self, episode: Any) -> float:
        visit_in_phase("reward")
        text = episode.answer
        return sum(letter in "abcdefghijklmnopqrstuvwxyz" for letter in text) / max(1, len(text))


class Solved(Letters):
    """Has solutions, in which a tool is called."""

    def solve(self, row: Any) -> Any:
        yield call("measure", text=row["prompt"])
        yield row["prompt"].lower()


class Drawing(Letters):
    """Draws from every global generator of the process."""

    def reward(self, episode: Any) -> float:
        drawn = random.random() + float(np.random.normal()) + torch.rand(()).item()
        return super().reward(episode) + drawn / 10


def noisy(
    logprobs: torch.Tensor,
    sampled_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    sequences: torch.Tensor,
) -> losses.TokenLosses:
    """A loss that draws, too."""
    visit_in_phase("loss")
    return losses.clipped(logprobs, sampled_logprobs, advantages * (1 + random.gauss(0, 0.1)))


# --- Places in Gymnast's own code


def before(owner: Any, name: str, place: Callable[..., str]) -> None:
    """Visit a place whenever a function is called."""
    function = getattr(owner, name)

    def visiting(*arguments: Any, **settings: Any) -> Any:
        visit(place(*arguments))
        return function(*arguments, **settings)

    setattr(owner, name, visiting)


def after(owner: Any, name: str, place: Callable[..., str]) -> None:
    """Visit a place whenever a function has returned."""
    function = getattr(owner, name)

    def visiting(*arguments: Any, **settings: Any) -> Any:
        found = function(*arguments, **settings)
        visit(place(*arguments))
        return found

    setattr(owner, name, visiting)


def half_a_state(state: Any, file: BinaryIO) -> None:
    """`torch.save`, with half of the file on the disk at the place "state"."""
    SAVE(state, file)
    if (visits["state"] + 1, "state") == KILL[::-1]:
        file.truncate(file.tell() // 2)
        file.flush()
    visit("state")


def half_a_line(self: run_folder.RunFolder, metrics: Mapping[str, float | None]) -> None:
    """`RunFolder.add_metrics`, with half of the line on the disk at the place "metrics"."""
    if KILL[0] == f"{phase}: metrics":
        text = json.dumps(dict(metrics))
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(text[: len(text) // 2])
    visit_in_phase("metrics")
    ADD_METRICS(self, metrics)


def follow_phases() -> None:
    """Keep `phase` what the trainer is at."""
    train, evaluate = Trainer.train_step, Trainer.evaluate
    warm_up = Trainer.warmup_step

    def in_step(self: Trainer) -> None:
        global phase
        phase = f"step {self.step + 1}"
        train(self)

    def in_warmup_step(self: Trainer) -> None:
        global phase
        phase = f"warm-up {self.warmup.done + 1}"
        warm_up(self)

    def in_evaluation(self: Trainer, rows: Any = None) -> dict[str, float]:
        global phase
        phase = f"evaluation {self.step}"
        return evaluate(self, rows)

    Trainer.train_step, Trainer.evaluate = in_step, in_evaluation  # type: ignore[method-assign]
    Trainer.warmup_step = in_warmup_step  # type: ignore[method-assign]


SAVE, ADD_METRICS = torch.save, run_folder.RunFolder.add_metrics


def mark_places() -> None:
    """Let the functions of Gymnast visit places; what they do stays the same."""
    follow_phases()
    torch.save = half_a_state  # type: ignore[assignment]
    run_folder.RunFolder.add_metrics = half_a_line  # type: ignore[method-assign]
    before(run, "load_model", lambda *_: "loading")
    after(MasterOptimizer, "step", lambda *_: f"{phase}: optimizer step")
    before(RunLoop, "_checkpoint_is_due", lambda *_: f"{phase}: checkpoint")
    before(os, "rename", lambda source, _: f"rename {Path(source).name}")
    before(os, "replace", lambda source, _: f"replace {Path(source).name}")
    before(checkpoints, "remove", lambda path: f"remove {path.name}")
    before(shutil, "rmtree", lambda path, *_: f"rmtree {Path(path).name}")
    after(run_folder.RunFolder, "drop_after", lambda *_: "dropped")


OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def save_checkpoints(job: Mapping[str, Any]) -> None:
    """Save some, tell of each that is saved, and be killed before one of the file operations."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        # Within a folder that is being removed, paths are relative.
        ours = event in ("os.remove", "os.rmdir") or any(folder in str(a) for a in arguments)
        if event in OPERATIONS and ours:
            count += 1
            if count == job["operation"]:
                os.kill(os.getpid(), signal.SIGKILL)

    folder = job["checkpoints"]
    with open(job["told"], "w") as telling:
        sys.addaudithook(hook)
        for step in (2, 4, 4, 6):
            state = {"weight": torch.full((100,), float(step))}
            checkpoints.Checkpoints(folder).save(step, state, keep=1)
            print(step, file=telling, flush=True)


class Notes:
    """Keeps the optimizer's state of every step outside of the run's folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.trainer: Any = None

    def note(self, name: str) -> None:
        SAVE(self.trainer.learner.optimizer.state_dict(), self.folder / name)

    def on_start(self, trainer_info: Mapping[str, Any]) -> None:
        self.note(f"start_{trainer_info['start']}.pt")

    def on_rollouts(self, step: int, done: int, total: int) -> None: ...

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self.note(f"step_{step}.pt")

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Any) -> None: ...

    def on_end(self, summary: Mapping[str, float]) -> None: ...


# --- The process that plays


def play(job: Mapping[str, Any]) -> None:
    """One run, as `gymnast train` does it."""
    global KILL, SIGNALS, LOG
    from gymnast.commands.output import log_to_stderr
    from gymnast.trainers.config.files import load_config

    log_to_stderr()
    KILL, SIGNALS, LOG = tuple(job["kill"]), job["signals"], job["log"]
    if KILL[0] != "nowhere":
        mark_places()
    notes = Notes(job["notes"]) if job.get("notes") else None
    config = load_config(job["config"], job["overrides"])
    trainer = run.build_trainer(config, observer=notes, resume=job["resume"])
    if notes is not None:
        notes.trainer = trainer
    trainer.train(resume=job["resume"])


ANSWERS: asked_once.Answers = {}


def fork(job: Mapping[str, Any]) -> int:
    """Play a job in a fork; returns its exit status, that of a signal being negative.

    What a fork that ends by itself has found out about its model, later ones know.
    """
    answers = Path(f"{job['log']}.answers")
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        if answers.exists():
            ANSWERS.update(pickle.loads(answers.read_bytes()))
            answers.unlink()
        return os.waitstatus_to_exitcode(status)
    code = 1
    try:
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        save_checkpoints(job) if "checkpoints" in job else play(job)
        answers.write_bytes(pickle.dumps(ANSWERS))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Play the jobs of the standard input, one after the other."""
    warnings.simplefilter("error")
    for lazy in (
        "gymnast.cli",
        "gymnast.agents.loading.tiny",
        "transformers.models.qwen3.modeling_qwen3",
        "pandas",
        *filter(importlib.util.find_spec, ["deepspeed"]),  # by accelerate, where it is installed
    ):
        with redirect_stdout(sys.stderr):  # DeepSpeed says something
            importlib.import_module(lazy)  # once, not in every fork
    torch.set_num_threads(1)
    asked_once.ask_once(ANSWERS)
    for line in sys.stdin:
        print(fork(json.loads(line)), flush=True)


if __name__ == "__main__":
    importlib.import_module("killed_runs").serve()  # where configs find it, too
