"""Two real servers as one: who is asked, and what a fault of one of them costs.

A proxy in front of each server holds answers back or cuts them. What kills processes is in
`test_lost_servers.py`.
"""

import asyncio
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence

import pytest
import torch

from gymnast.agents import PolicyWeights, VLLMAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import InfrastructureError, NoServers
from gymnast.types import Completion, Sampling, VersionSpan
from tcp_proxy import Proxy, proxied
from vllm_fixtures import Serve, requests_running

pytestmark = [pytest.mark.vllm]
SHORT = Sampling(seed=1, max_new_tokens=4)


@pytest.fixture(scope="module")
def urls(serve: Serve) -> list[str]:
    return list(serve(servers=2).urls)


@pytest.fixture
def proxies(urls: Sequence[str]) -> Iterator[list[Proxy]]:
    with proxied(urls[0]) as first, proxied(urls[1]) as second:
        yield [first, second]


@pytest.fixture
def agent(proxies: Sequence[Proxy]) -> Iterator[VLLMAgent]:
    agent = VLLMAgent([each.url for each in proxies], lost_after_s=20.0)
    agent.update_weights(policy(), 1)
    yield agent
    agent.close()


def policy(seed: int = 0) -> PolicyWeights:
    return PolicyWeights(tiny_model(seed=seed).to(torch.bfloat16))


def sample_all(
    agent: VLLMAgent, contexts: Sequence[list[int]], sampling: Sampling = SHORT
) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        return await asyncio.gather(*(agent.generate(each, sampling) for each in contexts))

    return asyncio.run(all_of_them())


def prompts(number: int, tokens: int = 130) -> list[list[int]]:
    return [[10 + each] * tokens for each in range(number)]


def busiest(agent: VLLMAgent) -> float:
    """The share of the requests that one server has answered."""
    metrics = agent.metrics()
    both = [metrics["servers/requests/0"], metrics["servers/requests/1"]]
    assert sum(both) == metrics["servers/requests"]
    return max(both) / sum(both)


