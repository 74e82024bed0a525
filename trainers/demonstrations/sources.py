"""Where demonstrations come from: solutions that are played step by step, or a list.

A source has an endless sequence of them. Which ones a step gets depends on the seed and on how many
were taken before, so that a resumed run goes on with those that the killed one would have had.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from gymnast.trainers.data.rows import DatasetRows, Row, RowSource
from gymnast.trainers.demonstrations.layout import with_tokens
from gymnast.trainers.demonstrations.left_out import LeftOut, NoneOfRow, Why
from gymnast.trainers.demonstrations.settings import SOLVE
from gymnast.trainers.distributed.processes import together
from gymnast.types import Trajectory
from gymnast.visible import visible_line, visible_logger

logger = visible_logger(__name__)

_AT_ONCE = 16  # solutions that are played in a process
_OF_ROW = Trajectory | NoneOfRow
_PLAYED = list[tuple[int, _OF_ROW]]


class Demonstrations(Protocol):
    """An endless sequence of demonstrations."""

    @property
    def left_out(self) -> LeftOut:
        """The rows taken so far that gave none."""
        ...

    def all_before(self, position: int) -> bool:
        """Whether those before a position are all there are, which come again after it."""
        ...

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
        self.left_out = LeftOut()

    def all_before(self, position: int) -> bool:
        """Whether those before a position are all there are; see `Demonstrations`."""
        return position >= len(self._trajectories)

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
        left_out: The rows taken so far that gave no demonstration.
    """

    accelerator: Accelerator
    make_env: Callable[[], Any]
    rows: RowSource
    seed: int
    min_reward: float
    stopping: Stopping
    left_out: LeftOut = field(default_factory=LeftOut)

    def all_before(self, position: int) -> bool:
        """Whether the rows before a position are all there are; see `Demonstrations`."""
        return isinstance(self.rows, DatasetRows) and position >= len(self.rows)

    def take(self, first: int, count: int) -> list[Trajectory]:
        """The solutions of the rows at these positions; see `Demonstrations`.

        Of the first ones among which there is none, the user is told.

        Raises:
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
        of_rows = sorted((one for share in shares for one in share), key=lambda one: one[0])
        kept, left_out = self._divided([of_row for _, of_row in of_rows])
        self.left_out.update(left_out)
        if not kept and not self.left_out.told and self.accelerator.is_main_process:
            self.left_out.told = True
            logger.warning(
                "warmup.demonstrations: `solve` gave none for the %d training rows of a step, "
                "which learns from none: %s. Of further such steps nothing is told",
                *(count, left_out.describe()),
            )
        return kept

    def _divided(self, of_rows: Sequence[_OF_ROW]) -> tuple[list[Trajectory], LeftOut]:
        """What is learned from, and the rows that gave nothing."""
        left_out = LeftOut()
        solved = [each for each in of_rows if isinstance(each, Trajectory)]
        kept = [each for each in solved if is_good(each, self.min_reward)]
        for each in of_rows:
            if isinstance(each, NoneOfRow):
                left_out.add(each)
        best = _best(solved)
        earned = "none has a reward" if best is None else f"the best is {best:g}"
        for _ in range(len(solved) - len(kept)):
            left_out.add(NoneOfRow(Why.poor, f"({self.min_reward:g}; {earned})"))
        return kept, left_out

    def _play_share(self, rows: Sequence[tuple[int, Row]]) -> _PLAYED | None:
        """Play every n-th row, n being the number of processes; None if the run is to stop."""
        own = rows[self.accelerator.process_index :: self.accelerator.num_processes]

        async def solve(env: Environment, index: int, row: Row) -> _OF_ROW:
            return await self._solve(env, own[index][0], row)

        own_rows = [row for _, row in own]
        playing = for_each_row(self._environment, own_rows, solve, concurrency=_AT_ONCE)
        try:
            played = self.stopping.run(playing)
        except Stopped:
            return None
        return [(position, of_row) for (position, _), of_row in zip(own, played, strict=True)]

    def _environment(self) -> Environment:
        env = self.make_env()
        try:
            return check_environment(env)
        except ConfigError:
            env.close()
            raise

    async def _solve(self, env: Environment, position: int, row: Row) -> _OF_ROW:
        """The solution of a row, in tokens; or why there is none.

        What the infrastructure breaks is played once more, and then left out, as other episodes.
        """
        longest = env.context_length
        too_long = NoneOfRow(Why.too_long, f"({longest} tokens)")
        seed = derive(self.seed, "demonstration", position)
        try:
            try:
                spoken = await play_solution(env, row, seed=seed)
            except InfrastructureError:  # once more
                spoken = await play_solution(env, row, seed=seed)
        except NoSolution:
            return NoneOfRow(Why.unsolved)
        except PromptTooLong:
            return too_long
        except InfrastructureError as error:
            logger.warning(
                "warmup.demonstrations: a solution broke twice and is left out: %s",
                visible_line(str(error)),
            )
            return NoneOfRow(Why.broken)
        assert env.renderer is not None
        solution = with_tokens(spoken, env.renderer)
        return solution if longest is None or len(solution.ids) <= longest else too_long


def check_environment(env: Any) -> Environment:
    """Check that solutions can be played in an environment; returns it without its wrappers.

    Solutions are played in messages, which wrappers do not see.

    Raises:
        ConfigError: It is none of Gymnast's, or has no renderer.
    """
    env = getattr(env, "unwrapped", env)
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
    """Those of a list that the policy can read; tells how many it cannot.

    Args:
        trajectories: With tokens.
        source: Where they are from, for the error.
        longest: How many tokens it reads; None: any number.

    Raises:
        DataError: There are none.
    """
    kept = [t for t in trajectories if longest is None or len(t.ids) <= longest]
    if not kept:
        shortest = min((len(t.ids) for t in trajectories), default=None)
        why = "it is empty"
        if shortest is not None:
            why = f"the shortest has {shortest} tokens, and environment.context_length is {longest}"
        raise DataError(f"{source}: has no demonstration to learn from: {why}")
    if len(kept) < len(trajectories):
        logger.warning(
            "%s: %d of %d demonstrations are longer than environment.context_length (%d tokens), "
            "and left out",
            *(source, len(trajectories) - len(kept), len(trajectories), longest),
        )
    return kept


def passing(trajectories: Sequence[Trajectory], source: str, min_reward: float) -> list[Trajectory]:
    """Those of a list whose reward is high enough; tells of how many it is not.

    Args:
        trajectories: With rewards.
        source: Where they are from, for the error.
        min_reward: The lowest reward that is.

    Raises:
        DataError: There are trajectories, and none of them passes.
    """
    kept = [trajectory for trajectory in trajectories if is_good(trajectory, min_reward)]
    if trajectories and not kept:
        best = _best(trajectories)
        found = "no episode has a reward" if best is None else f"the best reward is {best:g}"
        raise DataError(
            f"{source}: has no demonstration to learn from: {found}, and warmup.min_reward is "
            f"{min_reward:g}; lower it, or name other demonstrations"
        )
    if len(kept) < len(trajectories):
        logger.warning(
            "%s: %d of %d demonstrations have a reward below warmup.min_reward (%g) or nothing to "
            "learn, and are left out",
            *(source, len(trajectories) - len(kept), len(trajectories), min_reward),
        )
    return kept


def is_good(trajectory: Trajectory, min_reward: float) -> bool:
    """Whether a trajectory has a reward, this one at least, and something to learn."""
    played = not trajectory.no_reward and trajectory.reward >= min_reward
    return played and trajectory.action_tokens > 0


def _best(trajectories: Sequence[Trajectory]) -> float | None:
    return max((t.reward for t in trajectories if not t.no_reward), default=None)
