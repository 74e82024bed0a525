"""The hooks of a subclass: sync or async, called once, and blamed by name when they raise."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gymnast.envs import Environment, Episode, Outcome, Turn, tool
from gymnast.errors import ConfigError, DataError, InfrastructureError, UserCodeError
from gymnast.types import StopReason, ToolCall

ANSWER = {"role": "assistant", "content": "Done."}


def test_every_hook_may_be_async(calls: Callable[..., Any]) -> None:
    class Later(Environment):
        async def sample_row(self, rng: np.random.Generator) -> Any:
            return {"start": int(rng.integers(10))}

        async def setup(self, row: Any) -> Any:
            self.cleaned = False
            return [{"role": "user", "content": f"Start at {row['start']}."}]

        async def turn_reward(self, turn: Turn) -> float:
            return 0.25

        async def reward(self, episode: Episode) -> Any:
            return {"format": 0.5, "answer": 1}

        async def metrics(self, episode: Episode) -> Any:
            return {"length": len(episode.answer)}

        async def cleanup(self) -> None:
            self.cleaned = True

        @tool
        def look(self) -> str:
            """Look."""
            return ""

    env = Later()

    async def run() -> list[Outcome]:
        await env.areset(seed=3)
        return [await env.act(calls(("look", {}))), await env.act(ANSWER)]

    first, last = asyncio.run(run())
    assert env.messages[0]["content"] == f"Start at {env.row['start']}."
    assert first.reward == 0.25
    assert last.reward == 1.75
    assert last.info["reward_parts"] == {"format": 0.5, "answer": 1.0}
    assert last.info["metrics"]["length"] == 5.0
    assert env.cleaned


def failing(hook: str, returns: Any = None) -> Any:
    """An environment one of whose hooks raises, or returns what it must not."""

    def fail(self: Any, *arguments: Any) -> Any:
        if returns is None:
            raise KeyError("answre")
        return returns

    return type("Failing", (Counting,), {hook: fail})()


class Counting(Environment):
    """Counts how often it is set up and cleaned up."""

    setups = cleanups = 0

    def setup(self, row: Any) -> Any:
        self.setups += 1

    def cleanup(self) -> None:
        self.cleanups += 1


@pytest.mark.parametrize("hook", ["setup", "reward", "turn_reward", "metrics", "cleanup"])
def test_an_exception_in_a_hook_names_the_hook_and_the_row(hook: str) -> None:
    env = failing(hook)
    with pytest.raises(UserCodeError) as caught:
        env.reset(options={"row": {"prompt": "Go.", "answer": 3}})
        asyncio.run(env.act(ANSWER))
    assert caught.value.hook == hook
    assert caught.value.row == {"prompt": "Go.", "answer": 3}
    assert isinstance(caught.value.__cause__, KeyError)
    for word in (f"Failing.{hook}", "KeyError: 'answre'", "'answer': 3"):
        assert word in str(caught.value)
    if hook != "cleanup":
        assert env.cleanups == 1
    env.close()
    if hook != "cleanup":
        assert env.cleanups == 1


def test_an_object_in_the_row_that_cannot_be_shown_hides_no_exception() -> None:
    class Unshown:
        def __repr__(self) -> str:
            raise ValueError("not connected")

    env = failing("reward")
    env.reset(options={"row": {"prompt": "Go.", "database": Unshown()}})
    with pytest.raises(UserCodeError, match=r"KeyError: 'answre'.*'database': <Unshown instance"):
        asyncio.run(env.act(ANSWER))


def test_an_exception_in_sample_row_has_no_row_yet() -> None:
    with pytest.raises(UserCodeError) as caught:
        failing("sample_row").reset()
    assert caught.value.hook == "sample_row" and caught.value.row is None


@pytest.mark.parametrize(
    ("hook", "returns", "words"),
    [
        (
            "reward",
            "1.0",
            r"returned the text '1.0'; it must return a finite number, as float\(...\)",
        ),
        ("reward", {"a": "good"}, "the text 'good' for 'a'; it must return a finite number, as f"),
        ("reward", float("nan"), "finite number"),
        ("reward", {"good": None}, "'good'"),
        ("turn_reward", [1.0], "finite number"),
        ("metrics", 3.0, "dict of numbers"),
        ("setup", "Hello.", "list of messages"),
        ("setup", [{"content": "Hello."}], "list of messages"),
        ("setup", [], "list of messages"),
        (
            "setup",
            [{"role": "user", "content": object()}],
            "the content of message 0 .user. is <obj",
        ),
        ("setup", [{"role": "user", "content": "Go.", "name": object()}], "JSON can express"),
    ],
)
def test_a_hook_that_returns_the_wrong_thing_is_named(hook: str, returns: Any, words: str) -> None:
    env = failing(hook, returns)
    with pytest.raises(UserCodeError, match=words):
        env.reset(options={"row": {"prompt": "Go."}})
        asyncio.run(env.act(ANSWER))
    assert env.cleanups == 1


def test_a_reward_that_returns_none_says_nothing_of_the_episode() -> None:
    class Judged(Environment):
        def reward(self, episode: Episode) -> Any:
            return self.row["score"]

    for score, no_reward in ((None, True), (0.0, False)):
        env = Judged()
        env.reset(options={"row": {"prompt": "Go.", "score": score}})
        outcome = asyncio.run(env.act(ANSWER))
        assert outcome.reward == 0.0
        assert outcome.info.get("no_reward", False) is no_reward


def test_a_turn_reward_that_forgets_to_return_is_named() -> None:
    class Forgot(Environment):
        def turn_reward(self, turn: Turn) -> Any:
            turn.message  # noqa: B018

    env = Forgot()
    env.reset(options={"row": {"prompt": "Go."}})
    with pytest.raises(UserCodeError, match="returned None"):
        asyncio.run(env.act(ANSWER))


def test_cleanup_runs_once_at_the_end_on_a_new_reset_or_on_close() -> None:
    env = Counting()
    row = {"row": {"prompt": "Go."}}
    env.reset(options=row)
    asyncio.run(env.act(ANSWER))
    assert env.cleanups == 1
    env.reset(options=row)
    env.reset(options=row)
    assert (env.setups, env.cleanups) == (3, 2)
    env.close()
    env.close()
    assert env.cleanups == 3
    env.reset(options=row)  # a closed environment can be used again
    env.close()
    assert (env.setups, env.cleanups) == (4, 4)


@pytest.mark.parametrize("hook", ["reward", "turn_reward", "metrics", "setup"])
def test_infrastructure_that_breaks_in_a_hook_is_nobodys_fault(hook: str) -> None:
    def fail(self: Any, *arguments: Any) -> Any:
        raise InfrastructureError("the judge is gone")

    env: Any = type("Unlucky", (Counting,), {hook: fail})()
    if hook == "setup":
        with pytest.raises(InfrastructureError, match="judge"):
            env.reset(options={"row": {"prompt": "Go."}})
    else:
        env.reset(options={"row": {"prompt": "Go."}})
        outcome = asyncio.run(env.act(ANSWER))
        assert outcome.info["stop_reason"] is StopReason.error and outcome.truncated
        assert outcome.reward == 0.0 and "judge" in outcome.info["failure"]
        assert env.episode.stop_reason is StopReason.error
    assert env.cleanups == 1


def test_a_broken_cleanup_does_not_undo_an_episode(caplog: pytest.LogCaptureFixture) -> None:
    class Dirty(Environment):
        def cleanup(self) -> None:
            raise InfrastructureError("the sandbox died")

    env = Dirty()
    env.reset(options={"row": {"prompt": "Go."}})
    assert asyncio.run(env.act(ANSWER)).info["stop_reason"] is StopReason.answered
    assert "cleanup failed" in caplog.text


def test_a_row_comes_from_reset_or_sample_row_or_rows() -> None:
    rows = [{"prompt": str(i)} for i in range(50)]
    env = Environment(rows=rows)
    env.reset(seed=5)
    first = env.row
    env.reset()
    env.reset(seed=5)
    assert env.row == first and first in rows
    env.reset(options={"row": {"prompt": "mine"}})
    assert env.row == {"prompt": "mine"}
    with pytest.raises(DataError, match=r"no rows.*rows=\[.*sample_row"):
        Environment().reset()
    with pytest.raises(DataError, match="empty list of rows"):
        Environment(rows=[]).reset()
    with pytest.raises(DataError, match="must be a dict"):
        env.reset(options={"row": "prompt"})


def test_a_row_without_a_prompt_says_which_columns_it_has() -> None:
    with pytest.raises(DataError, match=r"no 'prompt' \(its columns: question, answer\)"):
        Environment().reset(options={"row": {"question": "?", "answer": 3}})
    with pytest.raises(DataError, match="a string or a list of messages"):
        Environment().reset(options={"row": {"prompt": 3}})


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (5, "the row's 'prompt' is 5; it must be a string or a list of messages"),
        ({"role": "user"}, "it must be a string or a list of messages, each with 'role'"),
        ([{"type": "text", "text": "Go."}], "it must be a string or a list of messages, each with"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "See:"}, IMAGE]}],
            "the row's 'prompt': part 1 in the content of message 0 (user) is of type 'image_url'. "
            "A message holds text alone",
        ),
        (
            [{"role": "system", "content": "Hi."}, {"role": "user", "content": ["Go."]}],
            "part 0 in the content of message 1 (user) is 'Go.'. A message holds text",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": 5}]}],
            "is {'type': 'text', 'text': 5}",
        ),
        ([{"role": "user", "content": 5}], "the content of message 0 (user) is 5. A message holds"),
    ],
)
def test_a_prompt_that_is_no_text_is_named_with_the_rule(prompt: Any, words: str) -> None:
    with pytest.raises(DataError, match=re.escape(words)):
        Environment().reset(options={"row": {"prompt": prompt}})


def test_setup_that_returns_an_image_is_named_with_the_rule() -> None:
    class Gallery(Environment):
        def setup(self, row: Any) -> Any:
            return [{"role": "user", "content": [IMAGE]}]

    with pytest.raises(UserCodeError, match=r"Gallery.setup: .*part 0 .* of type 'image_url'"):
        Gallery().reset(options={"row": {}})


def test_the_first_messages_are_recorded_as_plain_json() -> None:
    worked = {
        "role": "assistant",
        "tool_calls": [ToolCall("x", "add", {"a": 1})],
        "content": "\ud800",
    }
    plain = {
        "role": "assistant",
        "tool_calls": [ToolCall("x", "add", {"a": 1}).to_dict()],
        "content": "\ufffd",
    }
    env = Environment(system_prompt="\udfff")
    user = {"role": "user", "content": "Go on."}
    env.reset(options={"row": {"prompt": [worked, user]}})
    assert env.messages == [{"role": "system", "content": "\ufffd"}, plain, user]
    env.reset(options={"row": {"prompt": "\ud800"}})
    assert env.messages[1]["content"] == "\ufffd"
    with pytest.raises(DataError, match=r"JSON can express.*bytes"):
        env.reset(options={"row": {"prompt": [{"role": "user", "content": "", "name": b"Go."}]}})


def test_what_an_episode_does_to_its_row_does_not_reach_the_next() -> None:
    class Greedy(Environment):
        def setup(self, row: Any) -> None:
            row["items"].append("taken")

    row: Any = {"prompt": "Go.", "items": []}
    env = Greedy()
    for _ in range(2):
        env.reset(options={"row": row})
        assert env.row["items"] == ["taken"]
    assert row["items"] == []


def test_a_system_prompt_is_put_first_unless_there_is_one() -> None:
    env = Environment(system_prompt="Be brief.")
    env.reset(options={"row": {"prompt": "Go."}})
    assert env.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
    ]
    own: list[Any] = [{"role": "system", "content": "Own."}, {"role": "user", "content": "Go."}]
    env.reset(options={"row": {"prompt": own}})
    assert env.messages == own


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_turns": 0}, "max_turns must be a whole number >= 1, got 0"),
        ({"max_tokens": 1.5}, "max_tokens must be"),
        ({"context_length": True}, "context_length must be"),
        ({"episode_timeout_s": 0}, "episode_timeout_s must be > 0"),
        ({"system_prompt": 3}, "system_prompt must be a string"),
        ({"renderer": 3}, "renderer has type int; wrap a tokenizer"),
        ({"rows": 3}, "rows has type int"),
    ],
)
def test_settings_out_of_range_are_errors(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Environment(**settings)
