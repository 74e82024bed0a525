"""Every agent that continues contexts, and what each can do; for `test_agent_contract.py`."""

import asyncio
import pickle
import re
import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from asked_on_ray import asked_on_a_worker
from gymnast.agents import Agent, PolicyWeights, ScriptedAgent, TransformersAgent, VLLMAgent
from gymnast.trainers.ahead.watching import WatchedAgent
from gymnast.trainers.cluster.asking import AskingAgent
from gymnast.trainers.rollouts.rounds import Rounds
from gymnast.types import Completion, Sampling
from process_agent import ProcessAgent

Request = tuple[list[int], Sampling]
Fixture = Callable[[str], Any]  # the value of a fixture by its name


class Make(Protocol):
    """A function that makes an agent."""

    __name__: str

    def __call__(self, fixture: Fixture, /) -> AbstractAsyncContextManager[Agent]: ...


ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def in_this_process(fixture: Fixture) -> AsyncIterator[Agent]:
    agent = TransformersAgent(fixture("model"))
    with agent.awake():
        yield agent


@asynccontextmanager
async def with_places_for_two(fixture: Fixture) -> AsyncIterator[Agent]:
    agent = TransformersAgent(fixture("model"), max_batch=2, prefill_tokens=3)
    with agent.awake():
        yield agent


def paged_agent(model: Any) -> TransformersAgent:
    """Return an agent that samples over pages, on any device."""
    return TransformersAgent(
        model, max_batch=3, prefill_tokens=16, kv_budget_bytes=2**21, executor="pages"
    )


@asynccontextmanager
async def over_pages(fixture: Fixture) -> AsyncIterator[Agent]:
    agent = paged_agent(fixture("short_model"))
    with agent.awake():
        yield agent


@asynccontextmanager
async def with_4_bit_weights(fixture: Fixture) -> AsyncIterator[Agent]:
    agent = TransformersAgent(fixture("quantized_model"), max_batch=3)
    with agent.awake():
        yield agent


@asynccontextmanager
async def with_4_bit_weights_over_pages(fixture: Fixture) -> AsyncIterator[Agent]:
    agent = paged_agent(fixture("quantized_model"))
    with agent.awake():
        yield agent


@asynccontextmanager
async def with_states(fixture: Fixture) -> AsyncIterator[Agent]:
    agent = TransformersAgent(fixture("recurrent_model"))
    assert agent.path == "states"
    with agent.awake():
        yield agent


@asynccontextmanager
async def on_a_vllm_server(fixture: Fixture) -> AsyncIterator[Agent]:
    with closing(VLLMAgent([fixture("vllm_float32_url")])) as agent:
        agent.update_weights(PolicyWeights(fixture("model")), 0)
        yield agent


@asynccontextmanager
async def copied_for_a_worker(fixture: Fixture) -> AsyncIterator[Agent]:
    """As a Ray worker has it, which asks the server itself."""
    async with on_a_vllm_server(fixture) as agent:
        with closing(pickle.loads(pickle.dumps(agent))) as copy:
            yield copy


@asynccontextmanager
async def asked_by_a_worker(fixture: Fixture) -> AsyncIterator[Agent]:
    """An agent that cannot be sent, as a Ray worker has it."""
    async with (
        in_this_process(fixture) as agent,
        asked_on_a_worker(agent, fixture("asking_worker")) as asked,
    ):
        yield asked


@asynccontextmanager
async def in_rounds(fixture: Fixture) -> AsyncIterator[Agent]:
    async with in_this_process(fixture) as agent:
        rounds = Rounds(agent)
        yield rounds
        await rounds.close()


@asynccontextmanager
async def watched(fixture: Fixture) -> AsyncIterator[Agent]:
    async with in_this_process(fixture) as agent:
        yield WatchedAgent(agent, version=0)


@asynccontextmanager
async def in_another_process(fixture: Fixture) -> AsyncIterator[Agent]:
    agent = ProcessAgent(None, address=fixture("server").address)
    with agent.awake():
        yield agent


@asynccontextmanager
async def of_the_docs(fixture: Fixture) -> AsyncIterator[Agent]:
    """The agent of docs/agents.md, which draws from torch's own generator."""
    names: dict[str, Any] = {}
    page = (ROOT / "docs/agents.md").read_text()
    exec(re.findall(r"```python\n(# copy_agent.py\n.*?)```", page, re.DOTALL)[0], names)
    agent = names["Copy"](fixture("model"), None)
    agent.update_weights(PolicyWeights(fixture("model")), 0)
    yield agent


