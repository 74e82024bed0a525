"""One episode: ids only grow, masks and logprobs stay aligned, wrappers and limits count."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TimeLimit, TransformReward
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gymnast.agents import Agent, ScriptedAgent, TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import ConfigError
from gymnast.trainers import rollout
from gymnast.trainers.rollouts.metrics import Counts, summarise
from gymnast.types import Completion, Sampling, StopReason, ToolCall, Trajectory, VersionSpan

Encode = Callable[[str], list[int]]
Write = Callable[..., str]
END = "<|im_end|>"
ROW = {"prompt": "Go."}


class Desk(Environment):
    """A tool whose result is as long as one wants, and one that ends the episode."""

    @tool
    def repeat(self, times: int = 1) -> str:
        """Say a word some times."""
        return "word " * times

    @tool(stop=True)
    def final_answer(self, answer: str = "") -> str:
        """Answer."""
        return answer

    def turn_reward(self, turn: Any) -> float:
        return 0.25

    def reward(self, episode: Any) -> dict[str, float]:
        return {"base": 1.0, "calls": len(episode.tool_calls) / 2}


class Listening:
    """Hands an agent's completions on, and keeps what was asked and said.

    With `logprob`, each sampled id gets this function of it as its log-probability.
    """

    def __init__(self, agent: Agent, logprob: Callable[[int], float] | None = None) -> None:
        self.agent, self.logprob = agent, logprob
        self.contexts: list[list[int]] = []
        self.samplings: list[Sampling] = []
        self.said: list[Completion] = []

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        self.contexts.append(list(context_ids))
        self.samplings.append(sampling)
        said = await self.agent.generate(context_ids, sampling)
        if self.logprob is not None:
            said = Completion(said.ids, [self.logprob(token) for token in said.ids], said.stop)
        self.said.append(said)
        return said


def play(env: gymnasium.Env[Any, Any], agent: Agent, **settings: Any) -> Trajectory:
    row = settings.pop("row", ROW)
    try:
        return asyncio.run(rollout(env, agent, row, **settings))
    finally:
        env.close()


def everything_is_a_call(text: str) -> list[ToolCall]:
    """A parser to whom all that a random model says is a call, so that its episodes go on."""
    return [ToolCall("", "repeat", {"times": len(text) % 5})]


def assert_aligned(trajectory: Trajectory, listener: Listening) -> None:
    """What was sampled lies where the mask is 1, with its logprobs; contexts only grew."""
    assert len(trajectory.turns) == len(trajectory.turn_rewards) == len(listener.said)
    mask, logprobs = [0] * len(trajectory.ids), [0.0] * len(trajectory.ids)
    for (start, end), said, context in zip(
        trajectory.turns, listener.said, listener.contexts, strict=True
    ):
        assert context == trajectory.ids[:start]
        assert trajectory.ids[start:end] == said.ids
        mask[start:end] = [1] * len(said.ids)
        logprobs[start:end] = said.logprobs
    assert trajectory.action_mask == mask
    assert trajectory.logprobs == logprobs
    assert trajectory.turns[0].start == trajectory.prompt_length


# --- The one invariant


def test_the_context_is_prompt_action_observation_and_so_on(
    renderer: Renderer, tokenizer: Any, encode: Encode, write_call: Write
) -> None:
    call, answer = encode(write_call("repeat", times=2) + END), encode("Done." + END)
    agent = Listening(ScriptedAgent([call, answer]), logprob=lambda token: -1.0 - token)
    trajectory = play(Desk(renderer), agent, seed=3)
    assert_aligned(trajectory, agent)
    assert tokenizer.decode(trajectory.ids).endswith(
        "Go.<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "repeat", "arguments": {"times": 2}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nword word \n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nDone.<|im_end|>"
    )
    assert trajectory.action_tokens == len(call) + len(answer)
    assert trajectory.turn_rewards == [0.25, 0.25 + 1.0 + 0.5]
    assert trajectory.reward == 2.0
    assert (trajectory.terminated, trajectory.truncated) == (True, False)
    assert trajectory.stop_reason is StopReason.answered
    assert (trajectory.row, trajectory.seed) == (ROW, 3)
    assert trajectory.metrics["tools/calls"] == 1.0
    assert trajectory.reward_parts == {"base": 1.0, "calls": 0.5}
    assert not trajectory.no_reward


def test_versions_of_weights_stand_where_their_tokens_do(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    """An agent that takes new weights amid a completion says so; another says nothing."""
    call, answer = encode(write_call("repeat", times=2) + END), encode("Done." + END)

    class Refreshed(Listening):
        async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
            said = await super().generate(context_ids, sampling)
            first, end = len(self.said), len(said.ids)
            spans = [VersionSpan(0, 2, first), VersionSpan(2, end, first + 1)]
            return replace(said, versions=spans)

    plain = play(Desk(renderer), ScriptedAgent([call, answer]))
    assert list(plain.versions) == []
    trajectory = play(Desk(renderer), Refreshed(ScriptedAgent([call, answer])))
    (a, b), (c, d) = trajectory.turns
    assert list(trajectory.versions) == [(a, a + 2, 1), (a + 2, b, 2), (c, c + 2, 2), (c + 2, d, 3)]
    versions = {v for start, end, v in trajectory.versions if start <= a + 1 < end}
    assert versions == {1}


def test_experts_are_those_of_the_turn_that_computed_a_token_first(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    call, answer = encode(write_call("repeat", times=2) + END), encode("Done." + END)

    class Keeping(Listening):
        async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
            said = await super().generate(context_ids, sampling)
            shape = (len(context_ids) + len(said.ids) - 1, 3, 2)
            return replace(said, experts=np.full(shape, len(self.said), dtype=np.int8))

    assert play(Desk(renderer), ScriptedAgent([call, answer])).experts is None
    trajectory = play(Desk(renderer), Keeping(ScriptedAgent([call, answer])))
    (_, b), (_, d) = trajectory.turns
    assert trajectory.experts is not None
    assert trajectory.experts.shape == (len(trajectory.ids), 3, 2)
    turns = [*[1] * (b - 1), *[2] * (d - b), *[-1] * (len(trajectory.ids) - d + 1)]
    assert trajectory.experts[:, 1, 1].tolist() == turns


def test_an_episode_that_no_number_describes_says_so(renderer: Renderer, encode: Encode) -> None:
    class Undecided(Desk):
        def reward(self, episode: Any) -> Any:
            return None

    trajectory = play(Undecided(renderer), ScriptedAgent([encode("Done." + END)]))
    assert trajectory.no_reward
    assert (trajectory.reward, trajectory.reward_parts) == (0.25, {})


def test_the_context_only_grows_with_a_real_model(tokenizer: Any) -> None:
    env = Desk(Renderer(tokenizer, parser=everything_is_a_call), max_turns=4)
    agent = Listening(TransformersAgent(tiny_model(seed=1)))
    trajectory = play(env, agent, sampling=Sampling(max_new_tokens=12, seed=0))
    assert len(trajectory.turns) == 4
    assert trajectory.stop_reason is StopReason.max_turns
    assert_aligned(trajectory, agent)


pieces = st.one_of(
    st.lists(st.integers(0, 1029), min_size=1, max_size=12),
    st.sampled_from(
        [
            '<tool_call>\n{"name": "repeat", "arguments": {"times": 3}}\n</tool_call>',
            '<tool_call>{  "name"  :\n\n  "repeat",   "arguments": "{}"  }</tool_call>',
            '<tool_call>{"name": "repeat", "arguments": ',
            "</tool_call>",
            "<|im_start|>user\n",
            END,
            "é\u2028\x00",
        ]
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(pieces, min_size=1, max_size=4), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(1, 120)),
)
def test_whatever_is_sampled_stays_aligned(
    renderer: Renderer,
    encode: Encode,
    script: list[list[str | list[int]]],
    max_tokens: int | None,
) -> None:
    turns: list[list[int]] = []
    for turn in script:
        parts = [encode(part) if isinstance(part, str) else part for part in turn]
        turns.append([token for part in parts for token in part])
    agent = Listening(ScriptedAgent(turns), logprob=lambda token: -1.0 - token)
    env = Desk(renderer, max_turns=len(turns), max_tokens=max_tokens)
    trajectory = play(env, agent)
    assert_aligned(trajectory, agent)
    if max_tokens is not None:
        assert len(trajectory.ids) - trajectory.prompt_length <= max_tokens
    json.dumps(trajectory.messages)


def test_logprobs_are_those_of_one_forward_pass_over_the_final_ids(tokenizer: Any) -> None:
    model = tiny_model(seed=2)
    env = Desk(Renderer(tokenizer, parser=everything_is_a_call), max_turns=3)
    trajectory = play(env, TransformersAgent(model), sampling=Sampling(max_new_tokens=20, seed=1))
    ids = torch.tensor(trajectory.ids)
    with torch.no_grad():
        logits = model(ids[None]).logits[0]
    expected = torch.log_softmax(logits[:-1], dim=-1).gather(1, ids[1:, None])[:, 0]
    sampled = torch.tensor(trajectory.action_mask[1:], dtype=torch.bool)
    assert len(trajectory.turns) == 3
    torch.testing.assert_close(
        torch.tensor(trajectory.logprobs[1:])[sampled], expected[sampled], rtol=0, atol=1e-4
    )


# --- Where the time goes


class Slow(Environment):
    """A tool that takes 20 ms and may then fail, an async one of 10 ms, and a slow setup."""

    def setup(self, row: Any) -> None:
        time.sleep(0.03)

    @tool(timeout_s=0.005)
    async def late(self) -> str:
        """Never get done."""
        await asyncio.sleep(30)
        return ""

    @tool
    def work(self, fails: bool = False) -> str:
        """Work."""
        time.sleep(0.02)
        if fails:
            raise ValueError("no")
        return "done"


class Queued:
    """An agent that takes 50 ms a turn, and says how many of them it was waiting."""

    def __init__(self, agent: Agent, waited_s: float) -> None:
        self.agent, self.waited_s = agent, waited_s

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        said = await self.agent.generate(context_ids, sampling)
        await asyncio.sleep(0.05)
        return replace(said, waited_s=self.waited_s)


def three_turns(encode: Encode, write_call: Write) -> list[list[int]]:
    first = write_call("work") + write_call("late") + write_call("work", fails=True)
    second = write_call("work", wrong=1) + write_call("nothing")
    return [encode(first + END), encode(second + END), encode("Done." + END)]


@pytest.mark.parametrize("wrapped", [False, True], ids=["awaited", "wrapped"])
def test_time_is_split_into_model_waiting_and_environment(
    wrapped: bool, renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    env: gymnasium.Env[Any, Any] = Slow(renderer)
    if wrapped:
        env = Noticing(env)
    agent = Queued(ScriptedAgent(three_turns(encode, write_call)), waited_s=0.02)
    metrics = play(env, agent).metrics
    assert metrics["time/waiting_s"] == pytest.approx(3 * 0.02)
    assert metrics["time/model_s"] >= 3 * (0.05 - 0.02) - 0.001  # a timer may be early by a tick
    assert metrics["time/environment_s"] >= 0.03 + 2 * 0.02 + 0.005
    split = sum(metrics[f"time/{part}_s"] for part in ("model", "waiting", "environment"))
    assert split == pytest.approx(metrics["time/episode_s"], rel=0.05)


@pytest.mark.parametrize("claimed", [-1.0, 1000.0])
def test_what_an_agent_says_it_waited_never_exceeds_what_it_took(
    claimed: float, renderer: Renderer, encode: Encode
) -> None:
    agent = Queued(ScriptedAgent([encode("Done." + END)]), waited_s=claimed)
    metrics = play(Desk(renderer), agent).metrics
    assert metrics["time/waiting_s"] >= 0 and metrics["time/model_s"] >= 0
    assert metrics["time/waiting_s"] + metrics["time/model_s"] <= metrics["time/episode_s"]


def test_the_environments_time_is_told_by_its_parts(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    metrics = play(Slow(renderer), ScriptedAgent(three_turns(encode, write_call))).metrics
    parts = {k: v for k, v in metrics.items() if k.startswith("time/environment/")}
    names = ("setup", "parse", "tools", "render", "reward", "cleanup")
    assert set(parts) == {f"time/environment/{name}_s" for name in names}
    assert parts["time/environment/setup_s"] >= 0.03
    assert parts["time/environment/tools_s"] >= 0.045
    assert sum(parts.values()) <= metrics["time/environment_s"]


def test_every_tool_has_its_seconds_and_calls_also_where_it_failed(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    """A call that could not be run counts as an error, and is none of the tool's calls."""
    metrics = play(Slow(renderer), ScriptedAgent(three_turns(encode, write_call))).metrics
    calls = {k: v for k, v in metrics.items() if k.startswith("tools/calls")}
    assert calls == {"tools/calls": 5, "tools/calls/work": 2, "tools/calls/late": 1}
    seconds = {k: v for k, v in metrics.items() if k.startswith("time/tool/")}
    assert set(seconds) == {"time/tool/work_s", "time/tool/late_s"}
    assert seconds["time/tool/work_s"] >= 0.04
    assert seconds["time/tool/late_s"] >= 0.004
    assert metrics["tools/errors"] == 4
    failures = {k: v for k, v in metrics.items() if k.startswith("tools/failures/")}
    assert failures == {"tools/failures/work": 2, "tools/failures/late": 1}


