"""Playing ahead of training: while a step is learned from, the next ones are played.

    main thread   step: wait for complete groups -> learned -> renewed: new weights, further rows
    background    plays the rows of this process, without any collective call

With a bound of s, the rows of s further steps are under way while a step is learned from. A step
learns from the first groups that are complete, those with the oldest tokens first; it does not wait
for the others. Each process plays every n-th row and hands over its share of each step's groups, so
nothing is decided between processes. Seeds derive from the positions of rows.

Evaluations are played by the main thread between an update and the next, so all of an evaluation is
sampled from the weights that it is told to be of. What is under way goes on beside it: it may hold
what the evaluation waits for, such as the boxes of a sandbox.

An agent that samples with the trained model has it while the main thread waits for episodes, those
of a step or of an evaluation; at any other time its requests wait, and only tools go on
(`PolicyAgent.learning`). So whatever the trainer or an observer does with the model between two
steps, nobody else uses it.

Metrics of a step, beside those of its episodes (`trainers/rollouts/metrics.py`):

    staleness/mean, staleness/max     of the tokens that are learned from, in updates (`bound.py`)
    staleness/tokens_left_out         tokens of episodes that went on, older than the bound
    staleness/groups_under_way        groups that have begun or wait to, when the step has its own
    staleness/groups_complete         of these, those that are complete
    engine/kept_across_weights        requests that went on with keys and values of older weights
                                      since the step before, where the agent counts them
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from gymnast.agents.policy import learning
from gymnast.trainers.ahead.background import Background
from gymnast.trainers.ahead.bound import Groups, staleness_metrics, within
from gymnast.trainers.ahead.in_turn import OfStep, Played, Progress
from gymnast.trainers.ahead.player import Player, Taken
from gymnast.trainers.ahead.rows import POSITIONS, RowsAt, Settled
from gymnast.trainers.ahead.settings import StalenessSettings
from gymnast.trainers.ahead.watching import WatchedAgent
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.base.stopping import Stopped
from gymnast.trainers.data.rows import RowSource
from gymnast.trainers.distributed.processes import together
from gymnast.trainers.rollouts.episodes import Task
from gymnast.trainers.rollouts.many_episodes import Rollouts
from gymnast.trainers.rollouts.metrics import Counts
from gymnast.trainers.rollouts.schedule import Group
from gymnast.trainers.rollouts.shared import (
    RolloutClock,
    SharedRollouts,
    as_rollouts,
    mean_times,
)


class _Share(NamedTuple):
    """What one process hands over for a step.

    Attributes:
        taken: The groups.
        kept: What its agent counts as `kept_across_weights`.
        times: See `RolloutClock.read`.
    """

    taken: Taken
    kept: int
    times: dict[str, float]


class _UnderWay(NamedTuple):
    """What plays, and where."""

    player: Player
    background: Background


@dataclass
class Ahead:
    """Plays rows ahead of training.

    Attributes:
        shared: Whose agent, environments and processes they are.
        source: Of the training rows.
        rows_per_step: How many groups a step learns from.
        most_rows: How many rows a step plays at most; more than `rows_per_step` with dynamic
            sampling alone.
        of_step: How they are played.
        staleness: What may be learned from.
        steps_left: How many steps the run still has, the one under way included.
        seed: Of the run.
    """

    shared: SharedRollouts
    source: RowSource
    rows_per_step: int
    most_rows: int
    of_step: OfStep
    staleness: StalenessSettings
    steps_left: Callable[[], int]
    seed: int
    _settled: Settled = field(default_factory=Settled, init=False)
    _under_way: _UnderWay | None = field(default=None, init=False)
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _since: float = field(default=0.0, init=False)
    _kept: int = field(default=0, init=False)

    @property
    def parts(self) -> Mapping[str, Any]:
        """See `Playing`."""
        return {"ahead": self._settled}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within the block rows are played, from its first step on."""
        with ExitStack() as self._stack:
            try:
                yield
            finally:
                self._under_way = None

    def step(self, step: int, version: int, on_progress: Progress) -> Played:
        """See `Playing`."""
        with ExitStack() as waiting:  # until all processes have their share
            take = partial(self._take, step, version, on_progress, waiting)
            shares = together(self.shared.accelerator, take)
        found = [share for share in shares if share is not None]
        if len(found) < len(shares):
            raise Stopped
        seconds, self._since = time.perf_counter() - self._since, time.perf_counter()
        rollouts, learned_from = self._joined([share.taken for share in found], step + 1)
        most = self.staleness.max_staleness
        trained = [[within(t, version - most) for t in group] for group in learned_from]
        rollouts.metrics |= staleness_metrics(trained, version, most)
        rollouts.metrics |= mean_times([share.times for share in found])
        rollouts.metrics |= {
            "staleness/tokens_left_out": _action_tokens(learned_from) - _action_tokens(trained),
            "staleness/groups_under_way": sum(share.taken.under_way for share in found),
            "staleness/groups_complete": sum(share.taken.complete for share in found),
        }
        if hasattr(self.shared.agent, "kept_across_weights"):
            rollouts.metrics["engine/kept_across_weights"] = sum(share.kept for share in found)
        return Played(rollouts, learned_from, trained, seconds)

    def learned(self, played: Played) -> dict[str, float]:
        """See `Playing`."""
        self._settled.settle(group.row_index for group in played.rollouts)
        return {}

    def renewed(self, step: int, version: int) -> None:
        """See `Playing`."""
        assert self._under_way is not None
        player, background = self._under_way
        background.call(player.renew(version))
        self._begin(self._under_way, new_steps=1)

    def _joined(self, taken: Sequence[Taken], number: int) -> tuple[Rollouts, Sequence[Group]]:
        """The rollouts of all processes, and those to learn from."""
        groups = [group for each in taken for group in (*each.groups, *each.others)]
        settings = self.of_step(number, self.rows_per_step)
        counts = [each.counts for each in taken]
        rollouts = as_rollouts(groups, counts, settings, f"step {number}", self.rows_per_step)
        chosen = {group.row_index for each in taken for group in each.groups}
        if not chosen:  # dynamic sampling found none with spread
            return rollouts, rollouts.to_learn_from[: self.rows_per_step]
        return rollouts, [group for group in rollouts if group.row_index in chosen]

    def _take(
        self, step: int, version: int, on_progress: Progress, waiting: ExitStack
    ) -> _Share | None:
        """Return this process's share of a step; None if the run is to stop.

        Args:
            step: See `step`.
            version: See `step`.
            on_progress: See `step`.
            waiting: Gets the block in which the agent samples while the learner waits.
        """
        if self._under_way is None:
            self._settled.begin(step * self.rows_per_step)
            self._under_way = self._started(version)
            self._begin(self._under_way, new_steps=self.staleness.max_staleness + 1)
        waiting.enter_context(self.shared.agent.awake())
        player, background = self._under_way
        wanted = self._own(self.rows_per_step)
        size = self.of_step(step + 1, self.rows_per_step).group_size

        def tell(complete: int) -> None:
            on_progress(min(complete, wanted) * size, wanted * size)

        taking = background.follow(partial(player.take, wanted, version), tell)
        clock = RolloutClock(self.shared.agent)
        try:
            taken = self.shared.stopping.run(taking)
        except Stopped:
            return None
        times = clock.read()
        before, self._kept = self._kept, self._kept_across_weights
        return _Share(taken, self._kept - before, times)

    def _begin(self, under_way: _UnderWay, *, new_steps: int) -> None:
        """Let this process's rows of the next steps begin."""
        wanted, most = self._own(self.rows_per_step), self._own(self.most_rows)
        steps = min(self.staleness.max_staleness + 1, self.steps_left())
        player, background = under_way
        background.call(player.begin(steps * wanted, new_steps * (most - wanted)))

    def _own(self, rows: int) -> int:
        """How many of so many rows are this process's."""
        accelerator = self.shared.accelerator
        return len(range(accelerator.process_index, rows, accelerator.num_processes))

    def _started(self, version: int) -> _UnderWay:
        """Begin to play beside training, until the block of `open` ends."""
        shared = self.shared
        process, processes = shared.accelerator.process_index, shared.accelerator.num_processes
        positions = self._settled.left(self.rows_per_step, process, processes)
        # The first step's own limit of failures holds when its groups are taken.
        settings = replace(self.of_step(2, self.rows_per_step), seed=derive(self.seed, "ahead"))
        agent, counts = WatchedAgent(shared.agent, version), Counts()
        task = Task(shared.make_env, agent, RowsAt(self.source), POSITIONS, settings, counts)

        async def begin() -> Player:
            players = task.here() if shared.workers is None else shared.workers.players(task)
            return Player(players, counts, agent, positions, settings, self.staleness)

        background = Background()
        self._stack.callback(background.close)
        self._stack.enter_context(shared.agent.awake())
        # All that the main thread does with the model, but wait for episodes, is in this block.
        self._stack.enter_context(learning(shared.agent))
        player = background.call(begin())
        self._stack.callback(lambda: background.call(player.close()))
        self._since, self._kept = time.perf_counter(), self._kept_across_weights
        return _UnderWay(player, background)

    @property
    def _kept_across_weights(self) -> int:
        return int(getattr(self.shared.agent, "kept_across_weights", 0))


def _action_tokens(groups: Groups) -> int:
    return sum(trajectory.action_tokens for group in groups for trajectory in group)
