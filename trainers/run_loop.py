"""The loop of a run: step after step, with evaluations and checkpoints, until all are taken.

    begin    the state to begin with, or to continue from
    run      warm-up, if there is one; then
             step -> evaluation, if due -> checkpoint, if due -> step -> ...; then the end

`Trainer.train_step` is what a step does; `trainers/saving/ending.py` is what the end saves.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from accelerate import Accelerator

from gymnast.errors import CheckpointError, ConfigError
from gymnast.trainers.base.observer import EvaluatedPolicy, Observer
from gymnast.trainers.base.stopping import Stopped, Stopping
from gymnast.trainers.demonstrations.warmup import Warmup
from gymnast.trainers.distributed.processes import together
from gymnast.trainers.learner.learner import Learner
from gymnast.trainers.learner.optimizers.not_finite import ends_run, raise_if_run_ends
from gymnast.trainers.provenance.environment_file import note_start
from gymnast.trainers.reporting.advice.advisor import Advisor
from gymnast.trainers.saving.best import BestPolicy
from gymnast.trainers.saving.disk_space import check_room, estimate_need
from gymnast.trainers.saving.ending import Ending
from gymnast.trainers.saving.run_folder import RunFolder
from gymnast.trainers.saving.run_state import RunState
from gymnast.trainers.saving.settings import SavingSettings
from gymnast.visible import visible_logger

logger = visible_logger(__name__)


class Steps(Protocol):
    """What the loop drives: `gymnast.trainers.Trainer`."""

    step: int
    steps: int
    learner: Learner
    warmup: Warmup
    eval_rows: Sequence[Any] | None
    eval_every_steps: int
    accelerator: Accelerator
    folder: RunFolder | None
    advisor: Advisor
    best: BestPolicy
    observer: Observer | None
    model: Any
    tokenizer: Any

    def train_step(self) -> None:
        """Take the next step, and add one to `step`."""
        ...

    def warmup_step(self) -> None:
        """Take the next step of the warm-up."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Evaluate on the evaluation rows."""
        ...

    def tell(self, event: str, *details: Any) -> None:
        """Tell the observer."""
        ...


