"""Arithmetic with rows of which half are hopeless: they pay nothing, whatever the policy does.

gymnast train examples/arithmetic.yaml environment.id=benchmarks/tasks/hopeless.py:HalfHopeless
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gymnast.envs import Episode
from gymnast.envs.builtin.arithmetic import Arithmetic


class HalfHopeless(Arithmetic):
    """Arithmetic, except that a row in whose column `hopeless` is true has reward 0."""

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A question of Arithmetic, hopeless or not with equal chances."""
        return {**super().sample_row(rng), "hopeless": bool(rng.integers(2))}

    def solve(self, row: Mapping[str, Any]) -> list[Any] | None:
        """Arithmetic's; a hopeless row has none."""
        return None if row.get("hopeless") else super().solve(row)

    def reward(self, episode: Episode) -> Any:
        """Arithmetic's, unless the row is hopeless."""
        return 0.0 if self.row.get("hopeless") else super().reward(episode)