def test_the_latency_of_a_tool_is_the_mean_of_its_calls(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    """One episode calls it twice, for 3 s in all; one once, for 3 s; one not at all."""
    one = play(Slow(renderer), ScriptedAgent(three_turns(encode, write_call)))
    seconds, calls = "time/tool/work_s", "tools/calls/work"
    episodes = [
        replace(one, metrics={seconds: 3.0, calls: 2.0}),
        replace(one, metrics={seconds: 3.0, calls: 1.0}),
        replace(one, metrics={"tools/calls/untimed": 1.0}),
    ]
    metrics = summarise(episodes, Counts())
    assert metrics["time/tool_call/work_s"] == pytest.approx(2.0)
    assert metrics[seconds] == pytest.approx(2.0) and metrics[calls] == 3
    assert "time/tool_call/untimed_s" not in metrics


# --- What the agent is asked for


def asked(renderer: Renderer, script: Sequence[list[int]], **settings: Any) -> list[Sampling]:
    sampling = settings.pop("sampling", None)
    agent = Listening(ScriptedAgent(script))
    play(Desk(renderer, **settings), agent, sampling=sampling)
    return agent.samplings


def test_each_turn_has_a_seed_of_its_own_derived_from_the_samplings_seed(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    script = [encode(write_call("repeat") + END)] * 2 + [encode("Done." + END)]

    def seeds(seed: int | None) -> list[int | None]:
        return [s.seed for s in asked(renderer, script, sampling=Sampling(seed=seed))]

    assert seeds(None) == [None] * 3
    first = seeds(5)
    assert first == seeds(5)
    assert len({*first, *seeds(6)}) == 6


def test_stop_ids_and_the_cap_of_new_tokens_come_from_the_environment(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    call = encode(write_call("repeat") + END)
    script = [call, encode("Done." + END)]
    sampling = Sampling(temperature=0.5, top_k=3, max_new_tokens=150, stop_ids=(999,))
    free, limited = (
        asked(renderer, script, sampling=sampling, max_tokens=limit) for limit in (None, 100)
    )
    assert [s.max_new_tokens for s in free] == [150, 150]
    assert limited[0].max_new_tokens == 100
    assert 0 < limited[1].max_new_tokens < 100 - len(call)
    for asked_for in free + limited:
        assert asked_for.stop_ids == tuple(renderer.stop_ids)
        assert (asked_for.temperature, asked_for.top_k) == (0.5, 3)


def test_an_environment_without_a_renderer_is_told_what_is_missing() -> None:
    env = Environment()
    with pytest.raises(ConfigError, match=r"no renderer.*make\(Environment, tokenizer\)"):
        asyncio.run(rollout(env, ScriptedAgent([[1]]), {"prompt": "Go."}))


def test_the_context_length_caps_what_is_sampled(renderer: Renderer) -> None:
    env = Desk(renderer)
    prompt, _ = env.reset(options={"row": ROW})
    env.close()
    (sampling,) = asked(renderer, [[500] * 40], context_length=len(prompt) + 7)
    assert sampling.max_new_tokens == 7


def test_without_a_row_the_environment_takes_one_of_its_own(
    renderer: Renderer, encode: Encode
) -> None:
    env = Desk(renderer, rows=[{"prompt": "Only this.", "answer": 1}])
    trajectory = play(env, ScriptedAgent([encode("Yes." + END)]), row=None)
    assert trajectory.row == {"prompt": "Only this.", "answer": 1}


# --- Wrapped environments


class Noticing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts steps and notes the threads it is called on."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps = 0
        self.threads: set[int] = set()

    def reset(self, **settings: Any) -> Any:
        self.threads.add(threading.get_ident())
        return self.env.reset(**settings)

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.threads.add(threading.get_ident())
        return self.env.step(action)


def test_wrappers_count_and_run_on_one_thread_that_is_not_the_loops(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    script = [encode(write_call("repeat", times=2) + END), encode("Done." + END)]
    plain = play(Desk(renderer), ScriptedAgent(script), seed=3)
    env = Noticing(TransformReward(Desk(renderer), lambda reward: 10 * float(reward)))
    agent = Listening(ScriptedAgent(script))
    wrapped = play(env, agent, seed=3)
    assert_aligned(wrapped, agent)
    assert env.steps == 2
    assert len(env.threads) == 1 and threading.get_ident() not in env.threads
    assert wrapped.turn_rewards == [10 * reward for reward in plain.turn_rewards]
    for name in ("ids", "action_mask", "messages", "row", "stop_reason", "seed", "terminated"):
        assert getattr(wrapped, name) == getattr(plain, name), name


def test_a_wrapper_that_truncates_ends_the_episode(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    call = encode(write_call("repeat") + END)
    agent = Listening(ScriptedAgent([call] * 9))
    trajectory = play(TimeLimit(Desk(renderer), max_episode_steps=3), agent)
    assert_aligned(trajectory, agent)
    assert len(trajectory.turns) == 3
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert trajectory.stop_reason is StopReason.max_turns
    assert [m["role"] for m in trajectory.messages] == ["user", *["assistant", "tool"] * 3]


def test_the_environments_own_reason_wins_over_a_wrappers(
    renderer: Renderer, encode: Encode, write_call: Write
) -> None:
    stop = encode(write_call("final_answer", answer="7") + END)
    trajectory = play(TimeLimit(Desk(renderer), max_episode_steps=1), ScriptedAgent([stop]))
    assert trajectory.stop_reason is StopReason.stop_tool
    assert trajectory.terminated


def test_a_wrapper_that_blocks_does_not_block_the_event_loop(
    renderer: Renderer, encode: Encode
) -> None:
    other_ended = threading.Event()

    class Waiting(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            assert other_ended.wait(timeout=30), "the other episode could not go on"
            return self.env.step(action)

    async def both() -> tuple[Trajectory, Trajectory]:
        script = [encode("Done." + END)]
        blocked = asyncio.create_task(rollout(Waiting(Desk(renderer)), ScriptedAgent(script), ROW))
        await asyncio.sleep(0)  # it is under way
        other = await rollout(Desk(renderer), ScriptedAgent(script), ROW)
        other_ended.set()
        return await blocked, other

    blocked, other = asyncio.run(both())
    assert blocked.ids == other.ids


class Echo(gymnasium.Env[Any, Any]):
    """No `Environment` at all: any `gymnasium.Env` over ids can be driven."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.turn = 0
        return np.array([1, 2, 3]), {"stop_ids": [9], "tokens_left": 4}

    def step(self, action: Any) -> Any:
        self.turn += 1
        ended = self.turn == 2
        return action[::-1], float(self.turn), ended, False, {"stop_ids": [9]}


def test_an_environment_of_ones_own_is_driven_by_reset_and_step() -> None:
    agent = Listening(ScriptedAgent([[5, 6, 7, 8, 9], [4]]), logprob=lambda token: -float(token))
    trajectory = play(Echo(), agent, row={"any": "row"}, seed=1)
    assert_aligned(trajectory, agent)
    assert trajectory.ids == [1, 2, 3, 5, 6, 7, 8, 8, 7, 6, 5, 4, 4]
    assert trajectory.turn_rewards == [1.0, 2.0]
    assert trajectory.stop_reason is StopReason.environment
    assert (trajectory.messages, trajectory.row) == ([], {"any": "row"})
    assert [s.stop_ids for s in agent.samplings] == [(9,), (9,)]
    assert [s.max_new_tokens for s in agent.samplings] == [4, 512]
