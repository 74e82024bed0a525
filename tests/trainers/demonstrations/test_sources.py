"""Where demonstrations come from: solutions that are played."""

from typing import Any, ClassVar

import pytest
from accelerate import Accelerator

from gymnast.envs import Renderer
from gymnast.errors import InfrastructureError
from gymnast.trainers.base.stopping import Stopping
from gymnast.trainers.demonstrations.sources import SolvedRows
from warmup_runs import ROWS, Door, Listed


class Breaks(Door):
    """Whose tool's machine is always broken in one row, and once in another."""

    broken: ClassVar[list[str]] = []

    def setup(self, row: Any) -> None:
        word = row["prompt"]
        if word == "Now." or (word == "Then." and word not in self.broken):
            self.broken.append(word)
            raise InfrastructureError(f"no machine for {word}")


def test_solutions_that_cannot_be_played_now_or_are_too_long_are_left_out(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Breaks.broken.clear()
    source = SolvedRows(
        Accelerator(),
        lambda: Breaks(Renderer(tokenizer), context_length=600),
        Listed([*ROWS, {"prompt": "Go on. " * 200}]),
        seed=0,
        min_reward=1.0,
        stopping=Stopping(),
    )
    assert [found.row["prompt"] for found in source.take(0, 4)] == ["Go.", "Then."]
    assert sorted(Breaks.broken) == ["Now.", "Now.", "Then."]
    assert "a solution broke twice and is left out: no machine for Now." in caplog.text
