"""The tool loop at the level of messages: no tokens, no renderer."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.error import ResetNeeded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gymnast.envs import Environment, Outcome, tool
from gymnast.envs.environment.tokens.context import UNLIMITED
from gymnast.errors import ConfigError, DataError, InfrastructureError
from gymnast.types import StopReason, ToolCall


class Desk(Environment):
    """Tools of every kind."""

    def setup(self, row: Any) -> None:
        self.log: list[str] = []

    @tool
    def write(self, text: str) -> int:
        """Write a line."""
        self.log.append(text)
        return len(self.log)

    @tool
    async def awrite(self, text: str) -> dict[str, str]:
        """Write a line, later."""
        await asyncio.sleep(0)
        self.log.append(text)
        return {"wrote": text}

    @tool
    def fail(self) -> str:
        """Fail."""
        raise KeyError("shelf")

    @tool(stop=True)
    def submit(self, answer: int) -> str:
        """Hand in."""
        return f"received {answer}"

    @tool
    def win(self) -> str:
        """Win the game."""
        self.end_episode()
        return "won"

    @tool
    def crash(self) -> str:
        """Lose the sandbox."""
        raise InfrastructureError("the sandbox died")

    def reward(self, episode: Any) -> float:
        return float(len(self.log))


class Basket(Environment):
    """Tools that return what they go on changing."""

    def setup(self, row: Any) -> None:
        self.fruits: list[str] = []

    @tool
    def put(self, fruit: str) -> list[str]:
        """Put a fruit into the basket."""
        self.fruits.append(fruit)
        return self.fruits

    @tool
    def look(self) -> dict[str, tuple[str, ...]]:
        """Look into the basket."""
        return {"fruits": tuple(self.fruits)}


def test_an_episode_of_three_turns(calls: Callable[..., Any], play: Callable[..., Any]) -> None:
    env = Desk(system_prompt="Be brief.")
    first, second, last = play(
        env,
        calls(("write", {"text": "a"})),
        calls(("awrite", {"text": "b"})),
        {"role": "assistant", "content": "Done."},
    )
    assert first.messages == [
        {"role": "tool", "tool_call_id": "id0", "name": "write", "content": "1"}
    ]
    assert second.messages[0]["content"] == '{"wrote": "b"}'
    assert (first.reward, first.terminated, first.truncated) == (0.0, False, False)
    assert first.info["stop_reason"] is None and first.info["tokens_left"] == UNLIMITED
    assert first.info["timings"]["tools"] >= first.info["timings"]["tool/write"] > 0
    assert last.messages == [] and last.reward == 2.0 and last.terminated
    assert last.info["stop_reason"] is StopReason.answered
    assert last.info["metrics"]["tools/calls/awrite"] == 1.0

    roles = [message["role"] for message in env.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert env.messages[2]["tool_calls"][0]["function"]["arguments"] == {"text": "a"}
    json.dumps(env.messages)
    assert env.episode.answer == "Done."
    assert [call.name for call in env.episode.tool_calls] == ["write", "awrite"]


def test_several_calls_in_one_action_run_in_order(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    named = [("write", {"text": "a"}), ("awrite", {"text": "b"}), ("write", {"text": "c"})]
    env = Desk()
    outcome = play(env, calls(*named))[0]
    assert env.log == ["a", "b", "c"]
    assert [m["content"] for m in outcome.messages] == ["1", '{"wrote": "b"}', "3"]
    assert [m["tool_call_id"] for m in outcome.messages] == ["id0", "id1", "id2"]


def test_concurrent_tools_overlap_and_their_results_keep_the_order_of_the_calls(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    class Meeting(Environment):
        def setup(self, row: Any) -> None:
            self.arrived: list[int] = []

        @tool(concurrent=True, timeout_s=30)
        async def meet(self, number: int) -> int:
            """Wait until three are there; the last one returns first."""
            self.arrived.append(number)
            while len(self.arrived) < 3 + (2 - number):
                await asyncio.sleep(0)
            self.arrived.append(number)
            return number

    env = Meeting()
    outcome = play(env, calls(*(("meet", {"number": i}) for i in range(3))))[0]
    assert [message["content"] for message in outcome.messages] == ["0", "1", "2"]
    assert env.arrived == [0, 1, 2, 2, 1, 0]


def test_a_stop_tool_ends_the_episode_after_every_call_of_its_action(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    env = Desk()
    outcome = play(env, calls(("submit", {"answer": 1}), ("write", {"text": "after"})))[0]
    assert [m["content"] for m in outcome.messages] == ["received 1", "1"]
    assert outcome.terminated and outcome.info["stop_reason"] is StopReason.stop_tool
    assert outcome.reward == 1.0


def test_a_stop_call_that_failed_validation_does_not_end_the_episode(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    outcome = play(Desk(), calls(("submit", {"answer": "many"})))[0]
    assert not outcome.terminated and not outcome.truncated


def test_stop_tools_can_be_named_for_plain_functions(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    def look(where: str) -> str:
        """Look somewhere."""
        return where

    async def final_answer(text: str) -> str:
        """Answer."""
        return text

    def reward(episode: Any) -> float:
        return float(episode.calls[-1].result == episode.row["answer"])

    row = {"prompt": "Go.", "answer": "here"}
    messages = [calls(("look", {"where": "there"})), calls(("final_answer", {"text": "here"}))]
    named_in_class = Environment.from_tools(
        [look, final_answer], reward=reward, stop_tools=["final_answer"]
    )

    class Subclass(named_in_class):  # type: ignore[misc,valid-type]
        pass

    named_in_config = Environment.from_tools([look, final_answer], reward=reward)(
        stop_tools=["final_answer"]
    )
    for env in (named_in_class(), Subclass(), named_in_config):
        first, last = play(env, *messages, row=row)
        assert not first.terminated
        assert last.info["stop_reason"] is StopReason.stop_tool and last.reward == 1.0


def test_the_environment_can_end_an_episode(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    outcome = play(Desk(), calls(("win", {})))[0]
    assert outcome.terminated and outcome.info["stop_reason"] is StopReason.environment
    assert outcome.messages[0]["content"] == "won"


class Clock(Environment):
    """A game with limits of its own."""

    @tool
    def tick(self, truncated: bool, terminated: bool = False) -> str:
        """Let time pass."""
        self.end_episode(truncated=truncated)
        if terminated:
            self.end_episode()
        return "tick"


@pytest.mark.parametrize("terminated", [True, False])
def test_the_environment_can_end_an_episode_at_a_limit_of_its_own(
    terminated: bool, calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    said = calls(("tick", {"truncated": True, "terminated": terminated}))
    outcome = play(Clock(max_turns=9), said)[0]
    assert (outcome.terminated, outcome.truncated) == (terminated, not terminated)
    reason = StopReason.environment if terminated else StopReason.max_turns
    assert outcome.info["stop_reason"] is reason
    assert outcome.messages[0]["content"] == "tick"


def test_on_the_last_turn_tools_still_run(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    outcome = play(Desk(max_turns=1), calls(("write", {"text": "a"})))[0]
    assert outcome.truncated and outcome.info["stop_reason"] is StopReason.max_turns
    assert outcome.messages[0]["content"] == "1" and outcome.reward == 1.0


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (("wriet", {}), "unknown_tool", ["'write'", "submit"]),
        (("write", {}), "bad_arguments", ["write(text: str)", '"text" is missing']),
        (("fail", {}), "exception", ["fail: KeyError: 'shelf'"]),
        (("write", "{"), "malformed", ["not valid JSON", "write(text: str)"]),
        (
            ("write", '{"text": "a", "\\u0074ext": "b"}'),
            "malformed",
            ["the argument 'text' is given twice", "write(text: str)"],
        ),
        (("write", '{"text": {"k": 1, "k": 2}}'), "malformed", ["the element 'k' is given twice"]),
        (("write", '{"text": NaN}'), "malformed", ["NaN is not JSON"]),
    ],
)
def test_what_the_policy_got_wrong_is_answered_typed_and_counted(
    call: Any, kind: str, words: list[str], calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    outcome, last = play(Desk(), calls(call), calls(content="Sorry."))
    assert [error.kind for error in outcome.info["errors"]] == [kind]
    message = outcome.messages[0]
    assert message["role"] == "tool" and message["tool_call_id"] == "id0"
    assert message["content"] == "Error: " + outcome.info["errors"][0].message
    for word in words:
        assert word in message["content"]
    assert last.info["metrics"][f"tools/errors/{kind}"] == 1.0
    assert last.info["metrics"]["tools/errors"] == 1.0


def test_malformed_calls_are_answered_and_counted(play: Callable[..., Any]) -> None:
    broken = [
        ToolCall("x", "write", {}, error="a bracket is missing"),
        {"function": "write"},
        {"id": "y", "function": {"arguments": "\ud800"}},
        "write(1)",
        ToolCall("\ud800", "\ud800", {}, error="\ud800"),
        {"id": "\ud801", "function": {"name": "\ud801", "arguments": {"\ud801": "\ud801"}}},
    ]
    env = Desk()
    outcome = play(env, {"role": "assistant", "content": None, "tool_calls": broken})[0]
    kinds = [error.kind for error in outcome.info["errors"]]
    assert kinds == ["malformed"] * 5 + ["unknown_tool"]
    ids = [message["tool_call_id"] for message in outcome.messages]
    assert ids == ["x", "call_0_1", "y", "call_0_3", "\ufffd", "\ufffd"]
    assert "name" not in outcome.messages[1] and outcome.messages[0]["name"] == "write"
    assert "a bracket is missing" in outcome.messages[0]["content"]
    assert "error" in env.messages[1]["tool_calls"][0]
    json.dumps(env.messages, ensure_ascii=False).encode()


def test_an_error_that_quotes_the_policy_stays_short(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    long = "x" * 100_000
    for call in ((long, {}), ("write", {long: 1}), ("write", {"text": {long: long}})):
        outcome = play(Desk(), calls(call))[0]
        assert len(outcome.info["errors"]) == 1
        assert len(outcome.messages[0]["content"]) < 2100
        assert "write" in outcome.messages[0]["content"]  # its end: the tools there are


def test_the_tools_offered_may_differ_from_row_to_row(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    env = Desk()
    row = {"prompt": "Go.", "tools": ["submit", "write"]}
    allowed, forbidden = play(env, calls(("write", {"text": "a"})), calls(("win", {})), row=row)
    assert [schema["function"]["name"] for schema in env.tools] == ["write", "submit"]
    assert allowed.info["errors"] == []
    assert [error.kind for error in forbidden.info["errors"]] == ["unknown_tool"]
    assert "write, submit." in forbidden.messages[0]["content"]
    play(env, calls(("win", {})), row={"prompt": "Go.", "tools": None})
    assert len(env.tools) == 6
    with pytest.raises(DataError, match=r"'sumbit'.*mean 'submit'"):
        env.reset(options={"row": {"prompt": "Go.", "tools": ["sumbit"]}})
    with pytest.raises(DataError, match="list of tool names"):
        env.reset(options={"row": {"prompt": "Go.", "tools": "submit"}})


def test_broken_infrastructure_ends_the_episode_with_an_error(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    outcome = play(Desk(), calls(("write", {"text": "a"}), ("crash", {})))[0]
    assert outcome.truncated and outcome.info["stop_reason"] is StopReason.error
    assert outcome.reward == 0.0 and outcome.messages == []
    assert "the sandbox died" in outcome.info["failure"]


def test_long_results_are_cut_in_the_middle(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    @tool(max_output_tokens=20)
    def read() -> str:
        """Read a long file."""
        return "begin " + "x" * 100_000 + " end"

    text = play(Environment.from_tools([read])(), calls(("read", {})))[0].messages[0]["content"]
    assert text.startswith("begin ") and text.endswith(" end")
    assert "characters left out" in text and len(text) <= 80


def test_a_record_keeps_what_a_tool_returned_when_it_returned_it(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    env = Basket()
    play(env, calls(("put", {"fruit": "pear"})), calls(("put", {"fruit": "plum"}), ("look", {})))
    first, second, third = env.episode.calls
    assert (first.result, second.result) == (["pear"], ["pear", "plum"])
    assert third.result == {"fruits": ["pear", "plum"]}
    assert [json.loads(record.text) for record in (first, second, third)] == [
        record.result for record in (first, second, third)
    ]


def test_records_are_shown_to_people_in_a_line(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    env = Desk()
    play(env, calls(("write", {"text": "a"}), ("fail", {})), calls(content="x" * 5000))
    first, second = env.episode.calls
    assert repr(first) == "<CallRecord write(text='a') -> 1>"
    assert repr(second) == "<CallRecord fail() -> Error: fail: KeyError: 'shelf'>"
    assert repr(env.episode.turns[0]) == "<Turn index=0 calls=2 errors=1 text=''>"
    shown = repr(env.episode)
    assert shown.startswith("<Episode turns=2 calls=2 errors=1 stop_reason=answered answer='xxx")
    assert len(shown) < 200 and len(repr(env.episode.turns[1])) < 200


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), TimeoutError("mine")])
def test_no_exception_of_a_tool_gets_out(
    error: BaseException, calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    def leave() -> str:
        """Leave."""
        raise error

    async def aleave() -> str:
        """Leave, later."""
        raise error

    @tool(timeout_s=60)
    async def acancel() -> str:
        """Be cancelled from inside."""
        raise asyncio.CancelledError

    env = Environment.from_tools([leave, aleave, acancel])()
    outcome = play(env, calls(("leave", {}), ("aleave", {}), ("acancel", {})))[0]
    assert [error.kind for error in outcome.info["errors"]] == ["exception"] * 3


def test_acting_needs_an_episode_that_runs(calls: Callable[..., Any]) -> None:
    env = Desk()
    with pytest.raises(ResetNeeded, match="reset"):
        asyncio.run(env.act(calls(content="Hi.")))
    env.reset(options={"row": {"prompt": "Go."}})
    assert asyncio.run(env.act(calls(content="Hi."))).terminated
    with pytest.raises(ResetNeeded):
        asyncio.run(env.act(calls(content="Hi.")))
    with pytest.raises(ResetNeeded):
        env.step([1])


def test_steps_without_a_renderer_say_what_to_do() -> None:
    env = Desk()
    ids, info = env.reset(options={"row": {"prompt": "Go."}})
    assert ids.size == 0 and info["stop_ids"] == []
    with pytest.raises(ConfigError, match=r"no renderer.*Renderer\(tokenizer\)"):
        env.step([1])


def test_a_cancelled_turn_leaves_the_environment_usable(calls: Callable[..., Any]) -> None:
    class Slow(Environment):
        cleaned = 0
        waiting: asyncio.Event

        @tool
        async def wait(self) -> str:
            """Wait for ever."""
            self.waiting.set()
            await asyncio.Event().wait()
            return ""

        def cleanup(self) -> None:
            self.cleaned += 1

    env = Slow()

    async def run() -> Outcome:
        env.waiting = asyncio.Event()
        await env.areset(options={"row": {"prompt": "Go."}})
        task = asyncio.create_task(env.act(calls(("wait", {}))))
        await env.waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert env.cleaned == 1
        await env.areset(options={"row": {"prompt": "Go."}})
        return await env.act(calls(content="Hi."))

    assert asyncio.run(run()).terminated
    assert env.cleaned == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["write", "awrite", "fail", "submit", "win"]) | st.text(max_size=5)
CALLS = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": NAMES}) | JSON}) | JSON


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.fixed_dictionaries({"content": JSON, "tool_calls": st.lists(CALLS, max_size=3) | JSON}))
def test_no_message_makes_act_raise(message: Any) -> None:
    async def run() -> Outcome:
        await env.areset(options={"row": {"prompt": "Go."}})
        return await env.act(message)

    env = Desk()
    outcome = asyncio.run(run())
    env.close()
    assert len(outcome.messages) == len(outcome.info["tool_calls"])
    json.dumps(env.messages).encode()


@pytest.mark.parametrize("levels", [2, 90, 110, *range(900, 1000, 4), 3000])
def test_what_is_nested_deeply_is_recorded_so_that_everyone_can_write_it(levels: int) -> None:
    """Whether JSON can be written depends on how deep the stack is: a later writer failed."""
    text: Any = []
    for _ in range(levels):
        text = [text]

    async def run() -> None:
        await env.areset(options={"row": {"prompt": "Go."}})
        written = {"name": "write", "arguments": {"text": text}}
        await env.act({"role": "assistant", "tool_calls": [{"id": "a", "function": written}]})

    env = Desk(render_mode="ansi")
    asyncio.run(run())
    whole: Any = env.messages
    for _ in range(500):
        whole = [whole]
    assert json.dumps(whole)
    call = env.messages[1]["tool_calls"][0]
    assert call["function"]["name"] == "write" and call["id"] == "a"
    assert "write(" in (env.render() or "")
    env.close()
    while text:  # Python takes a deep list apart by recursion, too
        (text,) = text
