"""What a run needs to go on exactly: put together from all processes, saved, and restored.

    optimizer     float32 master weights, moments, how many updates were taken and skipped
    counters      whole numbers: `step`, and what else the trainer counts
    generators    Python's, NumPy's and torch's global generators, of each process

Nothing else is needed: which rows a step has, and the seeds of episodes, environments and dropout,
are derived from the run's seed and the step. The model's weights are the master weights; those that
are not trained come from the model that the config names.

Left out: how a checkpoint is written and found (`trainers/checkpoints.py`), and whether a config
goes with it (`trainers/resuming.py`).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from accelerate import Accelerator

from gymnast.errors import CheckpointError, ConfigError
from gymnast.trainers.divergence import checkpoints_kept
from gymnast.trainers.generators import generator_states, restore_generators, seed_generators
from gymnast.trainers.optimizer import Optimizer
from gymnast.trainers.processes import together
from gymnast.trainers.run_folder import OVER, RunFolder, is_begun, is_over

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunState:
    """The state of a run in this process.

    Every method is a collective call: every process makes it, and the main one writes.

    Attributes:
        accelerator: Of this process.
        optimizer: Over the trained weights.
        folder: Of the run, one for all processes; None saves nothing.
        seed: Of the run.
        keep: How many checkpoints stay, while no optimisation steps are being skipped.
    """

    accelerator: Accelerator
    optimizer: Optimizer
    folder: RunFolder | None
    seed: int
    keep: int

    def begin(self, *, resume: bool) -> dict[str, int]:
        """Begin a run, or go on from its newest whole checkpoint; returns the counters.

        Metrics and rollouts of later steps are dropped. Where there is no checkpoint yet, the run
        begins again.

        Raises:
            ConfigError: There is no folder to resume from, or there is a run in it already.
            CheckpointError: The folder holds no run, or one that has ended without a checkpoint, or
                its checkpoint is of another model.
        """
        step = self._on_main_process(partial(self._first_step, resume))
        if step is None:
            seed_generators(self.seed, "generators", self.accelerator.process_index)
            counters = {"step": 0}
        else:
            # Not what it gives, which would be sent to all.
            states: list[dict[str, Any]] = []
            together(self.accelerator, lambda: states.append(self._restore(step)))
            counters = states[0]
        if resume:
            self._on_main_process(lambda: self._clear_after(step))
        return counters

    def save(self, counters: Mapping[str, int]) -> None:
        """Write a checkpoint; older ones than the newest `keep` are removed.

        Args:
            counters: `step`, and what else is to be given back by `begin`.
        """
        if self.folder is None:
            return
        state = {
            "optimizer": self.optimizer.state_dict(),  # gathers, where weights are sharded
            "counters": dict(counters),
            "generators": together(self.accelerator, generator_states),
        }
        write = partial(self.folder.checkpoints.save, counters["step"], state, keep=self._kept())
        self._on_main_process(write)

    def _on_main_process(self, work: Callable[[], T]) -> T:
        """Do some work there; returns its result in every process."""
        main = self.accelerator.is_main_process
        found: Any = together(self.accelerator, lambda: work() if main else None)
        return found[0]

    def _first_step(self, resume: bool) -> int | None:
        """That of the checkpoint to go on from; None begins at step 0."""
        if self.folder is None:
            if resume:
                raise ConfigError("resume: the trainer has no output_dir to resume from")
            return None
        if not resume:
            if self.folder.checkpoints.any():
                raise ConfigError(
                    f"output_dir: {self.folder.path} holds checkpoints of a run already; go on "
                    "with it by train(resume=True), remove it, or name another folder"
                )
            self.folder.sweep()
            self.folder.begin()
            return None
        if not is_begun(self.folder.path):
            raise CheckpointError(
                f"{self.folder.path} holds no run to resume: there is neither config.yaml nor "
                "metrics.jsonl. Start without --resume, or name the folder of a run."
            )
        if is_over(self.folder.path):
            raise CheckpointError(f"{self.folder.path} {OVER}")
        self.folder.sweep()
        step = self.folder.checkpoints.newest()
        if step is None:
            logger.info(
                "%s: no complete checkpoint yet, so the run begins at step 0", self.folder.path
            )
        else:
            logger.info("going on from %s", self.folder.checkpoints.path(step))
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
        counters: dict[str, int] = state["counters"]
        return counters

    def _kept(self) -> int:
        return checkpoints_kept(self.optimizer, self.keep)

    def _clear_after(self, step: int | None) -> None:
        """Remove what is going to be written again, and what a killed process did not get to."""
        assert self.folder is not None
        self.folder.drop_after(-1 if step is None else step)
        if step is not None:
            self.folder.checkpoints.prune(step, keep=self._kept())
