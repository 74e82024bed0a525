"""A worker: a process of the cluster that plays episodes, many at once, on one event loop.

It keeps environments, with their sandboxes, from one collection to the next. `messages.py` says
what it is told and what it answers.
"""

import asyncio
import logging
import os
import platform
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import gymnast
from gymnast.agents.base import Agent
from gymnast.sandboxes.pool.pool import close_shared_pools
from gymnast.shared_threads import limit_threads
from gymnast.threads import in_background
from gymnast.trainers.cluster.asking import AskingAgent
from gymnast.trainers.cluster.boxes import check_boxes
from gymnast.trainers.cluster.carrying import as_raised, dumps, loads
from gymnast.trainers.cluster.messages import (
    Answer,
    Begin,
    Broken,
    Cancel,
    Forget,
    Open,
    Over,
    RowOf,
    Said,
    Thing,
)
from gymnast.trainers.cluster.starting import Place
from gymnast.trainers.rollouts.environments import Environments
from gymnast.trainers.rollouts.episodes import Episodes
from gymnast.trainers.rollouts.metrics import Counts
from gymnast.types import Trajectory

# How many kinds of environments are kept for later collections.
MOST_POOLS = 8
# The driver counts how many episodes the user's code broke.
ANY_NUMBER = 2**62


class Worker:
    """Plays episodes for a driver; an actor of Ray's."""

    def __init__(self) -> None:
        logging.getLogger("gymnast").addHandler(_ToDriver(logging.WARNING))
        self._things: dict[str, Any] = {}
        self._pools: dict[tuple[str, int], Environments] = {}
        self._collections: dict[str, _Collection] = {}
        self._agent: tuple[str, Any] = "", None

    async def place(self) -> Place:
        """Where this worker runs; the first answer says that it can play."""
        import ray

        address = ray.util.get_node_ip_address()
        return Place(address, platform.node(), os.getpid(), gymnast.__version__)

    async def post(self, name: str, pickled: bytes) -> None:
        """Take messages about a collection."""
        collection = self._collections.setdefault(name, _Collection())
        try:
            for message in loads(pickled):
                if isinstance(message, Open):
                    await self._open(collection, message)
                else:
                    self._take_in(collection, message)
        except Exception as error:  # of unpickling: a module that is not here, say
            collection.say(Broken(as_raised(error)))

    async def take(self, name: str) -> bytes:
        """What there is to say about a collection; waits until there is something."""
        collection = self._collections.setdefault(name, _Collection())
        return await collection.said()

    async def leave(self, name: str) -> None:
        """Forget a collection; what it still plays is cancelled first."""
        collection = self._collections.pop(name, None)
        if collection is None:
            return
        await collection.end()
        if hasattr(collection, "pool"):  # else its environment could not be made
            await collection.pool.close_lost()

    async def close(self) -> None:
        """Close all environments, and their sandboxes."""
        for name in [*self._collections]:
            await self.leave(name)
        for pool in self._pools.values():
            await in_background(pool.close)
        self._pools.clear()
        await in_background(close_shared_pools)

    def _take_in(self, collection: "_Collection", message: Any) -> None:
        match message:
            case Thing(key, pickled):
                self._things[key] = loads(pickled)
            case RowOf(row_index, row, seed_index):
                collection.rows[row_index] = row
                collection.seed_indices[row_index] = seed_index
            case Begin():
                collection.begin(message)
            case Answer():
                collection.asking.answered(message)
            case Cancel(episode):
                collection.cancel(episode)
            case Forget(row_index):
                collection.rows.pop(row_index, None)
                collection.seed_indices.pop(row_index, None)
                collection.close_lost()

    async def _open(self, collection: "_Collection", opened: Open) -> None:
        limit_threads(opened.max_threads)
        key = (opened.make_env, opened.waiting_together)
        if key not in self._pools:
            pool = Environments(self._things[opened.make_env], opened.waiting_together)
            await check_boxes(pool, await self.place())
            await self._close_unused()
            if self._pools.setdefault(key, pool) is not pool:  # another collection's came first
                await in_background(pool.close)
        agent: Agent = collection.asking
        if opened.agent is not None:
            agent = self._agent_of(opened.agent)
        settings = replace(
            opened.settings,
            rewards=self._things[opened.rewards],
            max_failed_episodes=ANY_NUMBER,
        )
        places = (collection.rows, collection.seed_indices)
        collection.pool = self._pools[key]
        collection.episodes = Episodes(collection.pool, agent, *places, settings, Counts())

    async def _close_unused(self) -> None:
        """Close environments of earlier collections, where there are many kinds."""
        used = {id(each.pool) for each in self._collections.values() if hasattr(each, "pool")}
        for key, pool in [*self._pools.items()][: 1 - MOST_POOLS]:
            if id(pool) not in used:
                del self._pools[key]
                await in_background(pool.close)

    def _agent_of(self, thing: Thing) -> Agent:
        """The agent; the one of the last collection, with its connections, if it is the same."""
        key, agent = self._agent
        if key != thing.key:
            agent = loads(thing.pickled)
            self._agent = thing.key, agent
        return agent


