"""Which rows the worked turns of a run's prompts are played on: never one that is evaluated.

`envs/environment/worked_turns.py` plays them. An environment that makes rows of its own, or has a
list of them, would draw from all of these; here it is given rows that no evaluation plays.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gymnast.envs import Environment
from gymnast.envs.environment.hooks import Hooks
from gymnast.errors import DataError
from gymnast.trainers.config.environments import MakeEnvironment
from gymnast.trainers.data.rows import Row, RowSource, SampleRow, choose
from gymnast.trainers.demonstrations.held_out import HeldOut

SEED = 0  # of the choice, so that runs of all seeds show the same
OFFERED = 8  # rows for each episode that a prompt shows


def has_rows(cls: type[Environment]) -> bool:
    """Whether an environment makes rows of its own."""
    return cls.sample_row is not Hooks.sample_row


def with_worked_rows(
    make_env: MakeEnvironment,
    rows: RowSource | SampleRow | Sequence[Row],
    evaluated: Sequence[Row],
    *,
    place: str,
    otherwise: Sequence[Row] = (),
) -> MakeEnvironment:
    """An environment's maker, which says what its worked turns are played on.

    Args:
        make_env: Makes the environment.
        rows: Training rows, a list to choose from, or what makes rows of a kind that `solve` knows.
            Rows that the environment is given as `worked_rows` come first.
        evaluated: Evaluation rows: neither they nor rows with the prompt of one of them are taken.
        place: Of the environment in a config, for the message.
        otherwise: What is taken where too few of `rows` are left.

    Returns:
        The maker as it was where there are no worked turns, or all rows that it is given will do.

    Raises:
        DataError: Too few rows are left.
    """
    env = make_env()
    if not env.worked_turns:
        return make_env
    offered = env.worked_rows
    if offered is None:
        offered = _offered(rows, OFFERED * (env.worked_turns + 1))
    chosen = HeldOut(evaluated).without(offered)
    if env.worked_rows is not None and len(chosen) == len(offered):
        return make_env
    if len(chosen) < env.worked_turns and otherwise:
        chosen = list(otherwise)
    if len(chosen) < env.worked_turns:
        raise DataError(
            f"{place}.worked_turns: is {env.worked_turns}, and of the {len(offered)} rows that "
            f"were drawn for it, only {len(chosen)} can be shown: the others are repeated, or "
            "held out for evaluation; lower it, evaluate fewer rows, or name other worked_rows"
        )
    maker: Callable[..., Environment] = make_env
    return partial(maker, worked_rows=chosen)


def _offered(rows: RowSource | SampleRow | Sequence[Row], count: int) -> Sequence[Row]:
    """Some of the rows, of which several may be equal."""
    if isinstance(rows, RowSource):
        source = rows.reseeded(SEED)
        return [source.row(i) for i in range(count)]
    if callable(rows):
        rng = np.random.default_rng(SEED)
        return [rows(rng) for _ in range(4 * count)]
    return choose(rows, min(4 * count, len(rows)), seed=SEED)
