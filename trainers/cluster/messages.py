"""What the driver and a worker tell each other about the episodes of one collection.

    driver                              worker
    Thing, Open, RowOf, Begin    ->
                                 <-     Ask, Withdraw        where the agent stays with the driver
    Answer, Cancel, Forget       ->
                                 <-     Over, Said, Broken

The driver posts a list of messages, one post at a time; it takes whatever a worker has to say, one
take at a time. So however many episodes there are, two calls a worker are under way, and messages
that come together travel together.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gymnast.trainers.cluster.carrying import Raised
from gymnast.trainers.rollouts.metrics import Counts
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.types import Completion, Sampling, Trajectory


class Thing(NamedTuple):
    """What a worker keeps: a factory, reward functions, an agent."""

    key: str
    pickled: bytes


class Open(NamedTuple):
    """A collection begins. Its factory and its rewards are named by their keys."""

    make_env: str
    agent: Thing | None  # None: the worker asks the driver
    rewards: str
    settings: RolloutSettings
    waiting_together: int
    max_threads: int  # for sync code, in the worker's process


class RowOf(NamedTuple):
    """A row of which episodes are to be played."""

    row_index: int
    row: Mapping[str, Any]
    seed_index: int


class Begin(NamedTuple):
    """Play an episode."""

    episode: int
    row_index: int
    member: int


class Forget(NamedTuple):
    """No further episode of this row is to be played."""

    row_index: int


class Cancel(NamedTuple):
    """Give an episode up; it is over once it has cleaned up."""

    episode: int


class Answer(NamedTuple):
    """What the agent said, or what it raised."""

    request: int
    completion: Completion | None
    error: Raised | None


class Ask(NamedTuple):
    """An episode asks the agent."""

    request: int
    context_ids: list[int]
    sampling: Sampling


class Withdraw(NamedTuple):
    """The answer is not needed any more: the episode was cancelled."""

    request: int


class Over(NamedTuple):
    """An episode is over: what it came to, what was counted, and what it raised."""

    episode: int
    trajectory: Trajectory | None
    counts: Counts
    user_errors: list[Raised]
    error: Raised | None


class Said(NamedTuple):
    """A warning that the worker logged."""

    logger: str
    level: int
    text: str


class Broken(NamedTuple):
    """A message of the driver's cannot be used here: the collection cannot be played."""

    error: Raised