def prompt_tokens(url: str, kind: str) -> int:
    """How many tokens of prompts a server has looked up, or found, in its prefix cache."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = f"vllm:prefix_cache_{kind}_total"
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(name))


def test_prompts_are_shared_out_and_groups_stay_together(
    agent: VLLMAgent, urls: Sequence[str]
) -> None:
    before = [prompt_tokens(url, "queries") for url in urls]
    sample_all(agent, [prompt for prompt in prompts(8) for _ in range(4)])
    asked = [prompt_tokens(url, "queries") - b for url, b in zip(urls, before, strict=True)]
    # whole groups, so multiples of 4 prompts; neither server has more than two groups more
    assert sum(asked) == 8 * 4 * 130
    assert all(each % (4 * 130) == 0 for each in asked), asked
    assert min(asked) >= 3 * 4 * 130, asked
    assert busiest(agent) <= 5 / 8


def test_a_later_turn_goes_where_its_context_is_cached(
    agent: VLLMAgent, urls: Sequence[str]
) -> None:
    contexts = prompts(6)
    sample_all(agent, contexts)
    before = sum(prompt_tokens(url, "hits") for url in urls)
    later = [[*context, *range(20)] for context in contexts]
    sample_all(agent, later)
    found = sum(prompt_tokens(url, "hits") for url in urls) - before
    assert found >= 6 * 128  # whole blocks of the first turn's context


def test_many_members_of_one_group_do_not_overload_a_server(agent: VLLMAgent) -> None:
    sample_all(agent, [[9] * 130] * 40)
    assert busiest(agent) <= 0.7


def test_an_answer_that_is_cut_is_sampled_elsewhere(
    agent: VLLMAgent, proxies: Sequence[Proxy]
) -> None:
    proxies[0].cut_next_answer()
    answers = sample_all(agent, prompts(12))
    assert [each.versions for each in answers] == [[VersionSpan(0, 4, 1)]] * 12
    metrics = agent.metrics()
    assert metrics["servers/requests"] == 12
    assert metrics["servers/lost"] == metrics["servers/sent_again"] == 1


def test_a_slow_server_is_asked_less(agent: VLLMAgent, proxies: Sequence[Proxy]) -> None:
    proxies[0].delay_s = 1.0

    async def one_after_another(number: int) -> None:
        for turn in range(8):
            await agent.generate([40 + number] * (10 + turn), SHORT)

    async def play() -> None:
        await asyncio.gather(*(one_after_another(number) for number in range(4)))

    asyncio.run(play())
    metrics = agent.metrics()
    assert metrics["servers/requests"] == 32
    assert metrics["servers/lost"] == 0
    assert metrics["servers/requests/0"] < 12


def test_a_server_too_slow_is_lost_and_back_when_it_is_not(
    proxies: Sequence[Proxy], urls: Sequence[str]
) -> None:
    agent = VLLMAgent([each.url for each in proxies], request_timeout_s=3.0)
    agent.update_weights(policy(), 1)
    sample_all(agent, prompts(4))
    proxies[0].delay_s = 5.0
    answers = sample_all(agent, prompts(8, tokens=20))
    assert len(answers) == 8
    assert agent.metrics()["servers/lost"] == 1
    proxies[0].delay_s = 0.0
    agent.update_weights(policy(), 2)  # the lost one gets them when it is back
    wait_until_shared(agent)
    agent.close()


def wait_until_shared(agent: VLLMAgent, timeout_s: float = 60.0) -> None:
    """Wait until both servers answer, and only with the weights of now."""
    until = time.monotonic() + timeout_s
    version = agent.version
    while time.monotonic() < until:
        answers = sample_all(agent, prompts(8, tokens=20))
        assert {each.versions[0].version for each in answers} == {version}
        if busiest(agent) <= 0.75:
            return
    raise AssertionError("one server alone answers")


def test_weights_that_change_while_a_server_comes_back_are_those_it_answers_with(
    agent: VLLMAgent, proxies: Sequence[Proxy]
) -> None:
    proxies[0].cut_next_answer()
    sample_all(agent, prompts(4))
    proxies[0].delay_s = 1.0  # it comes back slowly, each answer to the hand-over being held back
    for version in range(2, 6):
        agent.update_weights(policy(version), version)
        answers = sample_all(agent, prompts(4, tokens=20))
        assert {each.versions[0].version for each in answers} == {version}
    proxies[0].delay_s = 0.0
    wait_until_shared(agent)


def test_a_cancelled_request_leaves_the_server(agent: VLLMAgent, urls: Sequence[str]) -> None:
    async def begin_and_cancel() -> None:
        long = Sampling(max_new_tokens=800)
        tasks = [asyncio.create_task(agent.generate(each, long)) for each in prompts(20)]
        while not any(requests_running(url) for url in urls):
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)

    asyncio.run(begin_and_cancel())
    until = time.monotonic() + 20.0
    while any(requests_running(url) for url in urls) and time.monotonic() < until:
        time.sleep(0.2)
    assert [requests_running(url) for url in urls] == [0, 0]
    assert len(sample_all(agent, prompts(4))) == 4


def test_a_server_restarted_with_old_weights_gets_those_of_now(
    agent: VLLMAgent, proxies: Sequence[Proxy], urls: Sequence[str]
) -> None:
    context = [[5] * 9]
    before = sample_all(agent, context)
    alone = VLLMAgent([proxies[0].url])
    alone.update_weights(policy(), 1)
    proxies[0].lead_to(urls[1])  # as after a restart: a server at the same URL, not of this run
    proxies[1].lead_to(urls[0])
    assert sample_all(alone, context) == before
    assert alone.metrics()["servers/lost"] == 1
    alone.close()


def test_many_event_loops_may_ask(agent: VLLMAgent) -> None:
    found: list[Completion] = []
    threads = [
        threading.Thread(target=lambda: found.extend(sample_all(agent, prompts(3))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12


def test_no_server_in_time_is_one_sentence(proxies: Sequence[Proxy]) -> None:
    agent = VLLMAgent([each.url for each in proxies], lost_after_s=1.0)
    for proxy in proxies:
        proxy.refuses = True
        proxy.cut()
    with pytest.raises(
        NoServers, match=r"none of the vLLM servers answers .* came back within 1 s"
    ):
        sample_all(agent, prompts(30))
    agent.close()


def test_an_answer_without_an_end_is_asked_for_again_a_few_times(
    agent: VLLMAgent, urls: Sequence[str]
) -> None:
    async def aborted() -> str:
        asking = asyncio.create_task(agent.generate([7] * 9, Sampling(max_new_tokens=900)))

        async def abort(url: str) -> None:
            while not asking.done():
                await asyncio.to_thread(abort_all, url)

        await asyncio.gather(*map(abort, urls))
        try:
            await asking
        except InfrastructureError as error:
            return str(error)
        return ""  # it was answered between two of them

    told = next(filter(None, (asyncio.run(aborted()) for _ in range(10))))
    assert re.search("asked for 5 times in vain: .*abort", told)
    assert agent.metrics()["servers/lost"] == 0


def abort_all(url: str) -> None:
    request = urllib.request.Request(f"{url}/abort_requests", json.dumps({}).encode())
    with urllib.request.urlopen(request):
        pass
