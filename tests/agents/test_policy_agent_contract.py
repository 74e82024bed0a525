"""What every agent that is trained keeps to, whether or not it has a model in this process.

How any agent samples is in `test_agent_contract.py`. A new agent joins by a line in AGENTS.
"""

import asyncio
import copy
import inspect
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from gymnast.agents import PolicyAgent, PolicyWeights, TransformersAgent, VLLMAgent, load_model
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.agents.policy import allows_staleness, learning
from gymnast.errors import UsageError
from gymnast.types import Completion, Sampling, VersionSpan
from process_agent import ProcessAgent, Server
from vllm_fixtures import Recorded, computed_tokens

GREEDY = Sampling(temperature=0.0, max_new_tokens=8)
PAGE = Path(__file__).parents[2] / "docs/agents.md"
PAGE_CODE = re.findall(r"```python\n(# copy_agent.py\n.*?)```", PAGE.read_text(), re.DOTALL)[0]
CONTEXTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]


class Trained(NamedTuple):
    """A model that is trained, and an agent that samples from it."""

    model: Any
    agent: PolicyAgent
    work: Callable[[], int]  # grows while the agent computes


Fixture = Callable[[str], Any]  # the value of a fixture by its name


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def sharing(model: Any, fixture: Fixture) -> tuple[PolicyAgent, Callable[[], int]]:
    agent = TransformersAgent(model)
    return agent, lambda: agent.tokens_pushed


SMALL: Any = {"kv_budget_bytes": 2**23, "prefill_tokens": 64}


def sharing_over_pages(model: Any, fixture: Fixture) -> tuple[PolicyAgent, Callable[[], int]]:
    agent = TransformersAgent(model, executor="pages", **SMALL)
    return agent, lambda: agent.tokens_pushed


def with_a_copy_over_pages(model: Any, fixture: Fixture) -> tuple[PolicyAgent, Callable[[], int]]:
    agent = TransformersAgent(model, device="cpu", executor="pages", **SMALL)
    return agent, lambda: agent.tokens_pushed


def copying(model: Any, fixture: Fixture) -> tuple[PolicyAgent, Callable[[], int]]:
    agent = TransformersAgent(tiny_model(seed=1))
    return agent, lambda: agent.tokens_pushed


def on_a_device_of_its_own(model: Any, fixture: Fixture) -> tuple[PolicyAgent, Callable[[], int]]:
    agent = TransformersAgent(model, device="cpu")
    return agent, lambda: agent.tokens_pushed


def in_another_process(model: Any, fixture: Fixture) -> tuple[PolicyAgent, Callable[[], int]]:
    server = fixture("server")
    return ProcessAgent(model, address=server.address), lambda: len(server.events())


def on_a_vllm_server(model: Any, fixture: Fixture) -> tuple[PolicyAgent, Callable[[], int]]:
    url = fixture("vllm_float32_url")
    before = computed_tokens(url)
    return VLLMAgent([url]), lambda: computed_tokens(url) - before


def on_a_vllm_server_that_sleeps(
    model: Any, fixture: Fixture
) -> tuple[PolicyAgent, Callable[[], int]]:
    server: Recorded = fixture("sleeping_server")
    agent = VLLMAgent([server.url], share_device=True)
    before = computed_tokens(server.url)
    return agent, lambda: computed_tokens(server.url) - before


def of_the_docs(model: Any, fixture: Fixture) -> tuple[PolicyAgent, Callable[[], int]]:
    """The agent of docs/agents.md."""
    names: dict[str, Any] = {}
    exec(PAGE_CODE, names)
    agent = names["Copy"](model, None)
    calls: list[int] = []
    agent.model.register_forward_hook(lambda *_: calls.append(1))
    return agent, lambda: len(calls)


WITHOUT_SERVERS = [
    sharing,
    sharing_over_pages,
    copying,
    on_a_device_of_its_own,
    with_a_copy_over_pages,
    in_another_process,
    of_the_docs,
]
TAKE_TURNS = [sharing, sharing_over_pages]  # with the learner, by `learning`
AGENTS = [
    *WITHOUT_SERVERS,
    pytest.param(on_a_vllm_server, marks=pytest.mark.vllm),
    pytest.param(on_a_vllm_server_that_sleeps, marks=pytest.mark.vllm),
]


@pytest.fixture(params=AGENTS, ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Trained]]:
    made: list[Trained] = []

    def make(model: Any) -> Trained:
        made.append(Trained(model, *request.param(model, request.getfixturevalue)))
        return made[-1]

    yield make
    for trained in made:
        getattr(trained.agent, "close", int)()


@pytest.fixture
def trained(make: Callable[[Any], Trained]) -> Trained:
    return make(tiny_model())


