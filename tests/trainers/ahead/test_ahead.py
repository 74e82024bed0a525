"""Runs that play while they train: with a copy of the model on the CPU, and tools that wait."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from gymnast.trainers import load_rollouts, make_algorithm
from gymnast.trainers.data.rows import RowSource
from runs_ahead import ROWS, SAMPLERS, Keeps, make_trainer


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gymnast-ahead"]


@pytest.mark.parametrize("agent", SAMPLERS)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_steps_are_played_while_others_are_learned_from(most: int, agent: Any) -> None:
    kept = Keeps()
    settings = {"max_staleness": most, "steps": 6, "eval_rows": ROWS[:2]}
    make_trainer(agent=agent, observer=kept, **settings).train()
    assert kept.sizes == [[4, 4, 4]] * 6
    staleness = [metrics["staleness/max"] for metrics in kept.metrics]
    assert staleness[0] == 0 and max(staleness) == most  # the rows of the first steps begin at once
    rows = sorted(row for rows in kept.rows for row in rows)
    assert rows == list(range(18))  # none is lost, and none comes twice
    assert [m["staleness/groups_under_way"] for m in kept.metrics] == [
        3 * min(most, left) for left in range(5, -1, -1)
    ]
    assert kept.evaluated == [{0}, {6}]
    assert threads() == []


def test_ratios_compare_with_the_trainer_before_the_update_and_weights_with_the_engine() -> None:
    kept = Keeps()
    trainer = make_trainer(observer=kept)
    trainer.train()
    for metrics in kept.metrics:
        assert metrics["ratio/min"] == metrics["ratio/max"] == 1  # one optimisation step
        stale = metrics["staleness/max"] > 0
        assert (metrics["engine/logprob_difference"] > 1e-3) == stale
        assert "engine/capped" in metrics
    importance = trainer.learner.algorithm.importance
    assert importance is not None and (importance.level, importance.cap) == ("token", 2.0)


def test_what_the_user_sets_of_importance_stays() -> None:
    for given in (
        make_algorithm("grpo", importance_cap=5.0, importance_level="sequence"),
        make_algorithm("cispo"),
    ):
        assert make_trainer(algorithm=given).learner.algorithm == given
    assert make_trainer(max_staleness=0).learner.algorithm.importance is None


# --- Slow episodes


class Gated(gymnasium.Env[Any, Any]):
    """Two turns; between them, the first row that asks for it waits until the gate is open."""

    gate = threading.Event()
    made: ClassVar[list["Gated"]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.turn = options["row"], 0
        return np.arange(1, 9), {"stop_ids": [2]}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        if self.row["holds"] and self.turn == 1:
            self.gate.wait(30)
        reward = float((np.asarray(action) % 2).mean())
        return np.arange(5, 8), reward, self.turn == 2, False, {"stop_ids": [2]}

    def close(self) -> None:
        self.closed = True


class InOrder(RowSource):
    """Rows of which the first one waits."""

    def row(self, position: int) -> Mapping[str, Any]:
        return {"position": position, "holds": position == 0}


class Opens(Keeps):
    """Opens the gate after a step."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        super().on_step(step, metrics, groups)
        if step == self.after:
            Gated.gate.set()


@pytest.fixture
def gate() -> Iterator[None]:
    Gated.gate.clear()
    Gated.made.clear()
    yield
    Gated.gate.set()


def train_gated(after: int, **settings: Any) -> Opens:
    kept = Opens(after)
    make_trainer(environment=lambda: Gated(), rows=InOrder(), observer=kept, **settings).train()
    return kept


@pytest.mark.usefixtures("gate")
@pytest.mark.parametrize("agent", SAMPLERS)
def test_training_waits_for_no_slow_episode_and_drops_what_outgrows_the_bound(agent: Any) -> None:
    kept = train_gated(after=5, steps=6, max_staleness=2, agent=agent)
    assert kept.sizes[0] == [4, 4, 4] and 0 not in kept.rows[0]  # which waits in its first turn
    dropped = [metrics["episodes/left_out/stale"] for metrics in kept.metrics]
    assert dropped == [0, 0, 0, 4, 0, 0]  # its tokens are of version 0; step 4 trains version 3
    assert kept.rows[3][0] == 0 and kept.sizes[3] == [0, 4, 4, 4]
    assert all(sorted(sizes)[-3:] == [4, 4, 4] for sizes in kept.sizes)  # nothing is short
    assert all(metrics["staleness/max"] <= 2 for metrics in kept.metrics)
    assert sorted(row for rows in kept.rows for row in rows) == list(range(19))


@pytest.mark.usefixtures("gate")
def test_an_environment_whose_episode_was_dropped_is_closed_while_others_are_played() -> None:
    class Looks(Opens):
        def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
            if step == 6:
                closed.append(sum(env.closed for env in Gated.made))
            super().on_step(step, metrics, groups)

    closed: list[int] = []
    kept = Looks(after=4)
    trainer = make_trainer(environment=lambda: Gated(), rows=InOrder(), observer=kept, steps=6)
    trainer.train()
    assert closed == [1 + 4]  # one was only looked at
    assert all(env.closed for env in Gated.made)


@pytest.mark.usefixtures("gate")
@pytest.mark.parametrize("agent", SAMPLERS)
def test_an_episode_that_goes_on_teaches_by_its_newer_tokens_alone(
    tmp_path: Path, agent: Any
) -> None:
    settings = {"on_stale": "continue", "output_dir": tmp_path / "run", "agent": agent}
    kept = train_gated(after=3, steps=7, **settings)
    (step,) = [number for number, rows in enumerate(kept.rows, start=1) if 0 in rows]
    assert step in (4, 5, 6)
    metrics = kept.metrics[step - 1]
    assert metrics["staleness/tokens_left_out"] > 0 == metrics["episodes/left_out/stale"]
    assert all(metrics["staleness/max"] <= 1 for metrics in kept.metrics)
    for saved in load_rollouts(tmp_path / "run", step=step):
        versions = {span.version for span in saved.trajectory.versions}
        assert len(saved.trajectory.turns) == 2 and saved.advantages is not None
        if 0 in versions:  # what was played is kept whole, and its older tokens have no advantage
            start, end = saved.trajectory.turns[0]
            assert max(versions) >= step - 2
            assert not any(saved.advantages[start:end])
            assert all(saved.trajectory.action_mask[start:end])


@pytest.mark.usefixtures("gate")
def test_a_deadline_holds_for_each_group(caplog: Any) -> None:
    kept = train_gated(after=3, steps=3, rollout_deadline_s=5.0, max_staleness=3)
    left_out = [metrics["episodes/left_out/deadline"] for metrics in kept.metrics]
    assert sum(left_out) == 4 and 0 in {row for rows in kept.rows for row in rows}
