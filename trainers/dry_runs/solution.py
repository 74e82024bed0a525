"""Whether the environment's own `solve` earns a reward with the limits of the run."""

from collections.abc import Iterator, Mapping
from typing import Any

from gymnast.envs import Environment
from gymnast.envs.environment.solution import can_solve
from gymnast.errors import InfrastructureError, NoSolution, UserCodeError, first_line
from gymnast.threads import run_blocking
from gymnast.trainers.conversations.play import play_solution
from gymnast.trainers.dry_runs.oddities import SOLVE, Oddity


def of_solution(env: Any, row: Mapping[str, Any] | None, seed: int) -> Iterator[Oddity]:
    """What is odd about the solution of a row; nothing where the environment has none.

    Args:
        env: As the run makes it.
        row: The first row of training; None: one of the environment's own.
        seed: Of the episode.
    """
    if not (isinstance(env, Environment) and can_solve(env)):
        return
    try:
        reward = run_blocking(play_solution(env, row, seed=seed)).reward
    except UserCodeError as error:
        text = f"with this run's settings `solve` does not reach its end: {first_line(error)}"
        yield Oddity(SOLVE, f"{text} (gymnast check plays it with settings of its own)")
    except (NoSolution, InfrastructureError):
        return
    else:
        if reward <= 0:
            yield Oddity(
                SOLVE,
                f"with this run's settings `solve` earns {reward:g} on the first row, so no policy "
                "can be expected to earn more: compare what it does with what `reward` asks for",
            )