def change(model: Any, seed: int = 0) -> None:
    """What an update does to the weights that are trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.05 * torch.randn(weight.shape, generator=generator))


def sample(agent: PolicyAgent, *samplings: Sampling) -> list[Completion]:
    async def together() -> list[Completion]:
        asked = zip(CONTEXTS, samplings, strict=False)
        return await asyncio.gather(*(agent.generate(ids, sampling) for ids, sampling in asked))

    with agent.awake():
        return asyncio.run(together())


def greedy(agent: PolicyAgent) -> list[list[int]]:
    return [completion.ids for completion in sample(agent, GREEDY, GREEDY, GREEDY)]


@torch.no_grad()
def alone(model: Any) -> list[list[int]]:
    """The most likely tokens of each context, by the model's own forward pass."""
    found = []
    for context in CONTEXTS:
        ids = list(context)
        while len(ids) < len(context) + GREEDY.max_new_tokens:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        found.append(ids[len(context) :])
    return found


def test_it_samples_from_the_weights_it_was_given_last(trained: Trained) -> None:
    seen = []
    for version in range(3):
        trained.agent.update_weights(PolicyWeights(trained.model), version)
        assert greedy(trained.agent) == alone(trained.model)
        seen.append(alone(trained.model))
        change(trained.model, version)
    assert seen[0] != seen[1] != seen[2]  # or the weights would not tell


def test_every_completion_is_tagged_with_the_version_of_the_weights(trained: Trained) -> None:
    for version in (3, 4):
        trained.agent.update_weights(PolicyWeights(trained.model), version)
        for completion in sample(trained.agent, GREEDY, GREEDY):
            assert list(completion.versions) == [VersionSpan(0, len(completion.ids), version)]


def test_no_completion_outgrows_the_context_length(trained: Trained) -> None:
    trained.agent.update_weights(PolicyWeights(trained.model), 0)
    longest = trained.agent.context_length
    assert longest == trained.model.config.max_position_embeddings

    async def at_the_end() -> Completion:
        return await trained.agent.generate([5] * (longest - 2), GREEDY)

    with trained.agent.awake():
        assert len(asyncio.run(at_the_end()).ids) == 2


def test_nothing_computes_while_it_rests_after_requests_that_were_cancelled(
    trained: Trained,
) -> None:
    trained.agent.update_weights(PolicyWeights(trained.model), 0)
    endless = Sampling(max_new_tokens=40)

    async def give_up() -> None:
        asked = [asyncio.ensure_future(trained.agent.generate(ids, endless)) for ids in CONTEXTS]
        while not trained.work():
            await asyncio.sleep(0.01)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    with trained.agent.awake():
        asyncio.run(give_up())
    # A server, on a device of its own, hears of it later.
    until = time.monotonic() + (20.0 if isinstance(trained.agent, VLLMAgent) else 0.0)
    while True:
        before = trained.work()
        time.sleep(0.2)
        if trained.work() == before or time.monotonic() > until:
            break
    assert trained.work() == before > 0


def test_the_trained_model_stays_as_it_is(trained: Trained) -> None:
    before = copy.deepcopy(trained.model.state_dict())
    trained.agent.update_weights(PolicyWeights(trained.model), 0)
    greedy(trained.agent)
    after = trained.model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert all(weight.requires_grad for weight in trained.model.parameters())


def test_adapters_are_sampled_with_and_stay_adapters(make: Callable[[Any], Trained]) -> None:
    model, _ = load_model("tiny:", lora={"rank": 4}, tokenizer=tiny_tokenizer())
    trained = make(model)
    change(model)
    before = copy.deepcopy(model.state_dict())
    trained.agent.update_weights(PolicyWeights(model), 1)
    assert greedy(trained.agent) == alone(model)
    after = model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


@pytest.mark.parametrize("make", WITHOUT_SERVERS, indirect=True, ids=lambda make: make.__name__)
def test_4_bit_weights_are_sampled_with_and_stay(make: Callable[[Any], Trained]) -> None:
    """By agents that share the model or copy it, and by those that get its weights merged."""
    pytest.importorskip("bitsandbytes")
    model, _ = load_model("tiny:", lora={"rank": 4}, quantization="nf4", tokenizer=tiny_tokenizer())
    trained = make(model)
    before = copy.deepcopy(model.state_dict())
    for version in range(2):
        change(model, version)
        trained.agent.update_weights(PolicyWeights(model), version)
        assert greedy(trained.agent) == alone(model)
    codes = {name: each for name, each in model.state_dict().items() if each.dtype == torch.uint8}
    assert codes and all(torch.equal(each, before[name]) for name, each in codes.items())


def test_blocks_in_which_it_is_awake_may_be_nested(trained: Trained) -> None:
    trained.agent.update_weights(PolicyWeights(trained.model), 0)
    with trained.agent.awake():
        before = greedy(trained.agent)
        assert greedy(trained.agent) == before == alone(trained.model)


