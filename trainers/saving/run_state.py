"""What a run needs to continue exactly: gathered from all processes, saved, and restored.

    optimizer     float32 master weights, moments, how many updates were taken and skipped
    counters      whole numbers: `step`, and `evaluated`, the step of the last evaluation; `warmup`,
              the steps of the warm-up, and `evaluated_warmup`, likewise
    generators    Python's, NumPy's and torch's global generators, of each process
    parts         what else changes from step to step, by name (`Remembers`)

A state lies between two steps. It is recorded at the end of each (`RunState.mark`), so a step that
is dropped leaves no trace in it. A state in the middle of an update is not saved.

Nothing else is needed: the rows of a step, and the seeds of episodes, environments and dropout, are
derived from the run's seed and the step. The model's weights are the master weights; those that are
not trained come from the model that the config names. Whether a config goes with a saved run is
decided in `trainers/config/resuming.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from accelerate import Accelerator

from gymnast.errors import CheckpointError, ConfigError
from gymnast.trainers.base.formats import newer_metrics
from gymnast.trainers.base.generators import generator_states, restore_generators, seed_generators
from gymnast.trainers.distributed.processes import together
from gymnast.trainers.learner.optimizers.not_finite import checkpoints_kept
from gymnast.trainers.learner.optimizers.optimizer import Optimizer
from gymnast.trainers.saving.run_folder import OVER, RunFolder, holds_results, is_over
from gymnast.visible import visible_logger

T = TypeVar("T")

logger = visible_logger(__name__)


class Remembers(Protocol):
    """A part of a run that changes from step to step, alike in all processes."""

    def state_dict(self) -> dict[str, Any]:
        """What the part needs to continue; a collective call. It is not changed afterwards."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        ...


@dataclass(frozen=True)
class _Mark:
    """The end of a step."""

    updates: tuple[int, int]  # of the optimizer: taken, skipped
    generators: dict[str, Any]  # of this process
    parts: dict[str, dict[str, Any]]


@dataclass
class RunState:
    """The state of a run in this process.

    Every method is a collective call: every process makes it, and the main one writes.

    Attributes:
        accelerator: This process's.
        optimizer: The optimizer of the trained weights.
        folder: The run's, one for all processes; None saves nothing.
        seed: The run's.
        keep: How many checkpoints stay, while no optimisation steps are being skipped.
        parts: What else is saved and restored, by name. A part that a checkpoint lacks begins anew.
    """

    accelerator: Accelerator
    optimizer: Optimizer
    folder: RunFolder | None
    seed: int
    keep: int
    parts: Mapping[str, Remembers] = field(default_factory=dict)
    _mark: _Mark | None = field(default=None, init=False)
    _saved: dict[str, int] | None = field(default=None, init=False)

    def begin(self, *, resume: bool) -> dict[str, int]:
        """Begin a run, or continue from its newest whole checkpoint; returns the counters.

        Metrics and rollouts of later steps are dropped. Without a checkpoint, the run starts over.

        Raises:
            ConfigError: There is no folder to resume from, or there is a run in it already.
            CheckpointError: The folder holds a run that has ended without a checkpoint, or its
                checkpoint is of another model.
        """
        step = self._on_main_process(partial(self._first_step, resume))
        if step is None:
            seed_generators(self.seed, "generators", self.accelerator.process_index)
            counters = {"step": 0, "evaluated": -1, "warmup": 0, "evaluated_warmup": 0}
        else:
            # `together` sends results to all processes; this one stays here.
            states: list[dict[str, Any]] = []
            together(self.accelerator, lambda: states.append(self._restore(step)))
            counters = self._saved = states[0]
        if resume:
            done = counters.get("warmup", 0)
            self._on_main_process(lambda: self._clear_after(step, done))
        self.mark()
        return counters

    def mark(self) -> None:
        """Record that a step ends here, with the states of the generators."""
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        self._mark = _Mark(self._updates, generator_states(), parts)

    @property
    def is_between_steps(self) -> bool:
        """Whether the weights are those at the mark: no update began after it."""
        return self._mark is not None and self._mark.updates == self._updates

    def save(self, counters: Mapping[str, int]) -> None:
        """Write a checkpoint of the mark, unless it is written already; `keep` of them stay.

        Args:
            counters: `step` and `evaluated`, which `begin` returns.

        Raises:
            DiskFull: There is no room for it; what was written before is intact.
        """
        if self.folder is None or counters == self._saved:
            return
        assert self._mark is not None and self.is_between_steps
        generators = self._mark.generators
        state = {
            "optimizer": self.optimizer.state_dict(),  # gathers, where weights are sharded
            "counters": dict(counters),
            "generators": together(self.accelerator, lambda: generators),
            "parts": self._mark.parts,
        }
        write = partial(self.folder.checkpoints.save, counters["step"], state, keep=self._kept())
        self._on_main_process(write)
        self._saved = dict(counters)

    def _on_main_process(self, work: Callable[[], T]) -> T:
        """Do some work in the main process; returns its result in every process."""
        main = self.accelerator.is_main_process
        results: Any = together(self.accelerator, lambda: work() if main else None)
        return results[0]

    def _first_step(self, resume: bool) -> int | None:
        """The step of the checkpoint to continue from; None to begin at step 0."""
        if self.folder is None:
            if resume:
                raise ConfigError("resume: the trainer has no output_dir to resume from")
            return None
        if not resume:
            if holds_results(self.folder.path):
                raise ConfigError(
                    f"output_dir: {self.folder.path} already holds a run; continue it with "
                    "train(resume=True), remove it, or name another folder"
                )
            self.folder.sweep()
            self.folder.begin()
            return None
        if problem := newer_metrics(self.folder.path):
            raise CheckpointError(problem)
        if is_over(self.folder.path):
            raise CheckpointError(f"{self.folder.path} {OVER}")
        self.folder.sweep()
        self.folder.begin()
        step = self.folder.checkpoints.newest()
        if step is None:
            logger.info(
                "%s: no complete checkpoint yet, so the run begins at step 0", self.folder.path
            )
        else:
            logger.info("continuing from %s", self.folder.checkpoints.path(step))
        return step

    def _restore(self, step: int) -> dict[str, int]:
        assert self.folder is not None
        state = self.folder.checkpoints.load(step)
        self.optimizer.load_state_dict(state["optimizer"])
        generators, process = state["generators"], self.accelerator.process_index
        if process < len(generators):
            restore_generators(generators[process])
        else:  # the run had fewer processes
            seed_generators(self.seed, "generators", process, step)
        for name, part_state in state.get("parts", {}).items():
            if name in self.parts:
                self.parts[name].load_state_dict(part_state)
        counters: dict[str, int] = state["counters"]
        return counters

    @property
    def _updates(self) -> tuple[int, int]:
        return self.optimizer.steps, self.optimizer.skipped

    def _kept(self) -> int:
        return checkpoints_kept(self.optimizer, self.keep)

    def _clear_after(self, step: int | None, warmup_steps: int) -> None:
        """Remove what will be written again, and what a killed process failed to remove."""
        assert self.folder is not None
        self.folder.drop_after(-1 if step is None else step, warmup_steps)
        if step is not None:
            self.folder.checkpoints.prune(step, keep=self._kept())
