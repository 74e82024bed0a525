"""Episodes that go on in further contexts: every sampled token is in one of them, none is lost."""

import asyncio
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branching import Branching, Counting, numbered
from gymnast.agents import ScriptedAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, NextRequest, Renderer
from gymnast.errors import ConfigError, NoRequest
from gymnast.trainers import Reward, Trainer, collect, load_rollouts, play_messages, rollout
from gymnast.trainers.demonstrations.layout import with_tokens
from gymnast.trainers.reporting.shown_episodes import as_shown
from gymnast.trainers.rollouts.metrics import Counts, nothing_finished, summarise
from gymnast.trainers.rollouts.rewards import add_rewards, overlong
from gymnast.trainers.saving.rollout_files import (
    SavedBranch,
    SavedTrajectory,
    read_rollouts,
    write_rollouts,
)
from gymnast.types import Message, Sampling, StopReason, Trajectory

contexts_of_actions = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def play(env: gymnasium.Env[Any, Any], agent: Any, **options: Any) -> Trajectory:
    return asyncio.run(rollout(env, agent, {"prompt": "Go."}, **options))


# --- Any `gymnasium.Env` whose info names contexts


@settings(deadline=None)
@given(contexts_of_actions)
def test_every_sampled_token_is_in_exactly_one_context(order: list[int]) -> None:
    env, agent = Branching(order), Counting()
    episode = play(env, agent, sampling=Sampling(seed=3))
    found = [list(zip(c.ids, c.action_mask, strict=True)) for c in episode.contexts]
    assert found == env.contexts
    sampled = [token for context in found for token, bit in context if bit]
    assert sorted(sampled) == agent.said
    for context in episode.contexts:
        in_turns = [t for start, end in context.turns for t in range(start, end)]
        assert in_turns == np.flatnonzero(context.action_mask).tolist()
        assert all(context.logprobs[t] == -0.001 * context.ids[t] for t in in_turns)
        assert context.prompt_length == (3 if context is episode else 2)
    assert len(set(agent.seeds)) == episode.steps == len(order)


@settings(deadline=None)
@given(contexts_of_actions)
def test_turns_are_known_in_order_of_time(order: list[int]) -> None:
    episode, order = play(Branching(order), Counting()), numbered(order)
    spans = [context.turns for context in episode.contexts]
    actions = [
        tuple(episode.contexts[context].ids[slice(*span)])
        for context, span in zip(order, episode.in_time(spans), strict=True)
    ]
    assert actions == sorted(actions)  # sampled one after another
    assert episode.all_turn_rewards == [float(turn) for turn in range(1, len(order) + 1)]
    assert episode.reward == sum(range(1, len(order) + 1))
    states = episode.in_time([context.states for context in episode.contexts])
    assert states == [(context, turn) for turn, context in enumerate(order)]
    assert list(episode.order) == (order if max(order) else [])


