"""`RayWorkers`: processes of a Ray cluster that play episodes for a run, or for `collect`."""

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

import gymnast
from gymnast.errors import InfrastructureError, first_line
from gymnast.shared_threads import thread_limit
from gymnast.trainers.base.settings import check_at_least, check_positive
from gymnast.trainers.cluster.carrying import (
    LARGEST_AGENT_BYTES,
    cannot_be_sent,
    dumps,
    key_of,
)
from gymnast.trainers.cluster.cluster import Cluster, import_ray
from gymnast.trainers.cluster.messages import Open, Thing
from gymnast.trainers.cluster.players import RemotePlayers
from gymnast.trainers.cluster.settings import WorkerSettings
from gymnast.trainers.cluster.starting import Starting
from gymnast.trainers.cluster.worker import Worker
from gymnast.trainers.conversations.play import SpeakingAgent
from gymnast.trainers.rollouts.episodes import Task
from gymnast.trainers.rollouts.rounds import Rounds
from gymnast.visible import visible_logger

# How long the workers of a run have to start before it begins with those that have, in seconds.
START_S = 60.0
# How long the first of them may take, in seconds.
LONGEST_START_S = 600.0
# How many workers in a row may be lost before one has played.
MOST_LOST = 8
logger = visible_logger(__name__)


