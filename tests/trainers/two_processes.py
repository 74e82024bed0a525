"""What test_processes.py runs in two real processes: one function a scenario.

    python two_processes.py FOLDER

Each process writes what each of its scenarios found to FOLDER/<process>.json.
"""

import gc
import hashlib
import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

import asked_once
from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.envs import Environment
from gymnast.errors import GymnastError, InfrastructureError
from gymnast.trainers import Algorithm, Kl, Teacher, Trainer, losses, make_algorithm
from gymnast.trainers.algorithms.advantages import ESTIMATORS
from gymnast.trainers.algorithms.losses import LOSSES, TokenLosses
from gymnast.trainers.distributed.processes import together
from gymnast.trainers.distributed.sharding import whole
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.trainers.learner.policy.shares import largest_over_processes
from gymnast.types import Sampling
from sampled_groups import bfloat16_model, short_groups

warnings.simplefilter("error")
torch.set_num_threads(1)

PROCESS = int(os.environ.get("RANK", "0"))
ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.", "Then.", "Well.")]
TOKENIZER = tiny_tokenizer()
FOUR_STEPS: dict[str, Any] = {
    "steps": 4,
    "deterministic": True,
    "checkpoint_every_steps": 2,
    "eval_rows": ROWS[:3],
    "warmup_steps": 3,
    "weight_decay": 0.01,
}
TWO_STEPS: dict[str, Any] = {"deterministic": True, "checkpoint_every_steps": 1}
Found = dict[str, Any]


class SmallLetters(Environment):
    """The share of small letters in the answer."""

    def reward(self, episode: Any) -> float:
        text = episode.answer
        return sum(letter in "abcdefghijklmnopqrstuvwxyz" for letter in text) / max(1, len(text))


class Solved(SmallLetters):
    """All rows but one have a solution, of different lengths."""

    def solve(self, row: Any) -> Any:
        return None if row["prompt"] == "Go." else [row["prompt"].lower().strip(".") * 3]


WARMED: dict[str, Any] = {
    "environment": Solved,
    "warmup": {"demonstrations": "solve", "steps": 3, "rows_per_step": 2, "learning_rate": 3e-3},
    "eval_rows": ROWS[:3],
    "tokens_per_microbatch": 100,
}


class SomeHopeless(SmallLetters):
    """Two of the five rows never pay."""

    def reward(self, episode: Any) -> float:
        return 0.0 if self.row["prompt"] in ("Go.", "Now.") else super().reward(episode)


class LostInOne(SmallLetters):
    """Nothing works in the second process."""

    def setup(self, row: Any) -> None:
        if PROCESS == 1:
            raise InfrastructureError("no sandbox")


class Lost(SmallLetters):
    """Nothing works anywhere."""

    def setup(self, row: Any) -> None:
        raise InfrastructureError("no sandbox")


class TypoInOne(SmallLetters):
    """The second process has another version of the user's code."""

    def reward(self, episode: Any) -> float:
        if PROCESS == 1:
            raise KeyError("anwser")
        return super().reward(episode)


class InterruptedInOne(SmallLetters):
    """The second process gets Ctrl-C amid its second step, where it plays one row of three."""

    rewards = 0

    def reward(self, episode: Any) -> float:
        type(self).rewards += 1
        if PROCESS == 1 and type(self).rewards == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return super().reward(episode)


class Uneven(gymnasium.Env[Any, Any]):
    """An episode has one turn in the first process; in the second three, and each takes time."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 1 + 2 * PROCESS
        return np.arange(1, 9), {"stop_ids": [2]}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.05 * PROCESS)
        self._left -= 1
        reward = float((np.asarray(action) % 2).mean())
        return np.arange(5, 8), reward, self._left == 0, False, {"stop_ids": [2]}


class Keeps:
    """Keeps the metrics of steps and the sizes of their groups."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []
        self.sizes: list[list[int]] = []

    def on_start(self, trainer_info: Mapping[str, Any]) -> None: ...

    def on_rollouts(self, step: int, done: int, total: int) -> None: ...

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self.steps.append(dict(metrics))
        self.sizes.append([len(group) for group in groups])

    def on_evaluation(self, step: int, metrics: Mapping[str, float], groups: Any) -> None: ...

    def on_end(self, summary: Mapping[str, float]) -> None: ...


def make_trainer(**settings: Any) -> Trainer:
    model = settings.pop("model", None) or tiny_model()
    environment = settings.pop("environment", SmallLetters)
    small: dict[str, Any] = {
        "sampling": Sampling(max_new_tokens=8),
        "group_size": 4,
        "rows_per_step": 3,
        "steps": 2,
        "learning_rate": 1e-3,
    }
    return Trainer(model, TOKENIZER, environment, ROWS, **(small | settings))


