"""A server that hangs, ends, lies or says too much harms its own episode alone."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from gymnast.errors import InfrastructureError
from gymnast.types import StopReason
from mcp_fixtures import aplay, have_ended, is_running, left, play, running_servers, told

pytestmark = pytest.mark.adapters
Calls = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("picture", "[image/png, 3 bytes]"),
        ("structured", '{"a": [1, 2]}'),
        ("rubbish", "after rubbish"),
        ("fail", "Error: fail: ToolFailed: not today"),
        ("refuse", "Error: refuse: ToolFailed: no"),
    ],
)
def test_what_a_server_says_is_an_observation(call: str, text: str, calls: Calls, odd: Any) -> None:
    result, after = play(odd("greets"), calls((call, {})), calls(("add", {"a": 1})))
    assert told(result) == text and not result.truncated
    assert told(after) == "1" and not after.info["errors"]
    assert bool(result.info["errors"]) == text.startswith("Error")


@pytest.mark.parametrize("call", ["malformed", "lie"])
def test_an_answer_that_breaks_the_protocol_or_its_schema_is_an_error(
    call: str, calls: Calls, odd: Any
) -> None:
    result, after = play(odd(), calls((call, {})), calls(("add", {"a": 1})))
    assert f"Error: {call}: ToolFailed: " in told(result) and told(after) == "1"


@pytest.mark.parametrize("accident", ["die", "hang", "huge", "lie", "mistake", "refuse"])
def test_an_accident_harms_its_own_episode_alone(accident: str, calls: Calls, odd: Any) -> None:
    harmed, *others = odd(call_timeout_s=1.0), odd(), odd()
    add = calls(("add", {"a": 1}))

    async def together() -> Any:
        return await asyncio.gather(
            aplay(harmed, add, calls((accident, {}))), *(aplay(env, *[add] * 30) for env in others)
        )

    (first, bad), *good = asyncio.run(together())
    assert told(first) == "1"
    assert bad.info["errors"] or bad.info["stop_reason"] is StopReason.error
    for outcomes in good:
        assert [told(outcome) for outcome in outcomes] == [str(n) for n in range(1, 31)]


def test_what_is_too_long_loses_its_middle_or_is_left_out(calls: Calls, odd: Any) -> None:
    env = odd()
    big, huge, after = play(env, calls(("big", {})), calls(("huge", {})), calls(("add", {"a": 1})))
    assert 1_000_000 <= len(told(big)) < 1_000_100 and "2000000 characters left out" in told(big)
    assert told(huge).endswith("The result has more than 16777216 bytes, and was left out.")
    assert told(after) == "1"


def test_a_call_that_hangs_is_given_up_and_its_process_ends(calls: Calls, odd: Any) -> None:
    env = odd(call_timeout_s=1.0)
    number, hang = play(env, calls(("pid", {})), calls(("hang", {})))
    assert "hang was given up after 1 s" in told(hang) and not hang.truncated
    (error,) = hang.info["errors"]
    assert error.kind == "timeout"
    env.close()
    assert have_ended(int(told(number)))


def test_a_server_that_ends_amid_a_call_ends_its_own_episode(calls: Calls, odd: Any) -> None:
    env = odd()
    (dead,) = play(env, calls(("die", {})))
    assert dead.truncated and dead.info["stop_reason"] is StopReason.error
    assert "Its process ended with code 3. It wrote to stderr: it hurts" in dead.info["failure"]
    (after,) = play(env, calls(("add", {"a": 2})))
    assert told(after) == "2"


@pytest.mark.parametrize(
    ("accident", "timeout_s", "problem"),
    [
        ("no start", 60.0, "code 1. It wrote to stderr: it lacks a key"),
        ("silent", 1.0, "the server does not answer within 1 s"),
        ("deaf", 4.0, "list_tools fails: TimeoutError"),
        ("bad list", 60.0, "list_tools fails: ValidationError"),
    ],
)
def test_a_server_that_does_not_begin_is_told(
    accident: str, timeout_s: float, problem: str, odd: Any
) -> None:
    env = odd(accident, start_timeout_s=timeout_s)
    with pytest.raises(InfrastructureError, match=r"mcp:odd: ") as raised:
        play(env)
    assert problem in str(raised.value)


def test_a_list_without_end_ends(odd: Any) -> None:
    env, plain = odd("endless"), odd()
    play(env)
    play(plain)
    assert env.tools == plain.tools


def test_tools_that_cannot_be_called_are_left_out(
    calls: Calls, odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env = odd("odd tools", name="warned-of")  # once in a process
    with caplog.at_level(logging.WARNING):
        play(env)
    names = {tool["function"]["name"] for tool in env.tools}
    long = ("long" * 30)[:60]
    assert {"a_b_c_d", "a_b_c_d_2", long + "long", f"{long}_2", "_", "silent"} <= names
    left_out = {"bad_type", "bad_reference", "bad_required"}
    assert not names & left_out and all(len(name) <= 64 for name in names)
    assert left_out == {
        name for name in left_out if f"its tool '{name}' is left out" in caplog.text
    }


def test_tools_that_change_are_those_of_the_next_episode(calls: Calls, odd: Any) -> None:
    env = odd(session="shared")
    changed, later = play(env, calls(("change", {})), calls(("later", {})))
    assert told(changed) == "changed" and later.info["errors"][0].kind == "unknown_tool"
    (later,) = play(env, calls(("later", {})))
    assert told(later) == "later"


def test_what_a_server_asks_for_is_refused(calls: Calls, odd: Any) -> None:
    (asked,) = play(odd(), calls(("ask", {})))
    sampling, elicitation, roots, unknown = told(asked).splitlines()
    assert (sampling, elicitation) == ("Sampling not supported", "Elicitation not supported")
    assert roots == "List roots not supported" and unknown == "Method not found"


@pytest.mark.parametrize("accident", ["", "stays"])
def test_all_that_a_server_has_started_ends_with_the_episode(
    accident: str, calls: Calls, odd: Any
) -> None:
    env = odd(accident)
    numbers = [int(told(o)) for o in play(env, calls(("pid", {})), calls(("child", {})))]
    assert all(map(is_running, numbers))
    end = asyncio.run(env.act({"role": "assistant", "content": "Done."}))
    assert end.terminated and have_ended(*numbers)


def test_an_episode_that_is_cancelled_leaves_no_process(calls: Calls, odd: Any) -> None:
    async def cancelled(env: Any, *messages: Any) -> None:
        playing = asyncio.create_task(aplay(env, *messages))
        await asyncio.sleep(1.0)
        playing.cancel()
        await asyncio.wait({playing})
        assert playing.cancelled()

    hanging, silent = odd(), odd("silent")
    asyncio.run(cancelled(hanging, calls(("hang", {}))))
    asyncio.run(cancelled(silent))
    assert not left(running_servers)


def test_a_session_belongs_to_an_episode_or_is_shared(calls: Calls, odd: Any) -> None:
    one, add = odd(), calls(("add", {"a": 1}))
    assert [told(play(one, add)[0]) for _ in range(2)] == ["1", "1"]
    first, second = odd(session="shared"), odd(session="shared")
    assert [told(play(env, add)[0]) for env in (first, second, first)] == ["1", "2", "3"]
    first.close()
    assert told(play(second, add)[0]) == "4"
    (number,) = play(second, calls(("pid", {})))
    second.close()
    assert have_ended(int(told(number)))
    assert told(play(first, add)[0]) == "1"


def test_a_shared_server_that_hangs_is_replaced(
    calls: Calls, odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.envs.adapters.mcp.session._ALIVE_TIMEOUT_S", 0.5)
    env, other = odd(session="shared", call_timeout_s=0.5), odd(session="shared", call_timeout_s=9)
    add, hang = calls(("add", {"a": 1})), calls(("hang", {}))

    async def both() -> tuple[Any, Any]:
        async def soon() -> Any:
            await asyncio.sleep(0.2)
            return await other.act(add)

        await aplay(env)
        await aplay(other)
        return await asyncio.gather(env.act(hang), soon())

    hung, lost = asyncio.run(both())
    assert "given up" in told(hung) and lost.info["stop_reason"] is StopReason.error
    assert told(play(other, add)[0]) == "1" and told(play(env, add)[0]) == "2"