class RayWorkers:
    """Workers on a Ray cluster, which play the episodes of `collect`, `stream` or a trainer.

        rollouts = await collect(make_env, agent, rows, ..., workers=RayWorkers(4))

    starts them for one collection. Several share them within a block, and reuse their environments
    and sandboxes:

        with RayWorkers(4, cpus=1) as workers:
            first = await collect(make_env, agent, rows, ..., workers=workers)
            second = await collect(make_env, agent, rows, ..., workers=workers)

    Each worker is one process with one event loop. An agent that can be pickled is sent to the
    workers and called there; any other (a `TransformersAgent`, say) is asked in this process.
    Where a program has called `ray.init` itself, its connection is used, and stays.

    Args:
        workers: How many.
        cpus: How many of its cluster's CPUs each takes.
        address: Of the cluster's head; None: `RAY_ADDRESS`, or a cluster on this machine that is
            started with the workers and ended with them.

    Raises:
        ConfigError: A number is out of its range.
    """

    def __init__(self, workers: int = 1, *, cpus: float = 1.0, address: str | None = None) -> None:
        check_at_least(1, workers=workers)
        check_positive(cpus=cpus)
        self.workers, self.cpus, self.address = workers, cpus, address
        self._lock = threading.RLock()
        self._users = 0
        self._lost = 0  # in a row, before they could play
        self._crew: list[Starting] = []
        self._things: dict[int, tuple[Any, Thing]] = {}  # by the id of what is pickled
        self._said: set[str] = set()  # of the agents that stay here
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start the workers, unless they run already.

        Raises:
            ConfigError: Ray is not installed, or the cluster cannot be used.
            InfrastructureError: The workers do not start.
        """
        with self._lock:
            if self._users == 0:
                self._open()
            self._users += 1
        return self

    def __exit__(self, *raised: object) -> None:
        """End them with the outermost block."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._stack.close()

    def all(self) -> list[Starting]:
        """Those that there are, or that are being started."""
        with self._lock:
            return [*self._crew]

    def replace(self, lost: Starting, error: Exception) -> Starting:
        """Another one in place of a lost one; the same for all who ask.

        Raises:
            InfrastructureError: Too many in a row were lost before they could play.
        """
        with self._lock:
            if lost.successor is None:
                reason = first_line(error)
                logger.warning("a Ray worker was lost and is replaced: %s", reason)
                self._lost = 0 if lost.started is not None else self._lost + 1
                if self._lost > MOST_LOST:
                    raise InfrastructureError(
                        f"{self._lost} Ray workers in a row were lost before they could play, the "
                        f"last one with: {reason}"
                    ) from error
                self._end(lost)
                lost.successor = self._new()
                self._crew[self._crew.index(lost)] = lost.successor
            return lost.successor

    def players(self, task: Task) -> RemotePlayers:
        """Who plays the episodes of a collection; see `Workers`.

        Raises:
            ConfigError: The environment, the agent or a reward function cannot be sent.
        """
        make_env = self._thing(task.make_env, "the environment")
        rewards = self._thing(task.settings.rewards, "a reward function")
        agent = self._pickled_agent(task.agent)
        settings = replace(task.settings, rewards=(), dynamic_sampling=None)
        opened = Open(
            make_env.key,
            None if agent is None else Thing(key_of(agent), agent),
            rewards.key,
            settings,
            task.waiting_together,
            thread_limit(),
        )
        return RemotePlayers(self, task, [make_env, rewards], opened, asked=agent is None)

    def _open(self) -> None:
        cluster = Cluster(self.address, self.workers * self.cpus)
        with ExitStack() as stack:
            stack.callback(cluster.close)
            cluster.open()
            stack.callback(self._end_all)
            self._crew = [self._new() for _ in range(self.workers)]
            self._await_start()
            self._stack = stack.pop_all()

    def _new(self) -> Starting:
        ray = import_ray()
        options = {
            "num_cpus": self.cpus,
            "max_concurrency": 1000,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        actor = ray.remote(Worker).options(**options).remote()
        return Starting(actor, actor.place.remote(), gymnast.__version__)

    def _await_start(self) -> None:
        """Wait for all workers, but no longer than a minute once one has started.

        Raises:
            ConfigError: They cannot play.
            InfrastructureError: Every one was lost, or none has started in ten minutes.
        """
        ray = import_ray()
        began, reminded = time.monotonic(), 0.0
        while waiting := [each for each in self._crew if each.started is None]:
            ready, _ = ray.wait([each.asked for each in waiting], timeout=1.0)
            for each in waiting:
                if each.asked in ready:
                    self._take_start(ray, each)
            waited = time.monotonic() - began
            if waited > START_S and len(waiting) < len(self._crew):
                return
            if waited > LONGEST_START_S:
                raise InfrastructureError(
                    f"no Ray worker started within {waited:.0f} s: each needs {self.cpus:g} CPUs "
                    "(rollouts.cpus) on a node of the cluster that has them free"
                )
            if waited - reminded > START_S / 2:
                reminded = waited
                logger.warning(
                    "%d of %d Ray workers have not started after %.0f s: does the cluster have %g "
                    "CPUs free for each? `ray status` shows what is asked for",
                    *(len(waiting), len(self._crew), waited, self.cpus),
                )

    def _take_start(self, ray: Any, worker: Starting) -> None:
        try:
            answer = ray.get(worker.asked)
        except Exception as error:
            answer = error
        try:
            worker.answered(answer)
        except InfrastructureError as error:
            self.replace(worker, error)

    def _end_all(self) -> None:
        """Have all workers close their environments, and end them."""
        ray = import_ray()
        crew, self._crew, self._things = self._crew, [], {}
        closing = [each.actor.close.remote() for each in crew if each.started is not None]
        try:
            ray.wait(closing, num_returns=len(closing), timeout=30.0) if closing else None
        finally:
            for each in crew:
                self._end(each)

    def _end(self, worker: Starting) -> None:
        ray = import_ray()
        try:
            ray.kill(worker.actor)
        except Exception:  # the cluster is gone already
            logger.debug("a Ray worker could not be killed", exc_info=True)

    def _thing(self, value: Any, what: str) -> Thing:
        """What is sent once for a value, which is pickled once."""
        known = self._things.get(id(value))
        if known is None:
            try:
                pickled = dumps(value)
            except Exception as error:
                raise cannot_be_sent(what, error) from error
            known = self._things[id(value)] = value, Thing(key_of(pickled), pickled)
        return known[1]

    def _pickled_agent(self, agent: Any) -> bytes | None:
        """An agent as bytes; None if it is to be asked where it is.

        Raises:
            ConfigError: It cannot be pickled, nor asked: it answers in messages.
        """
        if isinstance(agent, Rounds):  # all requests of a round go to one agent
            return None
        try:
            return dumps(agent, most_bytes=LARGEST_AGENT_BYTES)
        except Exception as error:
            if isinstance(agent, SpeakingAgent):
                raise cannot_be_sent("the agent", error) from error
            name, reason = type(agent).__name__, f"{type(error).__name__}: {error}"
            if name not in self._said:
                self._said.add(name)
                logger.info("%s stays in this process, where workers ask it (%.200s)", name, reason)
            return None


def find_workers(settings: WorkerSettings) -> RayWorkers | None:
    """The workers that settings ask for, not started yet; None: this process plays.

    Raises:
        ConfigError: Ray is not installed.
    """
    if settings.backend == "local":
        return None
    import_ray()
    return RayWorkers(settings.workers, cpus=settings.cpus, address=settings.address)