def train(**settings: Any) -> tuple[Trainer, Found]:
    """Train; returns the trainer and what a test wants to see of it."""
    observer = Keeps()
    trainer = make_trainer(observer=observer, **settings)
    trainer.train()
    return trainer, {
        "steps": observer.steps,
        "sizes": observer.sizes,
        "weights": fingerprint(trainer.model),
    }


def fingerprint(model: Any) -> str:
    """Equal for models whose weights are equal bit for bit."""
    digest = hashlib.blake2b()
    for weight in model.parameters():
        digest.update(weight.detach().float().numpy().tobytes())
    return digest.hexdigest()


def error_of(**settings: Any) -> Found:
    try:
        train(**settings)
    except GymnastError as error:
        cause = error.__cause__
        return {"error": type(error).__name__, "message": str(error), "cause": repr(cause)}
    return {"error": None}


@contextmanager
def fsdp2() -> Iterator[None]:
    """What `accelerate launch` sets where its config has distributed_type: FSDP."""
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    try:
        yield
    finally:
        del os.environ["ACCELERATE_USE_FSDP"]


# --- Scenarios


def plain(folder: Path) -> Found:
    """The same settings as `one_process` of the tests."""
    return train(output_dir=folder / "plain", steps=3, eval_rows=ROWS[:3])[1]


def lost_in_one(folder: Path) -> Found:
    return train(environment=LostInOne)[1]


def lost(folder: Path) -> Found:
    return error_of(environment=Lost)


def typo_in_one(folder: Path) -> Found:
    return error_of(environment=TypoInOne)


def typos_within_the_limit(folder: Path) -> Found:
    """One row of three is the second process's: four episodes fail."""
    return train(environment=TypoInOne, max_failed_episodes=4, steps=1)[1]


def fewer_rows_than_processes(folder: Path) -> Found:
    return train(rows_per_step=1)[1]


def warmed(folder: Path) -> Found:
    """A warm-up, whose end is the reference of what follows, and demonstrations beside RL."""
    algorithm = make_algorithm("grpo", kl=Kl(0.1), demonstration_weight=0.5)
    return train(output_dir=folder / "warmed", algorithm=algorithm, **WARMED)[1]


def replaced(folder: Path) -> Found:
    """Dynamic sampling, in which each process wants one group a step."""
    settings: dict[str, Any] = {"rows_per_step": 2, "dynamic_sampling": {"most_rows": 8}}
    trainer, found = train(environment=SomeHopeless, steps=4, **settings)
    return found | {"rows": trainer.loop.state.parts["rows"].state_dict()}


def uneven(folder: Path) -> Found:
    return train(environment=lambda: Uneven())[1]


def estimators_see_all(folder: Path) -> Found:
    seen: list[int] = []

    def counting(batch: Any) -> list[torch.Tensor]:
        seen.append(len(batch.rewards))
        return ESTIMATORS["grpo"](batch)

    train(algorithm=counting, steps=1)
    return {"seen": seen}


def penalised(folder: Path) -> Found:
    """A divergence in the reward, over several epochs and an odd number of micro-batches."""
    algorithm = make_algorithm(
        "reinforce_pp", kl=Kl(0.1, place="reward"), epochs=2, importance_cap=2.0
    )
    # Every trajectory is a micro-batch of its own.
    return train(algorithm=algorithm, tokens_per_microbatch=1, rows_per_step=1, group_size=3)[1]


class Hinted(SmallLetters):
    """Only a teacher is told what is wanted."""

    def hint(self, row: Any) -> Any:
        return [{"role": "user", "content": "Write small letters."}]


def taught(folder: Path) -> Found:
    """Teachers of both kinds beside a reference that is refreshed; the second with FSDP2."""
    kl = Kl(0.1, refresh_every_steps=1)
    other = Teacher(tiny_model(seed=1), estimator="exact", divergence="jsd")
    several = "WORLD_SIZE" in os.environ
    found: Found = {}
    for teacher, divided in ((Teacher("policy"), False), (other, True)):
        algorithm = make_algorithm("reinforce_pp", teacher=teacher, kl=kl, epochs=2)
        with fsdp2() if divided and several else nullcontext():
            found[teacher.estimator] = train(
                environment=Hinted, algorithm=algorithm, tokens_per_microbatch=150, steps=2
            )[1]
    return found


def exchange(folder: Path) -> Found:
    """An error that is not Gymnast's, and a result that cannot be sent."""
    accelerator, messages = Accelerator(cpu=True), []

    def breaks() -> int:
        if PROCESS == 1:
            raise ZeroDivisionError("by nought")
        return 1

    def unsendable() -> Any:
        return (lambda: 1) if PROCESS == 1 else 1

    for work in (breaks, unsendable):
        try:
            together(accelerator, work)
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    return {"messages": messages, "results": together(accelerator, lambda: PROCESS)}