class RunLoop:
    """Takes the steps of a run. Every method is a collective call.

    Args:
        trainer: Whose steps they are.
        state: Of the run.
        stopping: Whether it is to stop.
        saving: When checkpoints are saved.

    Attributes:
        state: Of the run.
        has_begun: Whether the run has the state to begin with.
        resumed_by: The command or the call that continues a stopped run.
    """

    def __init__(
        self,
        trainer: Steps,
        state: RunState,
        stopping: Stopping,
        saving: SavingSettings,
    ) -> None:
        self.state = state
        self.resumed_by = "train(resume=True) of a Trainer made like this one"
        self._trainer, self._stopping, self._saving = trainer, stopping, saving
        self._ending = Ending(state, trainer.folder, trainer.model, trainer.tokenizer)
        self.has_begun = False
        self._noted = False
        self._evaluated = (-1, 0)  # after which steps, of the run and its warm-up, was the last one

    def begin(self, *, resume: bool) -> None:
        """Begin a run, continue it, or resume it.

        Raises:
            ConfigError: All steps are taken, or the folder does not go with the run.
            CheckpointError: There is no state to continue from.
        """
        trainer = self._trainer
        if self.has_begun and not resume:
            self._check_goes_on()
            return
        counters = self.state.begin(resume=resume)
        trainer.step = counters["step"]
        trainer.warmup.begin(counters.get("warmup", 0), over=trainer.step > 0)
        self.state.mark()  # the optimizer may have begun anew
        self._evaluated = (counters["evaluated"], counters.get("evaluated_warmup", 0))
        self._check_room()
        self.has_begun = True
        if resume and trainer.step >= trainer.steps:
            logger.info(
                "nothing is left to train: step %d of %d is done; raise trainer.steps to continue",
                *(trainer.step, trainer.steps),
            )

    def run(self, memory: str = "") -> dict[str, Any]:
        """Take the steps that are left, evaluate, and save; returns a summary.

        Args:
            memory: What a step takes at most, in words; the observer is told.
        """
        trainer = self._trainer
        self.note_start()
        started, cpu_started = time.perf_counter(), time.process_time()
        summary: dict[str, Any] = {"train/seconds": 0.0, "train/cpu_seconds": 0.0}
        info = {"steps": trainer.steps, "start": trainer.step, "memory": memory}
        info |= {"warmup_steps": trainer.warmup.steps, "warmup_start": trainer.warmup.done}
        if trainer.step and trainer.folder is not None and trainer.accelerator.is_main_process:
            info["earlier"] = trainer.folder.metrics()
        trainer.tell("on_start", info)
        stopped_by = "steps"
        try:
            self._take_steps(summary)
        except Stopped:
            stopped_by = self._stopping.by or "another process"
        except Exception as error:
            self._ending.rescue(error, self._counters)
            error.add_note(self.kept())
            raise
        self._ending.save(self._counters)
        summary["seconds"] = time.perf_counter() - started
        summary["cpu_seconds"] = time.process_time() - cpu_started
        folder = None if trainer.folder is None else str(trainer.folder.path)
        summary |= {"steps": trainer.step, "folder": folder, "stopped_by": stopped_by}
        summary["advice"] = trainer.advisor.standing
        summary |= trainer.best.summary
        trainer.tell("on_end", summary)
        return summary

    def note_start(self) -> None:
        """Say in the run's folder, once, with what this process makes it."""
        trainer = self._trainer
        if self._noted or trainer.folder is None:
            return
        folder, processes = trainer.folder.path, trainer.accelerator.num_processes
        note = partial(note_start, folder, trainer.model, processes=processes)
        together(trainer.accelerator, note if trainer.accelerator.is_main_process else int)
        self._noted = True

    def tell_of_stop(self, stopped_by: str) -> None:
        """Where the run was stopped before its last step, say how to continue it."""
        trainer, warmup = self._trainer, self._trainer.warmup
        if stopped_by == "steps" or not trainer.accelerator.is_main_process:
            return
        place = f"step {trainer.step} of {trainer.steps}"
        if warmup.left:
            place = f"step {warmup.done} of {warmup.steps} of the warm-up"
        logger.warning("stopped by %s after %s; %s", stopped_by, place, self.kept())

    def kept(self) -> str:
        """What is saved of the run, and how to continue it, in one line."""
        return self._ending.kept(self.resumed_by)

    def _take_steps(self, summary: dict[str, Any]) -> None:
        """Take the steps that are left; fills in the summary.

        Raises:
            Stopped: The run is to stop.
        """
        trainer, saved = self._trainer, time.monotonic()
        self._evaluate_if_due(summary)
        while trainer.warmup.left or trainer.step < trainer.steps:
            before, cpu_before = time.perf_counter(), time.process_time()
            if trainer.warmup.left:
                trainer.warmup_step()
            else:
                trainer.train_step()
                if trainer.accelerator.is_main_process:
                    trainer.advisor.tell(trainer.folder, trainer.observer)
            summary["train/seconds"] += time.perf_counter() - before
            summary["train/cpu_seconds"] += time.process_time() - cpu_before
            since_s = self._agreed(time.monotonic() - saved)
            self._evaluate_if_due(summary)
            if self._checkpoint_is_due(since_s):
                self._save_checkpoint()
                saved = time.monotonic()
            raise_if_run_ends(self.state.optimizer, trainer.step)

    def _agreed(self, since_s: float) -> float:
        """How long ago the last checkpoint was, as the first process measures it.

        Raises:
            Stopped: One of them was asked to stop.
        """
        answers = together(self._trainer.accelerator, lambda: (self._stopping.by, since_s))
        if any(stopped_by for stopped_by, _ in answers):
            raise Stopped
        return answers[0][1]

    def _evaluate_if_due(self, summary: dict[str, Any]) -> None:
        """Evaluate before the first step, after the last, and every n-th; also after resuming.

        And when the warm-up is over, so that what it did is seen.
        """
        trainer, every = self._trainer, self._trainer.eval_every_steps
        place = (trainer.step, trainer.warmup.done)
        due = trainer.step in (0, trainer.steps) or (every and trainer.step % every == 0)
        warming = trainer.warmup.left and trainer.warmup.done
        if trainer.eval_rows and due and not warming and self._evaluated < place:
            name = "after" if trainer.step else "after_warmup" if trainer.warmup.done else "before"
            metrics = trainer.evaluate()
            summary[name] = metrics["eval/reward/mean"]
            self._evaluated = place
            evaluated = EvaluatedPolicy(summary[name], *place)
            trainer.best.see(evaluated)
            trainer.advisor.see_evaluation(evaluated, metrics)
            if trainer.accelerator.is_main_process:
                trainer.advisor.tell(trainer.folder, trainer.observer)
            self.state.mark()  # also for a checkpoint of a run that is stopped in its next step

    def _checkpoint_is_due(self, since_s: float) -> bool:
        trainer, every = self._trainer, self._saving.checkpoint_every_steps
        over = trainer.step == trainer.steps  # so that a longer run can continue from it
        if trainer.step == 0:
            over = not trainer.warmup.left  # so that no run has to warm up again
        return (
            over
            or bool(every and (trainer.step or trainer.warmup.done) % every == 0)
            or 0 < self._saving.checkpoint_every_s <= since_s
            or ends_run(self.state.optimizer)
        )

    def _save_checkpoint(self) -> None:
        """Save after the step's evaluation, so that a run that resumes here does not repeat it."""
        self.state.mark()  # an observer may have drawn since
        self.state.save(self._counters)

    @property
    def _counters(self) -> dict[str, int]:
        evaluated, evaluated_warmup = self._evaluated
        done = self._trainer.warmup.done
        own = {"warmup": done, "evaluated_warmup": evaluated_warmup}
        return {"step": self._trainer.step, "evaluated": evaluated, **own}

    def _check_goes_on(self) -> None:
        trainer = self._trainer
        if not self.state.is_between_steps:
            raise CheckpointError(
                f"train: step {trainer.step + 1} was interrupted during its update, so the weights "
                f"belong to no step; continue with {self.resumed_by}"
            )
        if trainer.step >= trainer.steps:
            raise ConfigError(
                f"train: step {trainer.step} of {trainer.steps} is done; raise the trainer's "
                "`steps` to continue, or make a new Trainer to start again"
            )

    def _check_room(self) -> None:
        trainer, folder = self._trainer, self._trainer.folder
        if folder is None:
            return

        def check() -> None:
            reference = trainer.learner.kept_of_reference(warms_up=trainer.warmup.steps > 0)
            need = estimate_need(
                trainer.model,
                self.state.optimizer,
                reference,
                keeps_best=trainer.best.keeps and bool(trainer.eval_rows),
            )
            trainer.best.reserved = need.checkpoint + need.model
            check_room(
                folder.path,
                need,
                keep=self.state.keep,
                checkpoints=folder.checkpoints.count(),
                has_model=folder.has_model,
            )

        together(trainer.accelerator, check if trainer.accelerator.is_main_process else int)
