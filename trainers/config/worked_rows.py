"""Which rows the worked turns of a run's prompts are played on: never one that is held out.

`envs/environment/worked_turns.py` plays them. An environment that makes rows of its own, or has a
list of them, would draw from all of these; here it is given rows that are trained on.
"""

from collections.abc import Callable, Sequence
from functools import partial

from gymnast.envs import Environment
from gymnast.envs.environment.hooks import Hooks
from gymnast.trainers.config.environments import MakeEnvironment
from gymnast.trainers.data.rows import Row, RowSource

SEED = 0  # of the choice, so that runs of all seeds show the same
OFFERED = 8  # rows for each episode that a prompt shows


def has_rows(cls: type[Environment]) -> bool:
    """Whether an environment makes rows of its own."""
    return cls.sample_row is not Hooks.sample_row


def with_worked_rows(
    make_env: MakeEnvironment, rows: RowSource | Sequence[Row], *, of_data: bool
) -> MakeEnvironment:
    """An environment's maker, which says what its worked turns are played on.

    Args:
        make_env: Makes the environment.
        rows: Training rows, or all the rows that a further environment is evaluated on.
        of_data: Whether they come from a dataset; then an environment that makes rows of its own
            goes on to draw from those, whose kind `solve` knows.

    Returns:
        The maker as it was where there are no worked turns, or their rows are given.
    """
    env = make_env()
    if not env.worked_turns or env.worked_rows is not None or (of_data and has_rows(type(env))):
        return make_env
    count = OFFERED * (env.worked_turns + 1)
    if isinstance(rows, RowSource):
        chosen = [rows.reseeded(SEED).row(i) for i in range(count)]
    else:
        chosen = list(rows[:count])
    maker: Callable[..., Environment] = make_env
    return partial(maker, worked_rows=chosen)