@settings(deadline=None, max_examples=30)
@given(contexts_of_actions, st.booleans())
def test_an_episode_is_read_from_a_file_and_a_pickle_as_it_was(
    order: list[int], credited: bool
) -> None:
    episode = play(Branching(order), Counting())
    assert pickle.loads(pickle.dumps(episode)) == episode
    advantages = [float(number) for number in range(episode.tokens)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step_00001.parquet"
        write_rollouts(path, [[episode]], advantages=[[advantages]] if credited else None)
        [saved] = read_rollouts(path)
    assert saved.trajectory == replace(episode, teacher_prompt_ids=())  # which is not written
    assert len(saved.branches) == len(episode.branches)
    told = [saved.advantages, *(branch.advantages for branch in saved.branches)]
    assert [value for each in told for value in each or ()] == (advantages if credited else [])
    for values, context in zip(told, episode.contexts, strict=True):
        assert values is None or len(values) == len(context.ids)


@settings(deadline=None)
@given(contexts_of_actions, st.sets(st.integers(0, 11)))
def test_what_nobody_has_read_is_not_learned_from(order: list[int], turns: set[int]) -> None:
    unread = sorted(turn for turn in turns if turn < len(order))
    whole = play(Branching(order), Counting())
    episode = play(Branching(order, unread), Counting())
    assert [c.ids for c in episode.contexts] == [c.ids for c in whole.contexts]
    assert episode.all_turn_rewards == whole.all_turn_rewards and episode.order == whole.order
    spans = whole.in_time([c.turns for c in whole.contexts])
    left = episode.in_time([c.turns for c in episode.contexts])
    for turn, (was, now) in enumerate(zip(spans, left, strict=True)):
        assert now == ((was.end, was.end) if turn in unread else was)
    for context in episode.contexts:
        sampled = {t for start, end in context.turns for t in range(start, end)}
        assert sampled == set(np.flatnonzero(context.action_mask).tolist())
        assert all((p != 0) == (t in sampled) for t, p in enumerate(context.logprobs))


def test_a_turn_that_nobody_can_have_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"info\['unreceived'\] has turn 2, .* has 2"):
        play(Branching([0, 1], [2]), Counting())


def test_an_episode_with_one_context_has_neither_branches_nor_an_order() -> None:
    episode = play(Branching([0, 0]), Counting())
    assert episode.branches == () == episode.order
    assert [*episode.contexts] == [episode] and episode.steps == 2


class Wrong(Branching):
    """Says other things of the second context."""

    def __init__(self, said: dict[str, Any], observed: int = 0) -> None:
        super().__init__([0, 1])
        self.said, self.observed = said, observed

    def step(self, action: Any) -> Any:
        _, reward, terminated, truncated, _ = super().step(action)
        return np.zeros(self.observed, dtype=np.int64), reward, terminated, truncated, self.said


@pytest.mark.parametrize(
    "env",
    [
        Wrong({"branch": 1}),
        Wrong({"branch": -1}),
        Wrong({"branch": "main"}),
        Wrong({"branch": 2, "prompt_ids": [1]}),
        Wrong({"branch": 0, "prompt_ids": [1]}),
        Wrong({"branch": 1, "prompt_ids": []}),
        Wrong({"branch": 1, "prompt_ids": [1]}, observed=1),
    ],
    ids=lambda env: f"{env.said} {env.observed}",
)
def test_a_context_that_cannot_be_is_refused(env: Wrong) -> None:
    with pytest.raises(ConfigError, match=r"info\['branch'\]"):
        play(env, Counting())


def test_metrics_count_all_contexts() -> None:
    episodes = [play(Branching(order), Counting()) for order in ([0, 1, 0, 2], [0, 0])]
    metrics = summarise(episodes, Counts())
    assert metrics["episodes/turns"] == 3 and metrics["episodes/contexts"] == 2
    assert metrics["tokens/sampled"] == sum(
        sum(c.action_mask) for e in episodes for c in e.contexts
    )
    given = [bit for e in episodes for c in e.contexts for bit in c.action_mask[c.prompt_length :]]
    assert metrics["tokens/observed"] == given.count(0)
    assert "episodes/contexts" not in summarise(episodes[1:], Counts())


def test_rewards_of_functions_are_added_to_the_last_turn_in_time() -> None:
    episode = play(Branching([0, 1, 0, 1]), Counting())
    tokens = [[0.25 * bit for bit in context.action_mask] for context in episode.contexts]
    divided = replace(
        episode,
        token_rewards=tokens[0],
        branches=[replace(episode.branches[0], token_rewards=tokens[1])],
    )
    seen = []

    def long(trajectory: Trajectory) -> float:
        seen.append(trajectory)
        return float(trajectory.action_tokens)

    found = asyncio.run(add_rewards(divided, [Reward("long", long, 2.0)]))
    assert found is not None and seen == [divided]
    added = 2.0 * episode.action_tokens
    assert found.all_turn_rewards == [1.0, 2.0, 3.0, 4.0 + added]
    assert found.turn_rewards == [1.0, 3.0]
    assert found.branches[0].token_rewards[found.branches[0].turns[-1].end - 1] == 0.25 + added
    assert found.token_rewards == tokens[0]
    limit = episode.action_tokens
    assert overlong(episode, limit=limit, buffer=1) == -1.0  # of all contexts


