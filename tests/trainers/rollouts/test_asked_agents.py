"""Hooks that ask the agent that plays the episode, and so have it play a user or a critic too."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest

from chat_fixtures import Endpoint
from chat_fixtures import says as answers
from gymnast.agents import ChatAgent, ScriptedAgent
from gymnast.envs import Environment, Renderer, check_env
from gymnast.errors import UserCodeError
from gymnast.trainers import collect, rollout
from gymnast.types import Completion, Sampling, StopReason, Trajectory


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Support(Environment):
    """A customer whom the agent itself plays, and its clerk, whom the episode trains."""

    async def respond(self, message: Any) -> Any:
        if "solved" in message["content"]:
            return None
        swapped = {"user": "assistant", "assistant": "user"}
        talk: list[Any] = [
            {"role": swapped[each["role"]], "content": each["content"]}
            for each in [*self.messages, message]
        ]
        said = await self.ask_agent([{"role": "system", "content": "You are a customer."}, *talk])
        return [{"role": "user", "content": said["content"]}]


class Unscored(Support):
    def reward(self, episode: Any) -> float:
        return 0.0


def test_the_agent_itself_may_play_the_user(renderer: Renderer) -> None:
    def speak(context: list[int]) -> list[int]:
        text = renderer.decode(context)
        if "You are a customer." in text:
            return renderer.encode(says(f"It does not work, {text.count('Try')}."))
        return renderer.encode(says("It is solved." if "work, 2" in text else "Try again."))

    env = Support(renderer)
    played = asyncio.run(rollout(env, ScriptedAgent(speak), {"prompt": "Help!"}))
    said = [message["content"] for message in played.messages]
    assert said[1:] == [
        *("Try again.", "It does not work, 1.", "Try again.", "It does not work, 2."),
        "It is solved.",
    ]
    assert len(played.turns) == 3 and "customer" not in renderer.decode(played.ids)
    assert sum(played.action_mask) == sum(len(renderer.encode(says(t))) for t in said[1::2])
    report = check_env(Unscored(renderer, rows=[{"prompt": "Help!"}], max_turns=3))
    assert report.rewards  # a stand-in for the agent says "Go on."
    with pytest.raises(UserCodeError, match=r"Support\.ask_agent: no agent plays this episode"):
        env.reset(options={"row": {"prompt": "Help!"}})
        env.step(renderer.encode(says("Try again.")))


def test_a_model_behind_an_endpoint_may_play_both_sides(endpoint: Endpoint) -> None:
    endpoint.answers(answers("Try again."), answers("It works!"), answers("So it is solved."))
    agent = ChatAgent("m", base_url=endpoint.url, api_key_env=None)
    played = asyncio.run(rollout(Support(), agent, {"prompt": "Help!"}))
    assert [message["content"] for message in played.messages][2:] == [
        "It works!",
        "So it is solved.",
    ]
    roles = [[m["role"] for m in request["messages"]] for request in endpoint.requests]
    assert roles[1] == ["system", "assistant", "user"]
    assert played.metrics["chat/requests"] == 3


@pytest.fixture
def both(renderer: Renderer) -> ScriptedAgent:
    """An agent that plays the clerk and the customer."""

    def speak(context: list[int]) -> list[int]:
        text = renderer.decode(context)
        if "You are a customer." in text:
            return renderer.encode(says(f"It does not work, {text.count('Try')}."))
        return renderer.encode(says("It is solved." if "work, 2" in text else "Try again."))

    return ScriptedAgent(speak)


def test_in_wrappers_the_agent_is_asked_where_it_is(
    renderer: Renderer, both: ScriptedAgent
) -> None:
    loops = set()

    class Here:
        async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
            loops.add(asyncio.get_running_loop())
            return await both.generate(context_ids, sampling)

    row = {"prompt": "Help!"}
    plain = asyncio.run(rollout(Support(renderer), both, row))
    wrapped = gymnasium.wrappers.TransformReward(
        gymnasium.wrappers.TimeLimit(Support(renderer), 9), lambda reward: reward
    )
    played = asyncio.run(rollout(wrapped, Here(), row))
    assert (played.ids, played.action_mask) == (plain.ids, plain.action_mask)
    assert len(played.turns) == 3 and len(loops) == 1


class Council(Environment):
    """Several critics speak at once, each as often as the row says."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.heard: list[str] = []

    async def respond(self, message: Any) -> Any:
        await asyncio.sleep(random.random() * 0.02)
        asked: list[Any] = [
            [{"role": "user", "content": f"{i}: {message['content']}"}] for i in range(3)
        ]
        said = await asyncio.gather(*map(self.ask_agent, asked[: self.row["critics"]]))
        self.heard += [each["content"] for each in said]
        return [{"role": "user", "content": f"{len(self.heard)}?"}]

    def reward(self, episode: Any) -> float:
        return float(len(set(self.heard)))


def test_rounds_count_one_request_of_each_episode_at_a_time(renderer: Renderer) -> None:
    """Else some requests of an episode would fill the places of others, as the clock has it."""
    rounds: list[list[tuple[list[int], int | None]]] = []

    class Recording(ScriptedAgent):
        async def generate_all(self, requests: Sequence[Any]) -> list[Completion]:
            rounds.append([(list(ids), sampling.seed) for ids, sampling in requests])
            return [await self.generate(*request) for request in requests]

    rows = [{"prompt": f"Say {n}.", "critics": n % 4} for n in range(4)]

    def played() -> tuple[list[Trajectory], Any]:
        rounds.clear()
        playing = collect(
            lambda: Council(renderer, max_turns=2),
            Recording(lambda context: renderer.encode(says(f"{len(context)}."))),
            rows,
            group_size=2,
            sampling=Sampling(),
            deterministic=True,
        )
        return asyncio.run(playing).trajectories, list(rounds)

    (first, in_rounds), (second, again) = played(), played()
    assert in_rounds == again
    assert [each.ids for each in first] == [each.ids for each in second]
    assert [len(each) for each in in_rounds][:2] == [8, 8]  # none has ended by then
    assert all(len({seed for _, seed in each}) == len(each) for each in in_rounds)


def test_a_conversation_that_does_not_fit_the_agent_ends_the_episode(
    renderer: Renderer, both: ScriptedAgent
) -> None:
    row = {"prompt": "Help!"}
    whole = asyncio.run(rollout(Support(renderer), both, row))
    room = whole.turns[0].end + 12  # for what the customer says, not for what it is told
    short = asyncio.run(rollout(Support(renderer, context_length=room), both, row))
    assert (short.stop_reason, short.truncated) == (StopReason.context, True)
    assert short.ids == whole.ids[: whole.turns[0].end]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_cancelled_episode_asks_no_more(renderer: Renderer, wrapped: bool) -> None:
    """Its place in the agent is free at once, also where a wrapper's step runs on in a thread."""
    asked, ended = [], []

    class Slow:
        async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
            if "You are a customer." not in renderer.decode(context_ids):
                ids = renderer.encode(says("Try again."))
                return Completion(ids, [0.0] * len(ids), "stop")
            asked.append(context_ids)
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(context_ids)
            raise AssertionError

    env: Any = Support(renderer)

    async def cancelled() -> None:
        inside = gymnasium.wrappers.OrderEnforcing(env) if wrapped else env
        playing = asyncio.create_task(rollout(inside, Slow(), {"prompt": "Help!"}))
        while not asked:
            assert not playing.done()
            await asyncio.sleep(0.01)
        playing.cancel()
        await asyncio.wait((playing,))
        while not ended:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert len(asked) == len(ended) == 1

    asyncio.run(cancelled())
