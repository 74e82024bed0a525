"""Copies of VLLMAgent in other processes, and answers from other weights than the run's."""

import asyncio
import gc
import multiprocessing
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gymnast.agents import PolicyWeights, VLLMAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import UsageError
from gymnast.types import Completion, Sampling, VersionSpan

pytestmark = [pytest.mark.vllm]
CONTEXT = [5, 6, 7, 8]
GREEDY = Sampling(temperature=0.0, max_new_tokens=6)


@pytest.fixture(scope="module")
def weights() -> PolicyWeights:
    return PolicyWeights(tiny_model().to(torch.bfloat16))


@pytest.fixture
def agent(vllm_url: str, weights: PolicyWeights) -> Iterator[VLLMAgent]:
    agent = VLLMAgent([vllm_url])
    agent.update_weights(weights, 1)
    yield agent
    agent.close()


def sample(agent: VLLMAgent) -> Completion:
    return asyncio.run(agent.generate(CONTEXT, GREEDY))


def sample_elsewhere(pickled: bytes, answers: Any) -> None:
    agent: VLLMAgent = pickle.loads(pickled)
    answers.put(sample(agent))
    agent.close()


def test_a_copy_in_another_process_samples_from_the_same_weights(agent: VLLMAgent) -> None:
    spawning = multiprocessing.get_context("spawn")
    answers = spawning.SimpleQueue()
    process = spawning.Process(target=sample_elsewhere, args=(pickle.dumps(agent), answers))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert answers.get() == sample(agent)


def test_a_copy_learns_of_new_weights_by_the_answers(
    agent: VLLMAgent, weights: PolicyWeights
) -> None:
    copy: VLLMAgent = pickle.loads(pickle.dumps(agent))
    assert sample(copy).versions == [VersionSpan(0, 6, 1)]
    with pytest.raises(UsageError, match="is a copy of one in another process, and only samples"):
        copy.update_weights(weights, 2)
    agent.update_weights(weights, 2)
    assert sample(copy).versions == [VersionSpan(0, 6, 2)]
    copy.close()
    assert sample(agent).versions == [VersionSpan(0, 6, 2)]  # the servers know nothing of copies


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_connects_by_itself_and_leaves_the_weights_where_they_are(agent: VLLMAgent) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if sample(agent) and threading.active_count() > 1 else 2
            agent.close()
        finally:
            sys.stdout.flush()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sample(agent).versions == [VersionSpan(0, 6, 1)]
    agent.update_weights(PolicyWeights(tiny_model().to(torch.bfloat16)), 2)


def test_a_server_that_another_run_took_gets_the_weights_back(
    agent: VLLMAgent, vllm_url: str
) -> None:
    before = sample(agent)
    other = VLLMAgent([vllm_url])
    other.update_weights(PolicyWeights(tiny_model(seed=3).to(torch.bfloat16)), 1)
    other.close()
    assert sample(agent) == before
    assert agent.metrics()["servers/lost"] == 1


def test_garbage_leaves_nothing_open(vllm_url: str, weights: PolicyWeights) -> None:
    threads = set(threading.enumerate())
    agent = VLLMAgent([vllm_url])
    agent.update_weights(weights, 1)
    sample(agent)
    assert set(threading.enumerate()) > threads
    gone = weakref.ref(agent)
    del agent
    gc.collect()  # a ResourceWarning is an error
    assert gone() is None
    assert set(threading.enumerate()) == threads
