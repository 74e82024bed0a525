"""Whether the environment's `solve` solves it: its episodes are played by the real tools."""

from collections.abc import Sequence

from gymnast.envs.checking.report import Solved
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.solution import solve_episode
from gymnast.errors import NoSolution
from gymnast.threads import run_blocking

_ROWS = 3  # that are drawn, with a seed each


def check_solutions(env: Environment, rewards: Sequence[float]) -> tuple[Solved, ...]:
    """Play what `solve` says on a few rows.

    Args:
        env: The environment.
        rewards: What other episodes have earned, none of which tried to solve anything.

    Returns:
        One for each row that has a solution.

    Raises:
        AssertionError: A solution earns nothing, or less than one of the other episodes.
        UserCodeError: A solution is wrong; see `solution.py`.
    """
    solved = []
    others = max([0.0, *rewards])
    rule = f"an episode that solved nothing earned {others:g}" if others > 0 else "it must be > 0"
    for seed in range(_ROWS):
        if (each := run_blocking(_played(env, seed))) is None:
            continue
        assert each.reward > 0 and each.reward >= others, (
            f"solve earned a reward of {each.reward:g}; {rule} (row: {dict(env.row)!r:.500})"
        )
        solved.append(each)
    return tuple(solved)


async def _played(env: Environment, seed: int) -> Solved | None:
    """Play one episode; None where its row has no solution."""
    await env.areset(seed=seed)
    try:
        outcomes = await solve_episode(env)
    except NoSolution:
        return None
    reward = sum(outcome.reward for outcome in outcomes)
    return Solved(reward, len(outcomes), str(outcomes[-1].info["stop_reason"]))
