"""Workers from when they are asked for until they can play."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gymnast.errors import ConfigError, InfrastructureError, first_line
from gymnast.visible import visible_logger

# How often the log says that workers are waited for, in seconds.
REMIND_S = 30.0
logger = visible_logger(__name__)


class Place(NamedTuple):
    """Where a worker runs."""

    node: str
    host: str
    pid: int
    version: str  # of Gymnast

    def __str__(self) -> str:
        return f"node {self.node} ({self.host}), worker {self.pid}"


@dataclass(frozen=True)
class Started:
    """A worker that can play.

    Attributes:
        actor: Ray's handle of it.
        place: Where it runs.
        known: The keys of what it was sent.
    """

    actor: Any
    place: Place
    known: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Starting:
    """A worker that is being started, or has.

    Attributes:
        actor: Ray's handle of it.
        asked: Ray's reference of its first answer.
        version: Of Gymnast, which it has to have too.
        started: The worker, once it can play.
        successor: What takes its place, once it is lost.
    """

    actor: Any
    asked: Any
    version: str
    started: Started | None = None
    successor: "Starting | None" = None

    async def start(self) -> Started:
        """Wait until it can play.

        Raises:
            InfrastructureError: It was lost before.
            ConfigError: It has another version of Gymnast, or none.
        """
        waited_s = 0.0
        answer = asyncio.ensure_future(_answer(self.asked))
        while not (await asyncio.wait((answer,), timeout=REMIND_S))[0]:
            waited_s += REMIND_S
            logger.warning(
                "a Ray worker has not started after %.0f s: does the cluster have CPUs free for "
                "it? `ray status` shows what is asked for",
                waited_s,
            )
        return self.answered(answer.result())

    def answered(self, answer: Any) -> Started:
        """Take its first answer.

        Args:
            answer: A `Place`, or what was raised.
        """
        if not isinstance(answer, Place):
            _raise_for(answer)
        if answer.version != self.version:
            raise ConfigError(
                f"rollouts.backend: ray: {answer} has Gymnast {answer.version}, and the driver "
                f"{self.version}; install the same version on every node"
            )
        self.started = Started(self.actor, answer)
        return self.started


async def _answer(asked: Any) -> Any:
    """What a worker answers, or what asking it raises."""
    try:
        return await asked
    except Exception as error:
        return error


def _raise_for(error: Exception) -> None:
    """Raise the error about a worker that did not start."""
    reason = first_line(error)
    if "ModuleNotFoundError" in str(error):
        raise ConfigError(
            f"rollouts.backend: ray: a node cannot import what a worker needs ({reason}); install "
            "Gymnast, with the packages of the environment, on every node"
        ) from error
    raise InfrastructureError(f"a Ray worker was lost before it could play: {reason}") from error
