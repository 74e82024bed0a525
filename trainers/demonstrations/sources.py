"""Where demonstrations come from: solutions that are played step by step, or a list.

A source has an endless sequence of them. Which ones a step gets depends on the seed and on how many
were taken before, so that a resumed run goes on with those that the killed one would have had.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from accelerate import Accelerator

from gymnast.envs import Environment
from gymnast.errors import (
    ConfigError,
    DataError,
    InfrastructureError,
    NoSolution,
    PromptTooLong,
)
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.base.stopping import Stopped, Stopping
from gymnast.trainers.conversations.many import for_each_row
from gymnast.trainers.conversations.play import play_solution
from gymnast.trainers.data.rows import Row, RowSource
from gymnast.trainers.demonstrations.layout import with_tokens
from gymnast.trainers.demonstrations.settings import SOLVE
from gymnast.trainers.distributed.processes import together
from gymnast.types import Trajectory
from gymnast.visible import visible_line, visible_logger

logger = visible_logger(__name__)

_AT_ONCE = 16  # solutions that are played in a process
_PLAYED = list[tuple[int, Trajectory]]


class NoDemonstration(DataError):
    """There is nothing to learn from among the demonstrations that were asked for."""


class Demonstrations(Protocol):
    """An endless sequence of demonstrations."""

    def take(self, first: int, count: int) -> list[Trajectory]:
        """Some of them, the same in every process; a collective call.

        Args:
            first: How many come before.
            count: How many at most; those that there are not are left out.
        """
        ...


class ListedDemonstrations:
    """A list, over and over, each time in an order of its own.

    Args:
        trajectories: At least one, with tokens.
        seed: Of the orders.
    """

    def __init__(self, trajectories: Sequence[Trajectory], *, seed: int) -> None:
        self._trajectories, self._seed = trajectories, seed

    def take(self, first: int, count: int) -> list[Trajectory]:
        """Some of them; see `Demonstrations`."""
        return [self._at(position) for position in range(first, first + count)]

    def _at(self, position: int) -> Trajectory:
        epoch, within = divmod(position, len(self._trajectories))
        rng = np.random.default_rng(derive(self._seed, "demonstrations", epoch))
        return self._trajectories[int(rng.permutation(len(self._trajectories))[within])]


@dataclass(frozen=True)
class SolvedRows:
    """What the environment's `solve` says to training rows, played when it is asked for.

    Attributes:
        accelerator: Of this process; each plays its share of the rows.
        make_env: Makes an environment with a renderer.
        rows: The training rows.
        seed: Of the environments.
        min_reward: Solutions with a lower reward are left out.
        stopping: Whether the run is to stop: then what is being played is given up.
    """

    accelerator: Accelerator
    make_env: Callable[[], Any]
    rows: RowSource
    seed: int
    min_reward: float
    stopping: Stopping

    def take(self, first: int, count: int) -> list[Trajectory]:
        """The solutions of the rows at these positions; see `Demonstrations`.

        Raises:
            NoDemonstration: None of the rows has a solution that is good enough.
            ConfigError: The environment has no `solve`.
            UserCodeError: A solution is wrong.
            Stopped: The run is to stop, in any of the processes.
        """
        positions = range(first, first + count)
        rows = [(position, self.rows.row(position)) for position in positions]
        played = together(self.accelerator, lambda: self._play_share(rows))
        shares = [share for share in played if share is not None]
        if len(shares) < len(played):
            raise Stopped
        solved = sorted((one for share in shares for one in share), key=lambda one: one[0])
        if not solved:
            raise NoDemonstration(
                f"warmup.demonstrations: `solve` has no solution for any of {count} training rows "
                "that fits into environment.context_length"
            )
        solutions = [solution for _, solution in solved]
        return passing(solutions, "warmup.demonstrations: `solve`", self.min_reward)

    def _play_share(self, rows: Sequence[tuple[int, Row]]) -> _PLAYED | None:
        """Play every n-th row, n being the number of processes; None if the run is to stop."""
        own = rows[self.accelerator.process_index :: self.accelerator.num_processes]

        async def solve(env: Environment, index: int, row: Row) -> Trajectory | None:
            return await self._solve(env, own[index][0], row)

        own_rows = [row for _, row in own]
        playing = for_each_row(self._environment, own_rows, solve, concurrency=_AT_ONCE)
        try:
            played = self.stopping.run(playing)
        except Stopped:
            return None
        pairs = zip(own, played, strict=True)
        return [(position, solution) for (position, _), solution in pairs if solution is not None]

    def _environment(self) -> Environment:
        env = self.make_env()
        try:
            return check_environment(env)
        except ConfigError:
            env.close()
            raise

    async def _solve(self, env: Environment, position: int, row: Row) -> Trajectory | None:
        """The solution of a row, in tokens; None where there is none, or it is too long.

        What the infrastructure breaks is played once more, and then left out, as other episodes.
        """
        seed = derive(self.seed, "demonstration", position)
        try:
            try:
                spoken = await play_solution(env, row, seed=seed)
            except InfrastructureError:  # once more
                spoken = await play_solution(env, row, seed=seed)
        except (NoSolution, PromptTooLong):
            return None
        except InfrastructureError as error:
            logger.warning(
                "warmup.demonstrations: a solution broke twice and is left out: %s",
                visible_line(str(error)),
            )
            return None
        assert env.renderer is not None
        solution = with_tokens(spoken, env.renderer)
        longest = env.context_length
        return solution if longest is None or len(solution.ids) <= longest else None


def check_environment(env: Any) -> Environment:
    """Check that solutions can be played in an environment; returns it.

    Raises:
        ConfigError: It is none of Gymnast's, or has no renderer.
    """
    if not isinstance(env, Environment):
        raise ConfigError(
            f"warmup.demonstrations: {SOLVE} needs a gymnast.envs.Environment, got a "
            f"{type(env).__name__}; name a file of demonstrations"
        )
    if env.renderer is None:
        raise ConfigError(
            f"warmup.demonstrations: {type(env).__name__} has no renderer, so a solution has no "
            "tokens; make it with one"
        )
    return env


def fitting(
    trajectories: Sequence[Trajectory], source: str, longest: int | None
) -> list[Trajectory]:
    """Those of a list that the policy can read.

    Args:
        trajectories: With tokens.
        source: Where they are from, for the error.
        longest: How many tokens it reads; None: any number.

    Raises:
        NoDemonstration: There are none.
    """
    kept = [t for t in trajectories if longest is None or len(t.ids) <= longest]
    if not kept:
        shortest = min((len(t.ids) for t in trajectories), default=None)
        why = "it is empty"
        if shortest is not None:
            why = f"the shortest has {shortest} tokens, and environment.context_length is {longest}"
        raise NoDemonstration(f"{source}: has no demonstration to learn from: {why}")
    return kept


def passing(trajectories: Sequence[Trajectory], source: str, min_reward: float) -> list[Trajectory]:
    """Those of a list whose reward is high enough.

    Args:
        trajectories: With rewards.
        source: Where they are from, for the error.
        min_reward: The lowest reward that is.

    Raises:
        NoDemonstration: There are trajectories, and none of them passes.
    """
    kept = [trajectory for trajectory in trajectories if _is_good(trajectory, min_reward)]
    if trajectories and not kept:
        best = max((t.reward for t in trajectories if not t.no_reward), default=None)
        found = "no episode has a reward" if best is None else f"the best reward is {best:g}"
        raise NoDemonstration(
            f"{source}: has no demonstration to learn from: {found}, and warmup.min_reward is "
            f"{min_reward:g}; lower it, or name other demonstrations"
        )
    return kept


def _is_good(trajectory: Trajectory, min_reward: float) -> bool:
    played = not trajectory.no_reward and trajectory.reward >= min_reward
    return played and trajectory.action_tokens > 0