def broken_in_one(step_is_broken: Callable[[int], bool]) -> Algorithm:
    """The second process alone has a loss that is no number, in some steps."""
    calls = count()

    def loss(*arguments: Any) -> TokenLosses:
        found = LOSSES["clipped"](*arguments)
        broken = PROCESS == 1 and step_is_broken(next(calls))
        return replace(found, losses=found.losses * float("nan")) if broken else found

    return replace(make_algorithm("rloo"), loss=loss)


def skipped_in_one(folder: Path) -> Found:
    """The second of three steps; every process has one micro-batch a step."""
    algorithm = broken_in_one(lambda step: step == 1)
    return train(algorithm=algorithm, steps=3, rows_per_step=2)[1]


def diverged_in_one(folder: Path) -> Found:
    output_dir = folder / "diverged_in_one"
    found = error_of(
        algorithm=broken_in_one(lambda step: True),
        steps=12,
        rows_per_step=2,
        group_size=2,
        output_dir=output_dir,
    )
    Accelerator(cpu=True).wait_for_everyone()  # the main process has saved the checkpoint
    return found | {"saved": sorted(path.name for path in output_dir.glob("checkpoints/*"))}


def largest(folder: Path) -> Found:
    accelerator = Accelerator(cpu=True)
    values = [float(PROCESS), -float(PROCESS), 2.0]
    broken = float("nan") if PROCESS == 1 else 5.0
    found = largest_over_processes(accelerator, [*values, broken])
    return {"found": found[:3], "broken": str(found[3])}


class Kept(GeneralTracker):  # type: ignore[misc]
    """A tracker of one's own."""

    name = "kept"
    requires_logging_directory = False
    tracker = None

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int | None] = []

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.steps.append(step)


class CannotStart(Kept):
    """Its server is gone."""

    def start(self) -> None:
        raise ConnectionError("no server")


def tracked(folder: Path) -> Found:
    kept = Kept()
    train(trackers=[kept])
    return {"steps": kept.steps, **error_of(trackers=[CannotStart()])}


def interrupted_in_one(folder: Path) -> Found:
    """It is time for a checkpoint after every step, too."""
    output_dir = folder / "interrupted_in_one"
    environment, every = InterruptedInOne, {"checkpoint_every_s": 1e-6, "keep_checkpoints": 9}
    trainer = make_trainer(environment=environment, steps=3, output_dir=output_dir, **every)
    summary = trainer.train()
    saved = sorted(path.name for path in output_dir.glob("checkpoints/*"))
    again = trainer.train()
    return {
        "stopped_by": summary["stopped_by"],
        "saved": saved,
        "again": again["steps"],
        "weights": fingerprint(trainer.model),
    }


class Stopped(Exception):
    """Takes the place of a kill, which the other scenarios would not outlive."""


def drawing(stop_at_step: int) -> Algorithm:
    """A loss that draws from the global generators, which differ between the processes."""
    calls: list[float] = []

    def loss(*given: Any) -> losses.TokenLosses:
        calls.append(random.gauss(1, 0.1) + float(np.random.normal(0, 0.1)))
        if len(calls) == 2 * stop_at_step:  # two epochs of one micro-batch
            raise Stopped
        logprobs, before, advantages, _ = given
        return losses.clipped(logprobs, before, advantages * calls[-1])

    return make_algorithm("grpo", loss=loss, epochs=2)


def resumed(folder: Path) -> Found:
    """A run that stops amid step 4 and is resumed, beside one that is not stopped."""

    def make(name: str, stop_at_step: int = 0) -> Trainer:
        random.seed(0)  # neither run begins where the other one left the generators
        algorithm = drawing(stop_at_step)
        return make_trainer(output_dir=folder / name, algorithm=algorithm, **FOUR_STEPS)

    whole = make("whole")
    whole.train()
    stopped = make("cut", stop_at_step=4)
    with suppress(Stopped):
        stopped.train()
    again = make("cut")
    again.train(resume=True)
    return {
        "stopped_after": stopped.step,
        "whole": fingerprint(whole.model),
        "resumed": fingerprint(again.model),
    }


