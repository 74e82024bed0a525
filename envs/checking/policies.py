"""What two policies earn on a few rows: the environment's `solve`, and one that does nothing.

Doing nothing is to say an empty message, without a call, as often as the environment goes on. The
real tools run.
"""

from collections.abc import Sequence

from gymnast.envs.checking.report import Played
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.solution import can_solve, solve_episode
from gymnast.envs.records.episode import Outcome
from gymnast.errors import InfrastructureError, NoSolution
from gymnast.threads import run_blocking
from gymnast.types import Message

ROWS = 3  # that are drawn, with a seed each


def play_idle(env: Environment) -> tuple[Played, ...]:
    """Do nothing on a few rows.

    Raises:
        InfrastructureError: An episode broke.
    """
    return tuple(run_blocking(_idle(env, row)) for row in range(ROWS))


def play_solve(
    env: Environment, idle: Sequence[Played], others: Sequence[float]
) -> tuple[Played, ...] | None:
    """Play what `solve` says on the same rows.

    Args:
        env: The environment.
        idle: What doing nothing earns.
        others: What other episodes of the first row have earned, none of which tried to solve it.

    Returns:
        One for each row that has a solution; None where the class has no `solve`.

    Raises:
        AssertionError: A solution earns nothing, or less than another episode of its row.
        UserCodeError: A solution is wrong; see `solution.py`.
    """
    if not can_solve(env):
        return None
    solved = []
    for nothing in idle:
        if (each := run_blocking(_solved(env, nothing.row))) is None:
            continue
        _check_reward(env, each, nothing, others if each.row == 0 else ())
        solved.append(each)
    return tuple(solved)


def _check_reward(
    env: Environment, solved: Played, nothing: Played, others: Sequence[float]
) -> None:
    """A solution earns more than 0 or than doing nothing, and no other episode earns more."""
    row = f"(its calls: {env.episode.calls!r:.500}; row: {dict(env.row)!r:.500})"
    reward, least = solved.reward, nothing.reward
    assert reward is not None, f"solve earned no reward: it is None {row}"
    if least is not None:
        assert reward >= least, (
            f"solve earned a reward of {reward:g}; doing nothing earned {least:g} {row}"
        )
    best = max(others, default=reward)
    assert reward >= best, (
        f"solve earned a reward of {reward:g}; an episode that solved nothing earned {best:g} {row}"
    )
    assert reward > 0 or (least is not None and reward > least), (
        f"solve earned a reward of {reward:g}; it must be > 0 {row}"
    )


async def _idle(env: Environment, row: int) -> Played:
    await env.areset(seed=row)
    outcomes: list[Outcome] = []
    while not outcomes or not (outcomes[-1].terminated or outcomes[-1].truncated):
        outcomes.append(await env.act(Message(role="assistant", content="")))
    if failure := outcomes[-1].info.get("failure"):
        raise InfrastructureError(f"the episode broke: {failure}")
    return _played(row, outcomes)


async def _solved(env: Environment, row: int) -> Played | None:
    """Play one episode; None where its row has no solution."""
    await env.areset(seed=row)
    try:
        return _played(row, await solve_episode(env))
    except NoSolution:
        return None


def _played(row: int, outcomes: Sequence[Outcome]) -> Played:
    info = outcomes[-1].info
    reward = None if info.get("no_reward") else sum(outcome.reward for outcome in outcomes)
    return Played(row, reward, len(outcomes), str(info["stop_reason"]))
