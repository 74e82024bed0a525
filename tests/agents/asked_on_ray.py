"""An agent of this process as code on a Ray worker sees it: through the messages of the cluster."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

from gymnast.agents import Agent
from gymnast.trainers.cluster.carrying import dumps
from gymnast.trainers.cluster.cluster import Cluster, import_ray
from gymnast.trainers.cluster.link import Link
from gymnast.trainers.cluster.starting import Started
from gymnast.trainers.cluster.worker import Worker
from gymnast.types import Completion, Sampling


@contextmanager
def worker_that_asks(address: str) -> Iterator[Any]:
    """A worker of a Ray cluster whose caller asks the agent, in place of an episode."""

    class Asker(Worker):  # within a function, so that Ray sends it whole
        async def generate(self, name: str, context_ids: list[int], sampling: Sampling) -> Any:
            return await self._collections[name].asking.generate(context_ids, sampling)

    with closing(Cluster(address, cpus=1)) as cluster:
        cluster.open()
        actor = import_ray().remote(Asker).options(num_cpus=1, max_concurrency=1000).remote()
        yield actor
        import_ray().kill(actor)


@asynccontextmanager
async def asked_on_a_worker(agent: Agent, actor: Any) -> AsyncIterator["AskedThere"]:
    """An agent that asks a worker, which asks `agent` here.

    Args:
        agent: That stays in this process.
        actor: Of `worker_that_asks`.
    """
    name, lost = uuid.uuid4().hex, list[Exception]()
    await actor.post.remote(name, dumps([]))
    link = Link(Started(actor, await actor.place.remote()), name, agent, lost.append)
    yield AskedThere(actor, name)
    await link.close()
    assert not lost


class AskedThere:
    """Samples by asking a worker to ask.

    Args:
        actor: The worker.
        name: Of its collection.
    """

    def __init__(self, actor: Any, name: str) -> None:
        self._actor, self._name = actor, name

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """See `gymnast.agents.Agent`."""
        asked = self._actor.generate.remote(self._name, context_ids, sampling)
        try:
            completion: Completion = await asked
        except asyncio.CancelledError:
            import_ray().cancel(asked)
            raise
        return completion
