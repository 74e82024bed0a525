"""Episodes in messages: what a speaker says, and what `solve` says in each of its forms."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs import Environment, Episode, call, can_solve, tool
from gymnast.errors import ConfigError, DataError, NoSolution, UserCodeError
from gymnast.trainers import play_messages, play_solution
from gymnast.types import Message, Span, StopReason, ToolCall, Trajectory

ROW = {
    "prompt": "What do 3 plums and 2 figs cost?",
    "prices": {"plum": 7, "fig": 12},
    "basket": {"plum": 3, "fig": 2},
    "answer": 45,
}


class Shop(Environment):
    """Answer with the sum, after asking for each price."""

    @tool
    def price(self, fruit: str) -> int:
        """Look up what a fruit costs."""
        return int(self.row["prices"][fruit])

    @tool(stop=True)
    def pay(self, cents: int) -> str:
        """Pay, which ends the episode."""
        return "Thank you."

    def reward(self, episode: Episode) -> float:
        asked = {record.call.arguments.get("fruit") for record in episode.calls}
        answered = str(self.row["answer"]) in episode.answer
        return 0.5 * answered + 0.5 * bool(asked >= self.row["basket"].keys())


class AsList(Shop):
    def solve(self, row: Mapping[str, Any]) -> Any:
        return [*[call("price", fruit=fruit) for fruit in row["basket"]], "It costs 45."]


class AsCoroutine(Shop):
    async def solve(self, row: Mapping[str, Any]) -> Any:
        await asyncio.sleep(0)
        return [[call("price", fruit="plum"), call("price", fruit="fig")], "45"]


class AsGenerator(Shop):
    def solve(self, row: Mapping[str, Any]) -> Any:
        total = 0
        for fruit, count in row["basket"].items():
            [price] = yield call("price", fruit=fruit)
            total += count * int(price["content"])
        yield f"It costs {total}."


class AsAsyncGenerator(Shop):
    async def solve(self, row: Mapping[str, Any]) -> Any:
        prices = yield ["One moment.", *[call("price", fruit=fruit) for fruit in row["basket"]]]
        await asyncio.sleep(0)
        pairs = zip(row["basket"].values(), prices, strict=True)
        yield f"It costs {sum(count * int(each['content']) for count, each in pairs)}."


def solved(env: Environment, row: Mapping[str, Any] | None = ROW, **given: Any) -> Trajectory:
    try:
        return asyncio.run(play_solution(env, row, **given))
    finally:
        env.close()


@pytest.mark.parametrize("form", [AsList, AsCoroutine, AsGenerator, AsAsyncGenerator])
def test_each_form_of_solve_is_played_by_the_real_tools(form: type[Shop]) -> None:
    trajectory = solved(form(), seed=5)
    assert trajectory.reward == 1.0
    assert trajectory.stop_reason is StopReason.answered
    results = [m["content"] for m in trajectory.messages if m["role"] == "tool"]
    assert results == ["7", "12"]
    assert "45" in trajectory.messages[-1]["content"]
    assert trajectory.metrics["tools/calls"] == 2
    assert {schema["function"]["name"] for schema in trajectory.tools} == {"price", "pay"}
    assert trajectory.row == ROW and trajectory.seed == 5


@pytest.mark.parametrize("form", [AsGenerator, AsAsyncGenerator])
def test_an_environment_is_solved_again_and_again(form: type[Shop]) -> None:
    async def often() -> list[Trajectory]:
        env = form()
        other = {**ROW, "prices": {"plum": 1, "fig": 1}, "answer": 5}
        return [await play_solution(env, row) for row in (ROW, other, ROW)]

    played = asyncio.run(often())
    assert [trajectory.reward for trajectory in played] == [1.0, 1.0, 1.0]
    assert played[0].messages == played[2].messages


def test_a_trajectory_of_messages_has_no_tokens() -> None:
    trajectory = solved(AsGenerator())
    assert (trajectory.ids, trajectory.action_mask, trajectory.logprobs) == ([], [], [])
    assert trajectory.turns == [Span(0, 0)] * 3
    assert trajectory.turn_rewards == [0.0, 0.0, 1.0]


def test_calls_without_an_id_get_one_of_nine_letters_and_digits() -> None:
    messages = solved(AsCoroutine()).messages
    ids = [each["id"] for each in messages[1]["tool_calls"]]
    assert len(set(ids)) == 2 and all(len(id) == 9 and id.isalnum() for id in ids)
    assert [message["tool_call_id"] for message in messages[2:4]] == ids


SHAPES: list[Any] = [
    {"role": "assistant", "content": None, "tool_calls": [ToolCall("", "price", {"fruit": "fig"})]},
    {"tool_calls": [{"id": "own", "name": "price", "arguments": {"fruit": "fig"}}]},
    {"tool_calls": [{"function": {"name": "price", "arguments": '{"fruit": "fig"}'}}]},
    ToolCall("", "price", {"fruit": "fig"}),
    [{"content": "Well,"}, "look:", ToolCall("", "price", {"fruit": "fig"})],
    {**call("price", fruit="fig"), "reasoning_content": "I need the price."},
]


@pytest.mark.parametrize("said", SHAPES)
def test_a_message_may_have_any_shape_that_act_takes(said: Any) -> None:
    class Own(Shop):
        def solve(self, row: Mapping[str, Any]) -> Any:
            return [said, {"content": [{"type": "text", "text": "45"}]}]

    trajectory = solved(Own())
    [written] = trajectory.messages[1]["tool_calls"]
    assert written["function"] == {"name": "price", "arguments": {"fruit": "fig"}}
    assert trajectory.messages[2]["tool_call_id"] == written["id"]
    assert trajectory.messages[2]["content"] == "12"


def test_a_stop_tool_ends_a_solution() -> None:
    class Paying(Shop):
        def solve(self, row: Mapping[str, Any]) -> Any:
            return [call("pay", cents=45)]

    assert solved(Paying()).stop_reason is StopReason.stop_tool


def raises(row: Any) -> Any:
    yield call("price", fruit="plum")
    raise KeyError("lost")


WRONG: list[tuple[Any, str]] = [
    (lambda row: [call("price", fruit="plumm"), "45"], r"message 1: .*price\(fruit='plumm'\)"),
    (lambda row: [call("prize", fruit="plum"), "45"], r"message 1: .*prize\(.* no such tool"),
    (lambda row: ["45", "46"], r"ended \(answered\) with message 1, .*goes on with '46'"),
    (lambda row: ["45", call("add", a=1, b=2)], r"but solve goes on with a call of add \(row"),
    (lambda row: [call("price", fruit="plum")], "ended after message 1, but the episode goes on"),
    (lambda row: [], "ended without a message"),
    (lambda row: [{"role": "user", "content": "Hi"}], "message 1 is .* must be an assistant"),
    (lambda row: [7], "message 1 is 7; it must be an assistant message"),
    (lambda row: "45", "returned '45'; it must return a list of assistant messages"),
    (lambda row: row["absent"], "KeyError: 'absent'"),
    (raises, "KeyError: 'lost'"),
]


@pytest.mark.parametrize(("solve", "problem"), WRONG)
def test_what_a_solution_gets_wrong_names_the_row_and_what_happened(
    solve: Any, problem: str
) -> None:
    class Wrong(Shop):
        def solve(self, row: Mapping[str, Any]) -> Any:
            return solve(row)

    with pytest.raises(UserCodeError, match=problem) as caught:
        solved(Wrong())
    assert caught.value.hook == "solve"
    assert caught.value.row == ROW
    assert "Wrong.solve: " in str(caught.value) and "row: " in str(caught.value)


def test_a_failed_last_call_is_told_although_the_episode_is_over() -> None:
    class Wrong(Shop):
        def solve(self, row: Mapping[str, Any]) -> Any:
            return [call("price", fruit="kiwi")]

    with pytest.raises(UserCodeError, match=r"price\(fruit='kiwi'\) failed"):
        solved(Wrong(max_turns=1))


def test_a_generator_is_ended_when_its_episode_fails() -> None:
    ended = []

    class Wrong(Shop):
        def solve(self, row: Mapping[str, Any]) -> Any:
            try:
                yield call("price", fruit="kiwi")
                yield "45"
            finally:
                ended.append(True)

    with pytest.raises(UserCodeError):
        solved(Wrong())
    assert ended == [True]


WAIT_S = 3.0  # longer than `solve_timeout_s` below, and not too long for a thread left behind


class HangsLate(AsGenerator):
    def solve(self, row: Mapping[str, Any]) -> Any:
        yield call("price", fruit="plum")
        if row.get("hang"):
            time.sleep(WAIT_S)
        yield "It costs 45."


class HangsAtOnce(Shop):
    def solve(self, row: Mapping[str, Any]) -> Any:
        if row.get("hang"):
            time.sleep(WAIT_S)
        return [call("price", fruit="plum"), "It costs 45."]


class HangsAsync(Shop):
    async def solve(self, row: Mapping[str, Any]) -> Any:
        yield call("price", fruit="plum")
        if row.get("hang"):
            await asyncio.sleep(WAIT_S)
        yield "It costs 45."


@pytest.mark.parametrize(
    ("form", "where"),
    [
        (HangsLate, "after message 1"),
        (HangsAtOnce, "before its first message"),
        (HangsAsync, "after message 1"),
    ],
)
def test_a_solution_that_waits_is_given_up_and_the_next_one_is_played(
    form: type[Shop], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "solve_timeout_s", 0.2)
    env, hanging = form(), ROW | {"hang": True}
    for row in (ROW, hanging, ROW):
        if row is not hanging:
            assert asyncio.run(play_solution(env, row)).reward == 0.5
            continue
        with pytest.raises(UserCodeError, match=f"solve: took longer than 0.2 s {where}; it must"):
            asyncio.run(play_solution(env, row))
    env.close()


@pytest.mark.parametrize("given", ["60", 0, -1.0, True, float("nan")])
def test_a_time_limit_that_is_no_time_is_named(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HangsLate, "solve_timeout_s", given)
    with pytest.raises(ConfigError, match=r"HangsLate.solve_timeout_s: must be a number of second"):
        asyncio.run(play_solution(HangsLate(), ROW))


def test_a_timeout_within_a_solution_is_its_own() -> None:
    class Impatient(Shop):
        def solve(self, row: Mapping[str, Any]) -> Any:
            raise TimeoutError("the price list does not answer")

    with pytest.raises(UserCodeError, match="solve: TimeoutError: the price list does not answer"):
        solved(Impatient())


def test_a_row_may_have_no_solution() -> None:
    class Some(Shop):
        def solve(self, row: Mapping[str, Any]) -> Any:
            return ["45"] if row.get("easy") else None

    with pytest.raises(NoSolution, match="no solution for this row"):
        solved(Some())
    assert solved(Some(), {**ROW, "easy": True}).reward == 0.5


def test_a_class_without_solve_says_what_to_write() -> None:
    assert can_solve(AsList) and can_solve(AsList())
    assert not can_solve(Shop) and not can_solve(Environment)
    with pytest.raises(ConfigError, match=r"Shop has no `solve`.*def solve\(self, row\)"):
        solved(Shop())


def spoken(env: Environment, speaker: Any, row: Any = ROW) -> Trajectory:
    try:
        return asyncio.run(play_messages(env, speaker, row))
    finally:
        env.close()


def test_a_speaker_sees_the_conversation_and_the_tools() -> None:
    seen = []

    async def speaker(messages: list[Message], tools: list[Any]) -> Any:
        seen.append(([message["role"] for message in messages], len(tools)))
        return call("price", fruit="fig") if len(messages) == 1 else {"content": "45"}

    trajectory = spoken(Shop(), speaker)
    assert seen == [(["user"], 2), (["user", "assistant", "tool"], 2)]
    assert trajectory.reward == 0.5 and trajectory.terminated
    assert trajectory.messages[-1] == {"role": "assistant", "content": "45"}


def test_the_states_of_turns_are_kept_as_in_a_rollout() -> None:
    class Walk(AsList):
        def turn_state(self) -> Any:
            return len(self.episode.turns)

    assert list(solved(Walk()).states) == [0, 1, 2]
    assert list(solved(AsList()).states) == []


def test_what_a_speaker_says_wrong_is_told_to_it_as_to_a_policy() -> None:
    async def speaker(messages: list[Message], tools: list[Any]) -> Any:
        return call("price", fruit="kiwi")

    trajectory = spoken(Shop(max_turns=2), speaker)
    assert trajectory.stop_reason is StopReason.max_turns
    assert trajectory.metrics["tools/errors"] == 2


def test_a_speaker_that_says_no_message_is_named() -> None:
    async def speaker(messages: list[Message], tools: list[Any]) -> Any:
        return "45"

    with pytest.raises(ConfigError, match="assistant message, a dict, got '45'"):
        spoken(Shop(), speaker)
    with pytest.raises(DataError):
        spoken(Shop(), speaker, row={"no": "prompt"})


@given(
    st.lists(st.lists(st.sampled_from(["plum", "fig"]), min_size=1, max_size=3), max_size=4),
    st.booleans(),
)
def test_every_call_is_answered_once_in_order(plan: list[list[str]], lazily: bool) -> None:
    class Planned(Shop):
        def solve(self, row: Mapping[str, Any]) -> Any:
            said = [[call("price", fruit=fruit) for fruit in turn] for turn in plan]
            return (each for each in [*said, "45"]) if lazily else [*said, "45"]

    messages = solved(Planned()).messages
    called = [each["id"] for m in messages for each in m.get("tool_calls", [])]
    assert called == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert len(set(called)) == sum(map(len, plan))