# --- Programs that have the loop


class Planner(Environment):
    """A program that asks in one context, has two workers in others, and says what they found."""

    def setup(self, row: Any) -> None:
        self.asked = 0

    def next_request(self, message: Message | None, cut: bool) -> NextRequest | None:
        requests = [
            NextRequest(None, [{"role": "user", "content": "Plan."}]),
            NextRequest(None, [{"role": "user", "content": "Work: one."}]),
            NextRequest(None, [{"role": "user", "content": "Work: two."}]),
            NextRequest(1, [{"role": "user", "content": "Go on."}]),
            NextRequest(0, [{"role": "user", "content": "They are done."}]),
        ]
        if self.asked == len(requests):
            return None
        self.asked += 1
        return requests[self.asked - 1]

    def turn_reward(self, turn: Any) -> float:
        return 0.5 + float(turn.index)

    def reward(self, episode: Any) -> float:
        return float(len(episode.branches))


ORDER = [0, 1, 2, 1, 0]


def speaker(renderer: Renderer) -> ScriptedAgent:
    """Says how many messages of the assistant there are, and how long the context is."""

    def say(context: Sequence[int]) -> list[int]:
        return renderer.encode({"role": "assistant", "content": f"said after {len(context)}"})

    return ScriptedAgent(say)


def test_a_program_is_followed_into_its_contexts(renderer: Renderer) -> None:
    env = Planner(renderer=renderer)
    episode = play(env, speaker(renderer))
    assert list(episode.order) == ORDER and episode.stop_reason is StopReason.environment
    assert episode.all_turn_rewards == [0.5, 1.5, 2.5, 3.5, 7.5]
    asked = [[m["content"] for m in c.messages if m["role"] == "user"] for c in episode.contexts]
    assert asked == [["Plan.", "They are done."], ["Work: one.", "Go on."], ["Work: two."]]
    for context in episode.contexts:
        said = [m["content"] for m in context.messages if m["role"] == "assistant"]
        assert said == [f"said after {start}" for start, _ in context.turns]
        assert context.ids[: context.prompt_length] == renderer.prompt(context.messages[:1])
    env.close()


@pytest.mark.parametrize("deterministic", [False, True])
def test_whether_requests_may_be_parallel_depends_on_determinism(
    deterministic: bool, renderer: Renderer
) -> None:
    told = []

    class Told(Planner):
        def setup(self, row: Any) -> None:
            super().setup(row)
            told.append(self.parallel_requests)

    async def run() -> Any:
        return await collect(
            lambda: Told(renderer=renderer),
            speaker(renderer),
            [{"prompt": ""}] * 2,
            group_size=2,
            sampling=Sampling(max_new_tokens=32),
            deterministic=deterministic,
        )

    found = asyncio.run(run())
    assert told == [not deterministic] * 4
    assert [list(t.order) for t in found.trajectories] == [ORDER] * 4
    assert found.metrics["episodes/contexts"] == 3


class Mute(Environment):
    """A program that ends before it asks anything, in rows that say so."""

    def next_request(self, message: Message | None, cut: bool) -> NextRequest | None:
        if message is not None or self.row["mute"]:
            return None
        return NextRequest(None, [{"role": "user", "content": "Hello."}])

    def reward(self, episode: Any) -> float:
        return 1.0


