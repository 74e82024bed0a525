"""A run whose rows are played ahead on Ray workers, by an agent of the run's own process."""

import pytest

from runs_ahead import Keeps, make_trainer

pytestmark = pytest.mark.ray


def test_workers_play_ahead() -> None:
    kept = Keeps()
    make_trainer(
        rollouts_backend="ray",
        rollouts_workers=2,
        max_staleness=2,
        observer=kept,
        eval_rows=[{"prompt": "Say."}],
        eval_every_steps=2,
    ).train()
    assert kept.sizes == [[4, 4, 4]] * 5
    assert sorted(row for rows in kept.rows for row in rows) == list(range(15))
    assert max(metrics["staleness/max"] for metrics in kept.metrics) == 2
    assert kept.evaluated == [{0}, {2}, {4}, {5}]