@dataclass
class _Collection:
    """What a worker plays of one collection."""

    rows: dict[int, Any] = field(default_factory=dict)
    seed_indices: dict[int, int] = field(default_factory=dict)
    outbox: list[Any] = field(default_factory=list)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    running: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)
    closing: "set[asyncio.Task[None]]" = field(default_factory=set)
    asking: AskingAgent = field(init=False)
    pool: Environments = field(init=False)
    episodes: Episodes = field(init=False)

    def __post_init__(self) -> None:
        self.asking = AskingAgent(self.say)

    def say(self, message: Any) -> None:
        """Have the driver take a message."""
        self.outbox.append(message)
        self.filled.set()

    async def said(self) -> bytes:
        """All messages, at least one."""
        await self.filled.wait()
        await asyncio.sleep(0)  # what else ends now travels along
        self.filled.clear()
        said, self.outbox = self.outbox, []
        return _pickled(said)

    def begin(self, wanted: Begin) -> None:
        """Play an episode."""
        task = asyncio.create_task(self._play(wanted))
        self.running[wanted.episode] = task
        task.add_done_callback(lambda _: self.running.pop(wanted.episode, None))

    def cancel(self, episode: int) -> None:
        """Give an episode up."""
        if episode in self.running:
            self.running[episode].cancel()

    def close_lost(self) -> None:
        """Close the environments of episodes that were cancelled and have ended."""
        task = asyncio.create_task(self.pool.close_lost())
        self.closing.add(task)
        task.add_done_callback(self.closing.discard)

    async def end(self) -> None:
        """Cancel all episodes, and wait until they have cleaned up."""
        tasks = [*self.running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)

    async def _play(self, wanted: Begin) -> None:
        counts, trajectory, error = Counts(), None, None
        try:
            episodes = replace(self.episodes, counts=counts)
            _saying.set((asyncio.get_running_loop(), self.say))
            trajectory = await episodes.play(wanted.row_index, wanted.member)
        except asyncio.CancelledError:
            pass
        except Exception as raised:
            error = as_raised(raised)
        user_errors = [as_raised(each) for each in counts.user_errors]
        counts.user_errors = []
        self.say(Over(wanted.episode, trajectory, counts, user_errors, error))


def _pickled(said: list[Any]) -> bytes:
    """Messages as bytes; an episode with something that cannot be pickled is an error."""
    try:
        return dumps(said)
    except Exception:
        return dumps([_sendable(message) for message in said])


def _sendable(message: Any) -> Any:
    try:
        dumps(message)
    except Exception as error:
        trajectory: Trajectory = message.trajectory
        problem = TypeError(
            "an episode cannot be sent from its worker to the driver, because something in its row "
            f"or its states cannot be pickled ({error}); row: {trajectory.row!r:.200}"
        )
        return message._replace(trajectory=None, error=as_raised(problem))
    return message


# Where the warnings of an episode go, whichever of its threads logs them.
_saying: ContextVar[tuple[asyncio.AbstractEventLoop, Callable[[Any], None]] | None] = ContextVar(
    "saying", default=None
)


class _ToDriver(logging.Handler):
    """Has the driver log what an episode's code logs here."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record's text."""
        saying = _saying.get()
        if saying is not None:
            loop, say = saying
            said = Said(record.name, record.levelno, record.getMessage())
            loop.call_soon_threadsafe(say, said)
