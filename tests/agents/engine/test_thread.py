"""The engine's thread: not in the way of others, and gone when its agent is."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref

import pytest

from gymnast.agents import TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Sampling

TEAMS = """
import asyncio, os, threading, torch
from gymnast.agents import TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Sampling

def helpers():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

torch.set_num_threads(2)
before = helpers()
agent = TransformersAgent(tiny_model())
torch.ones(500, 500) @ torch.ones(500, 500)  # as training does, over two cores
print("after training", helpers() - before)

async def sample():
    completion = agent.generate(list(range(300)), Sampling(max_new_tokens=200))
    task = asyncio.create_task(completion)
    most = 0
    while not task.done():
        await asyncio.sleep(0.001)
        most = max(most, helpers() - before)
    print("while sampling", most)

asyncio.run(sample())
agent.wait_idle()
print("at rest", helpers() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_of_those_who_compute_in_turn_one_has_openmp_threads_at_a_time() -> None:
    found = subprocess.run(
        [sys.executable, "-c", TEAMS], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    counts = [int(line.rpartition(" ")[2]) for line in found.stdout.splitlines()]
    trained, sampling, rest = counts
    if trained == 0:
        pytest.skip("PyTorch computes without OpenMP threads here")
    assert sampling == trained, "the trainer's were let go when the engine's came"
    assert rest < trained, "the engine's were let go when it came to rest"


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "gymnast-engine"}


def test_an_agent_that_nobody_holds_leaves_neither_thread_nor_model() -> None:
    others = engine_threads()
    agent = TransformersAgent(tiny_model())
    asyncio.run(agent.generate([1, 2, 3], Sampling(max_new_tokens=2)))
    (own,) = engine_threads() - others
    model = weakref.ref(agent.model)
    del agent
    gc.collect()
    assert not own.is_alive()
    assert model() is None


def test_requests_that_came_while_it_was_held_are_waited_for() -> None:
    agent = TransformersAgent(tiny_model())

    async def play() -> None:
        with agent.awake():
            with agent.learning():
                asked = asyncio.ensure_future(agent.generate([1, 2], Sampling(max_new_tokens=100)))
                await asyncio.sleep(0.1)
                agent.wait_idle()  # held, so that it uses no model
                assert agent.tokens_pushed == 0
            await asyncio.to_thread(agent.wait_idle)
            assert agent.tokens_pushed == 2 + 99
            assert len((await asked).ids) == 100

    asyncio.run(play())
