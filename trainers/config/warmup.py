"""The demonstrations that a config names: found, and read or tried, before weights are loaded."""

from typing import Any

from gymnast.envs.environment.solution import require_solve
from gymnast.errors import InfrastructureError, NoSolution, PromptTooLong
from gymnast.threads import run_blocking
from gymnast.trainers.config.environments import own_environments
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task import RunTask
from gymnast.trainers.conversations.play import play_solution
from gymnast.trainers.demonstrations.files import check_file
from gymnast.trainers.demonstrations.settings import SOLVE
from gymnast.trainers.demonstrations.sources import check_environment
from gymnast.trainers.demonstrations.warmup import read_for


def check_demonstrations(config: RunConfig) -> None:
    """Check, without a model, that there is what the section `warmup` names.

    Raises:
        ConfigError: The environment has no `solve`.
        DataError: There is no such file.
    """
    if config.warmup is None:
        return
    if config.warmup.demonstrations == SOLVE:
        for cls in own_environments(config):
            require_solve(cls, f"warmup.demonstrations: {SOLVE}")
    else:
        check_file(config.warmup.demonstrations)


def prepare_warmup(config: RunConfig, task: RunTask) -> dict[str, Any] | None:
    """What `Trainer(warmup=...)` gets: a file is read, and `solve` plays a row.

    Raises:
        DataError: The file holds nothing to learn from.
        UserCodeError: A solution is wrong.
    """
    section = config.warmup
    if section is None:
        return None
    if section.demonstrations == SOLVE:
        _try_a_solution(task)
        return section.model_dump()
    rows = [*task.evaluation_rows]
    for other in task.evaluation_environments.values():
        rows += other.rows
    return section.model_dump() | {"demonstrations": read_for(section, task.make_env, rows)}


def _try_a_solution(task: RunTask) -> None:
    """Play the first training row, so that a mistake in `solve` comes to light at once."""
    made = task.make_env()
    try:
        env = check_environment(made)
        run_blocking(play_solution(env, task.training_rows.row(0), seed=0))
    except (NoSolution, InfrastructureError, PromptTooLong):
        pass  # of this row, or now
    finally:
        made.close()