def sharded(folder: Path) -> Found:
    """FSDP2: the engine's copy, a part of the weights here, checkpoints, the saved model."""
    with fsdp2():
        trainer, found = train(output_dir=folder / "sharded", steps=3, eval_rows=ROWS[:3])
        whole, _ = train(output_dir=folder / "sharded_whole", **TWO_STEPS)
        make_trainer(output_dir=folder / "sharded_cut", **(TWO_STEPS | {"steps": 1})).train()
        again = make_trainer(output_dir=folder / "sharded_cut", **TWO_STEPS)
        again.train(resume=True)
    weights = [
        weight for weight in trainer.learner.policy.parameters() if isinstance(weight, DTensor)
    ]
    local = sum(weight.to_local().numel() for weight in weights)
    found["share"] = local / sum(weight.numel() for weight in trainer.model.parameters())
    found["whole"], found["resumed"] = fingerprint(whole.model), fingerprint(again.model)
    return found


def sharded_adapters(folder: Path) -> Found:
    """FSDP2 with LoRA in bfloat16, whose master weights are float32."""

    def run(name: str) -> Found:
        model, _ = load_model("tiny:", dtype="bfloat16", lora={"rank": 4}, tokenizer=TOKENIZER)
        before = fingerprint(model)
        algorithm = make_algorithm("grpo", minibatches=2)  # one of them passed through twice
        trainer, found = train(model=model, output_dir=folder / name, steps=1, algorithm=algorithm)
        optimizer = trainer.learner.optimizer
        assert isinstance(optimizer, MasterOptimizer)
        names = {type(master).__name__ for master in optimizer.master}
        dtypes = {str(master.dtype) for master in optimizer.master}
        return found | {"before": before, "masters": sorted(names | dtypes)}

    with fsdp2():
        found = run("sharded_adapters")
    return found | {"unsharded": run("adapters")}


def many_micro_batches(folder: Path) -> Found:
    """16 a process in bfloat16; the gradient is that of one process (tests/.../gradient_sums)."""

    def run(name: str) -> None:
        algorithm = make_algorithm("dr_grpo", loss="reinforce")
        trainer = make_trainer(
            model=bfloat16_model(), algorithm=algorithm, tokens_per_microbatch=1, max_grad_norm=1e9
        )
        kept: list[torch.Tensor] = []
        step = MasterOptimizer.step

        def keeping(optimizer: MasterOptimizer, *arguments: Any) -> None:
            gradients = (master.grad for master in optimizer.master if master.grad is not None)
            kept.extend(whole(gradient).flatten() for gradient in gradients)
            step(optimizer, *arguments)

        with patch.object(MasterOptimizer, "step", keeping), trainer.learner.joined():
            trainer.learner.update(short_groups()[:16], 0)
        torch.save(torch.cat(kept), folder / f"{name}_{PROCESS}.pt")

    run("replicated")
    with fsdp2():
        run("sharded")
    return {}


def evaluated(folder: Path) -> Found:
    """An evaluation with tags and a further environment, of which one row falls to process 1."""
    rows = [row | {"half": number % 2} for number, row in enumerate(ROWS)]
    metrics = make_trainer(
        eval_rows=rows,
        eval_group_size=2,
        eval_pass_reward=0.2,
        eval_by=["half"],
        eval_environments={"other": (SmallLetters, rows[:2])},
    ).evaluate()
    return {name: value for name, value in metrics.items() if "time/" not in name}


def let_go(folder: Path) -> Found:
    """What holds the threads that sum gradients, after a run and after one ended by an error."""

    def left() -> int:
        gc.collect()
        return sum(type(each) is DDP and hasattr(each, "reducer") for each in gc.get_objects())

    def breaks(*_: Any) -> TokenLosses:
        raise ArithmeticError("made on purpose")

    train(steps=1)
    after = left()
    try:
        train(algorithm=replace(make_algorithm("grpo"), loss=breaks), steps=1)
    except ArithmeticError as error:  # whose traceback holds the rest
        return {"after": after, "after_an_error": left(), "error": str(error)}
    return {}


SCENARIOS = [
    let_go,
    plain,
    evaluated,
    lost_in_one,
    lost,
    typo_in_one,
    typos_within_the_limit,
    fewer_rows_than_processes,
    warmed,
    replaced,
    uneven,
    estimators_see_all,
    penalised,
    taught,
    exchange,
    skipped_in_one,
    diverged_in_one,
    largest,
    tracked,
    interrupted_in_one,
    resumed,
    sharded,
    sharded_adapters,
    many_micro_batches,
]


def run_scenarios(scenarios: Sequence[Callable[[Path], Found]], folder: Path) -> None:
    """Run them in the order given, and write what this process found."""
    found = {}
    asked_once.ask_once({})
    for scenario in scenarios:
        started = time.perf_counter()
        found[scenario.__name__] = scenario(folder)
        print(PROCESS, scenario.__name__, round(time.perf_counter() - started, 1), flush=True)
        (folder / f"{PROCESS}.json").write_text(json.dumps(found))
    Accelerator(cpu=True).end_training()


if __name__ == "__main__":
    run_scenarios(SCENARIOS, Path(sys.argv[1]))