@asynccontextmanager
async def of_the_protocol(fixture: Fixture) -> AsyncIterator[Agent]:
    """The parrot in the docstring of the protocol."""
    names: dict[str, Any] = {"Completion": Completion}
    _, _, code = (Agent.__doc__ or "").partition("always says the same:")
    exec(textwrap.dedent(code), names)
    yield names["Parrot"]()


@asynccontextmanager
async def with_a_script(fixture: Fixture) -> AsyncIterator[Agent]:
    yield ScriptedAgent([list(range(20, 28)), [30, 31]])


@asynccontextmanager
async def with_a_function(fixture: Fixture) -> AsyncIterator[Agent]:
    yield ScriptedAgent(lambda context: [sum(context) % 90 + place for place in range(8)])


# --- What they can do of what the protocol leaves open

STOPS = "ends at a stop id, wherever it comes"
SAMPLES = "samples from a model, and says how likely each token was"
SEEDED = "draws by the seed of the request"
REFUSES = "refuses a context that is empty, or leaves no room for a token"
ALONE = "a request that is refused is of no concern to others"
TOGETHER = "takes several requests by one call"
CLOSES = "refuses to sample once it is closed"
ENGINE = {STOPS, SAMPLES, SEEDED, REFUSES, ALONE}


class Kind(NamedTuple):
    """An agent of the table."""

    make: Make
    of: type[Any] | None  # the class of the repository that it shows
    can: frozenset[str]
    model: str = "model"  # the fixture of the model that it samples from
    marks: Sequence[pytest.MarkDecorator] = ()


def kind(make: Make, of: type[Any] | None, can: set[str], **others: Any) -> Kind:
    return Kind(make, of, frozenset(can), **others)


VLLM, RAY = [pytest.mark.vllm], [pytest.mark.ray]
AGENTS = [
    kind(in_this_process, TransformersAgent, ENGINE | {TOGETHER}),
    kind(with_places_for_two, TransformersAgent, ENGINE | {TOGETHER}),
    kind(over_pages, TransformersAgent, ENGINE | {TOGETHER}, model="short_model"),
    kind(with_4_bit_weights, TransformersAgent, ENGINE | {TOGETHER}, model="quantized_model"),
    kind(
        with_4_bit_weights_over_pages,
        TransformersAgent,
        ENGINE | {TOGETHER},
        model="quantized_model",
    ),
    kind(with_states, TransformersAgent, ENGINE | {TOGETHER}, model="recurrent_model"),
    kind(on_a_vllm_server, VLLMAgent, ENGINE | {CLOSES}, marks=VLLM),
    kind(copied_for_a_worker, VLLMAgent, ENGINE | {CLOSES}, marks=VLLM),
    kind(asked_by_a_worker, AskingAgent, ENGINE, marks=RAY),
    kind(in_rounds, Rounds, ENGINE - {ALONE}),  # all of a round are answered together
    kind(watched, WatchedAgent, ENGINE),
    kind(in_another_process, None, {STOPS, SAMPLES, SEEDED}),
    kind(of_the_docs, None, {STOPS, SAMPLES}),
    kind(of_the_protocol, None, set()),
    kind(with_a_script, ScriptedAgent, set()),
    kind(with_a_function, ScriptedAgent, set()),
]
IN_MESSAGES = {"ChatAgent"}


def of_every_agent(*abilities: str) -> pytest.MarkDecorator:
    """A test that every agent passes which can do certain things."""
    able = [each for each in AGENTS if each.can.issuperset(abilities)]
    return pytest.mark.parametrize(
        "kind",
        [pytest.param(each, marks=each.marks, id=each.make.__name__) for each in able],
    )


# --- Asking them


def begin(agent: Agent, *requests: Request) -> list["asyncio.Task[Completion]"]:
    """Ask for several completions at once."""
    if isinstance(agent, Rounds):
        agent.expect(len(requests))
    return [asyncio.ensure_future(_generate(agent, *each)) for each in requests]


async def _generate(agent: Agent, context_ids: list[int], sampling: Sampling) -> Completion:
    return await agent.generate(context_ids, sampling)


async def ask(agent: Agent, *requests: Request) -> list[Completion]:
    return await asyncio.gather(*begin(agent, *requests))


async def ask_alone(agent: Agent, *requests: Request) -> list[Completion]:
    return [each for request in requests for each in await ask(agent, request)]


def said(completions: Sequence[Completion]) -> list[tuple[list[int], str]]:
    return [(each.ids, each.stop) for each in completions]