def test_new_weights_are_taken_while_requests_are_under_way(trained: Trained) -> None:
    """By agents that keep requests while the model is trained alone."""
    agent, model = trained.agent, trained.model
    if not allows_staleness(agent):
        pytest.skip("rests while the model is trained")

    def take_weights() -> list[list[int]]:
        with learning(agent):
            change(model)
            agent.update_weights(PolicyWeights(model), 1)
            return alone(model)

    long = Sampling(max_new_tokens=400, seed=0)
    agent.update_weights(PolicyWeights(model), 0)

    async def play() -> list[Completion]:
        asked = [asyncio.ensure_future(agent.generate(ids, long)) for ids in CONTEXTS]
        while trained.work() < 60:
            await asyncio.sleep(0.001)
        expected = await asyncio.to_thread(take_weights)
        beside = [await agent.generate(ids, GREEDY) for ids in CONTEXTS]
        assert [each.ids for each in beside] == expected  # not from what the others computed
        return await asyncio.gather(*asked)

    with agent.awake():
        completions = asyncio.run(play())
        for completion in completions:
            *first, last = completion.versions
            if isinstance(agent, VLLMAgent):  # on a CPU, where requests end with the old weights
                assert (first, last) == ([], VersionSpan(0, 400, 0))
            else:  # they go on from the new ones
                amid = last.start
                assert (first, last) == ([VersionSpan(0, amid, 0)], VersionSpan(amid, 400, 1))
                assert 0 < amid < 400
        assert greedy(agent) == alone(model)


@pytest.mark.parametrize("make", TAKE_TURNS, indirect=True, ids=lambda make: make.__name__)
@pytest.mark.parametrize("adapted", [False, True])
def test_requests_wait_while_the_learner_has_the_model(
    make: Callable[[Any], Trained], adapted: bool
) -> None:
    model = tiny_model()
    if adapted:
        model, _ = load_model("tiny:", lora={"rank": 4}, tokenizer=tiny_tokenizer())
    trained = make(model)
    agent = trained.agent
    agent.update_weights(PolicyWeights(model), 0)
    before = copy.deepcopy(model.state_dict())

    def learn() -> None:
        with learning(agent):
            computed = trained.work()
            assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
            time.sleep(0.1)
            change(model)
            agent.update_weights(PolicyWeights(model), 1)
            after = copy.deepcopy(model.state_dict())
            time.sleep(0.1)
            assert trained.work() == computed
            assert greedy(agent) == alone(model)  # in a block of `awake`, that samples meanwhile
            computed = trained.work()
            time.sleep(0.1)
            assert trained.work() == computed
            assert all(torch.equal(w, after[name]) for name, w in model.state_dict().items())

    async def play() -> list[Completion]:
        long = Sampling(max_new_tokens=400, seed=0)
        asked = [asyncio.ensure_future(agent.generate(ids, long)) for ids in CONTEXTS]
        while trained.work() < 60:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(learn)
        return await asyncio.gather(*asked)

    with agent.awake():
        completions = asyncio.run(play())
        assert [{v for _, _, v in each.versions} for each in completions] == [{0, 1}] * 3
    assert greedy(agent) == alone(model)


@pytest.mark.parametrize("make", TAKE_TURNS, indirect=True, ids=lambda make: make.__name__)
def test_requests_made_while_the_learner_works_are_sampled_later(
    make: Callable[[Any], Trained],
) -> None:
    trained = make(tiny_model())
    agent, model = trained.agent, trained.model
    agent.update_weights(PolicyWeights(model), 0)

    async def play() -> Completion:
        block = learning(agent)
        block.__enter__()
        asked = asyncio.ensure_future(agent.generate(CONTEXTS[0], GREEDY))
        await asyncio.sleep(0.1)
        change(model)
        agent.update_weights(PolicyWeights(model), 1)
        assert not trained.work() and not asked.done()
        block.__exit__(None, None, None)
        return await asked

    with agent.awake():
        completion = asyncio.run(play())
    assert list(completion.versions) == [VersionSpan(0, 8, 1)]
    assert completion.ids == alone(model)[0]


@pytest.mark.parametrize("make", TAKE_TURNS, indirect=True, ids=lambda make: make.__name__)
def test_outside_of_awake_the_learner_has_the_model_anyway(make: Callable[[Any], Trained]) -> None:
    trained = make(tiny_model())
    with learning(trained.agent):
        trained.agent.update_weights(PolicyWeights(trained.model), 0)
        assert greedy(trained.agent) == alone(trained.model)
    assert greedy(trained.agent) == alone(trained.model)


# A vLLM server ends of them, so that test has one of its own: vllm/weights/test_handover.py.
@pytest.mark.parametrize("make", WITHOUT_SERVERS, indirect=True, ids=lambda make: make.__name__)
def test_weights_of_another_shape_are_refused(make: Callable[[Any], Trained]) -> None:
    trained = make(tiny_model())
    with pytest.raises((UsageError, RuntimeError)):
        trained.agent.update_weights(PolicyWeights(tiny_model(vocab_size=99)), 1)
        with trained.agent.awake():
            pass  # an agent that shares the learner's device takes them here


def test_the_docs_and_the_protocol_show_the_same_agent() -> None:
    shown = inspect.cleandoc(PolicyAgent.__doc__ or "")
    example = PAGE_CODE.partition("class Copy")[2]
    assert example.strip() in "\n".join(line.removeprefix("    ") for line in shown.splitlines())
