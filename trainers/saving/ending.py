"""The end of a run, however it ends: what is saved, and what is reported.

all steps are taken   a checkpoint, the adapters, the model
Ctrl-C, SIGTERM       the same, of the last whole step
an error              the same; but nothing after an error during an update, whose weights
belong to no step, nor in several processes, which can no longer agree
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnast.errors import DiskFull
from gymnast.trainers.saving.run_folder import (
    ADAPTERS,
    MODEL,
    RunFolder,
    holds_results,
    save_adapters,
    save_model,
)
from gymnast.trainers.saving.run_state import RunState
from gymnast.visible import visible


@dataclass(frozen=True)
class Ending:
    """Saves the results of a run.

    Attributes:
        state: The state of the run.
        folder: The folder of the run; None saves nothing.
        model: As it is saved.
        tokenizer: The model's.
    """

    state: RunState
    folder: RunFolder | None
    model: Any
    tokenizer: Any

    def save(self, counters: Mapping[str, int]) -> None:
        """Save a checkpoint, the adapters and the model; a collective call.

        Before the first step is taken there is nothing to save. If there is no room for the
        checkpoint, the model is still tried: it is smaller.

        Args:
            counters: As `RunState.save` takes them.

        Raises:
            DiskFull: There is no room for one of them.
        """
        if not (counters["step"] or counters["warmup"]):
            return
        try:
            self.state.save(counters)
        except DiskFull:
            self._save_model()
            raise
        self._save_model()

    def rescue(self, error: Exception, counters: Mapping[str, int]) -> None:
        """After an error, save what can be saved; if that fails too, a note at the error says so.

        Args:
            error: The error that ends the run.
            counters: As `RunState.save` takes them, `step` being the last one that was taken.
        """
        alone = self.state.accelerator.num_processes == 1
        if not (alone and self.state.is_between_steps):
            return
        try:
            self.save(counters)
        except Exception as another:
            if str(another) != str(error):
                error.add_note(visible(f"saving failed too: {another}"))

    def kept(self, continued_by: str) -> str:
        """What is saved of the run, and how to continue it, in one line.

        Args:
            continued_by: The command or the call that continues it.
        """
        if self.folder is None:
            return "the run has no output_dir, so nothing is saved"
        step = self.folder.checkpoints.newest(by_content=False)
        if step is None and not holds_results(self.folder.path):
            return f"nothing of it is kept in {self.folder.path}: start it again as it was started"
        if step is None:
            return f"there is no checkpoint in {self.folder.path}; to start again: {continued_by}"
        kept = [f"checkpoints/{self.folder.checkpoints.path(step).name}"]
        kept += [f"{name}/" for name in (ADAPTERS, MODEL) if (self.folder.path / name).exists()]
        return f"saved in {self.folder.path}: {', '.join(kept)}; to continue: {continued_by}"

    def _save_model(self) -> None:
        if self.folder is not None and self.state.accelerator.is_main_process:
            save_adapters(self.model, self.folder.path / ADAPTERS)
            save_model(self.model, self.tokenizer, self.folder.path / MODEL)