def test_an_episode_without_a_request_is_left_out_and_counted(renderer: Renderer) -> None:
    async def run(most: int) -> Any:
        return await collect(
            lambda: Mute(renderer=renderer),
            speaker(renderer),
            [{"prompt": "", "mute": mute} for mute in (True, False)],
            group_size=2,
            sampling=Sampling(max_new_tokens=32),
            max_failed_episodes=most,
        )

    found = asyncio.run(run(2))
    assert found.metrics["episodes/left_out/no_request"] == 2
    assert found.metrics["episodes/left_out/user_code"] == 0
    assert found.metrics["episodes/left_out"] == 2 and list(map(len, found)) == [0, 2]
    with pytest.raises(NoRequest, match="before its first request"):
        asyncio.run(run(1))
    error = nothing_finished("step 1", 2, found.metrics)
    assert "2 have no action: their program ended before its first request" in str(error)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_speaker_may_have_one_request_at_a_time(parallel: bool, renderer: Renderer) -> None:
    async def say(messages: list[Message], tools: list[Any]) -> Message:
        return {"role": "assistant", "content": "answer"}

    env = Planner(renderer=renderer)
    asyncio.run(play_messages(env, say, {"prompt": ""}, parallel_requests=parallel))
    assert env.parallel_requests is parallel
    env.close()


def test_a_speaker_sees_the_context_that_a_turn_is_in(renderer: Renderer) -> None:
    seen = []

    async def say(messages: list[Message], tools: list[Any]) -> Message:
        seen.append([m["content"] for m in messages])
        return {"role": "assistant", "content": f"answer {len(seen)}"}

    env = Planner(renderer=renderer)
    episode = asyncio.run(play_messages(env, say, {"prompt": ""}))
    assert seen == [
        ["Plan."],
        ["Work: one."],
        ["Work: two."],
        ["Work: one.", "answer 2", "Go on."],
        ["Plan.", "answer 1", "They are done."],
    ]
    assert list(episode.order) == ORDER
    assert episode.all_turn_rewards == [0.5, 1.5, 2.5, 3.5, 7.5]
    assert [m["content"] for m in episode.branches[1].messages] == ["Work: two.", "answer 3"]
    in_tokens = with_tokens(episode, renderer)
    assert [len(context.turns) for context in in_tokens.contexts] == [2, 2, 1]
    for context in in_tokens.contexts:
        said = [renderer.parse(context.ids[slice(*turn)])["content"] for turn in context.turns]
        assert said == [m["content"] for m in context.messages if m["role"] == "assistant"]
    shown = as_shown(episode)
    assert shown.prompt == "Plan."
    assert shown.events[3:5] == ["[context 1] Work: one.", "answer 2"]
    env.close()


# --- From rollout to gradient and to disk


def test_a_run_learns_from_all_contexts_and_writes_them(tmp_path: Path, tokenizer: Any) -> None:
    model = tiny_model()
    before = [weight.detach().clone() for weight in model.parameters()]

    class Paid(Planner):
        def reward(self, episode: Any) -> float:
            return float(len(episode.turns[-1].raw) % 7)

    trainer = Trainer(
        model,
        tokenizer,
        Paid,
        [{"prompt": f"{number}"} for number in range(4)],
        group_size=3,
        steps=2,
        rows_per_step=2,
        sampling=Sampling(max_new_tokens=12),
        output_dir=tmp_path,
    )
    trainer.train()
    assert any(
        (weight != was).any() for weight, was in zip(model.parameters(), before, strict=True)
    )
    saved = load_rollouts(tmp_path, step=1)
    assert len(saved) == 6
    for each in saved:
        assert list(each.trajectory.order) == ORDER
        known: list[SavedTrajectory | SavedBranch] = [each, *each.branches]
        for context, of in zip(each.trajectory.contexts, known, strict=True):
            assert of.advantages is not None and of.text is not None and of.token_ends is not None
            assert len(of.advantages) == len(context.ids) == len(of.token_ends)
            pairs = zip(of.advantages, context.action_mask, strict=True)
            assert all(not value for value, bit in pairs if not bit)
    assert any(value for each in saved for b in each.branches for value in b.advantages or ())
