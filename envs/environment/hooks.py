"""The hooks: what a subclass of `Environment` overrides. Each may be `async def` as well.

Sync hooks and sync tools of an environment run on one thread of its own, so a database connection
that `setup` opens can be used in all of them; async ones run on the caller's event loop. An
exception in a hook stops the run with a `UserCodeError` that carries the row, unless it was the
policy's doing: what `turn_reward`, `reward`, `metrics` and `cleanup` meet in a box that the policy
broke, or as a missing file of it, scores 0 (docs/sandboxes.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gymnast.envs.environment.rows import pick_row
from gymnast.envs.records.episode import Episode, Turn
from gymnast.sandboxes.contract.base import Sandbox


class Hooks:
    """The defaults: the row's prompt begins the episode, and nothing is rewarded.

    A small complete example, with state that belongs to one episode:

        class Counter(Environment):
            def setup(self, row):
                self.count = row["start"]

            @tool
            def increment(self) -> int:
                \"\"\"Add one to the counter.\"\"\"
                self.count += 1
                return self.count

            def reward(self, episode):
                return float(self.count == self.row["goal"])
    """

    rows: Sequence[Mapping[str, Any]] | None

    def prepare_sandbox(self, sandbox: Sandbox) -> None:
        """Put into a fresh box what an episode finds there. Not `async def`.

        Called before `setup`, where the class has a `sandbox_spec`. It runs on any thread.

        Args:
            sandbox: The box; `self.row` is the episode's row.
        """

    def setup(self, row: Mapping[str, Any]) -> Any:
        """Prepare an episode.

        Args:
            row: The row it begins with; also `self.row`.

        Returns:
            The messages the episode begins with, or None for the row's `prompt`.
        """
        return None

    def reward(self, episode: Episode) -> Any:
        """Score a finished episode.

        Returns:
            A finite number, or named ones (`{"format": 0.2, "answer": 0.8}`) whose sum is the
            reward; these are in `info["reward_parts"]` too. Or None, where nothing can be said
            of the episode: it is never trained on, and `info["no_reward"]` is True.
        """
        return 0.0

    def turn_reward(self, turn: Turn) -> Any:
        """Score one turn, after its tools have run; a finite number."""
        return 0.0

    def metrics(self, episode: Episode) -> Any:
        """More numbers about a finished episode, by name, to be averaged and logged."""
        return {}

    def cleanup(self) -> Any:
        """Undo `setup`: called once after every episode, whatever happened in it."""
        return None

    def sample_row(self, rng: np.random.Generator) -> Any:
        """A row for a `reset` that is given none: one of `rows`.

        Raises:
            DataError: There are no rows.
        """
        return pick_row(self.rows, rng, type(self).__name__)
