"""What a turn acts in, and rewards for places in what the policy wrote."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Outcome, Renderer, Turn, check_env, tool
from gymnast.envs.environment.tokens.context import paid_by_token
from gymnast.errors import InfrastructureError, SandboxFileError, UserCodeError
from gymnast.types import StopReason

ANSWER = {"role": "assistant", "content": "Done."}
ROW = {"row": {"prompt": "Go."}}


class Rooms(Environment):
    """Doors lead from room to room; a cited fact is worth something where it is written."""

    def setup(self, row: Any) -> None:
        self.room = "hall"

    @tool
    def go(self, room: str) -> str:
        """Go into a room."""
        self.room = room
        return f"You are in the {room}."

    def turn_state(self) -> Any:
        return self.room, len(self.episode.turns)

    def turn_reward(self, turn: Turn) -> float:
        return 0.5

    def text_rewards(self, turn: Turn) -> Any:
        return [(cited.end(), 0.1) for cited in re.finditer(r"\[\d+\]", turn.raw)]

    def reward(self, episode: Any) -> float:
        return 1.0


def played(env: Environment, *messages: Any) -> tuple[dict[str, Any], list[Outcome]]:
    async def run() -> tuple[dict[str, Any], list[Outcome]]:
        _, info = await env.areset(options=ROW)
        return info, [await env.act(message) for message in messages]

    try:
        return asyncio.run(run())
    finally:
        env.close()


# --- States


def test_a_state_is_that_of_the_next_turn_from_reset_on(calls: Callable[..., Any]) -> None:
    info, (first, last) = played(Rooms(), calls(("go", {"room": "cellar"})), ANSWER)
    assert info["state"] == ("hall", 0)
    assert first.info["state"] == ("cellar", 1)
    assert last.terminated and "state" not in last.info, "no turn follows"


def test_without_the_hook_there_is_no_state() -> None:
    class Plain(Environment):
        """Nothing."""

    info, (last,) = played(Plain(), ANSWER)
    assert "state" not in info and "state" not in last.info


def test_the_hook_may_be_async_and_the_state_none(calls: Callable[..., Any]) -> None:
    class Later(Rooms):
        async def turn_state(self) -> Any:
            return None if self.room == "cellar" else self.room

    info, (first, _) = played(Later(), calls(("go", {"room": "cellar"})), ANSWER)
    assert info["state"] == "hall" and first.info["state"] is None


def test_a_state_that_cannot_be_hashed_is_the_authors_to_mend() -> None:
    class Listed(Rooms):
        def turn_state(self) -> Any:
            return [self.room]

    message = r"Listed.turn_state: returned \['hall'\], which cannot be hashed .*tuple\(a_list\)"
    with pytest.raises(UserCodeError, match=message):
        played(Listed())


def test_what_breaks_while_the_state_is_asked_for_ends_the_episode(
    calls: Callable[..., Any],
) -> None:
    class Breaking(Rooms):
        def turn_state(self) -> Any:
            if self.room == "cellar":
                raise InfrastructureError("the server of the rooms is gone")
            return self.room

    _, (only,) = played(Breaking(), calls(("go", {"room": "cellar"}), content="[1]"))
    assert only.truncated and only.info["stop_reason"] is StopReason.error
    assert "the rooms is gone" in only.info["failure"]
    assert only.reward == 0.0 and "text_rewards" not in only.info


def test_a_state_that_the_policy_made_unreadable_is_none(calls: Callable[..., Any]) -> None:
    class Unreadable(Rooms):
        def turn_state(self) -> Any:
            if self.room == "cellar":
                raise SandboxFileError(2, "the file is gone", "rooms.txt")
            return self.room

    _, (first, _) = played(Unreadable(), calls(("go", {"room": "cellar"})), ANSWER)
    assert first.info["state"] is None and not first.terminated


def test_an_environment_with_states_passes_the_check(renderer: Renderer) -> None:
    check_env(Rooms(renderer, rows=[{"prompt": "Go."}]))


# --- Rewards for places in a text


def test_what_is_paid_for_a_text_is_part_of_the_turns_reward() -> None:
    _, (last,) = played(Rooms(), {"role": "assistant", "content": "It is so [1], and so [22]."})
    assert last.reward == pytest.approx(1.0 + 0.5 + 0.2)
    assert last.info["text_rewards"] == [(12, 0.1), (25, 0.1)]
    assert "token_rewards" not in last.info, "messages have no tokens"


def test_a_reward_is_paid_at_the_token_that_completes_its_text(
    renderer: Renderer, tokenizer: Any
) -> None:
    env = Rooms(renderer)
    env.reset(options=ROW)
    ids = tokenizer.encode("<think>[1]</think>See [22], [3].<|im_end|>", add_special_tokens=False)
    _, reward, _, _, info = env.step(ids)
    env.close()
    assert reward == pytest.approx(1.0 + 0.5 + 0.3)
    places = [place for place, value in enumerate(info["token_rewards"]) if value]
    assert len(places) == 3
    for place, cited in zip(places, ("[1]", "[22]", "[3]"), strict=True):
        assert cited in tokenizer.decode(ids[: place + 1])
        assert cited not in tokenizer.decode(ids[:place])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (0.5, r"returned 0.5; it must return pairs \(end, reward\)"),
        ([3], r"returned 3 for a place; it must be \(end, reward\)"),
        ([(0, 1.0)], r"returned the place 0; it must be a whole number from 1 .* here 5"),
        ([(6, 1.0)], r"returned the place 6; "),
        ([(2, float("nan"))], r"returned nan for the place 2; it must return a finite number"),
    ],
)
def test_what_is_no_place_or_no_reward_is_the_authors_to_mend(returned: Any, message: str) -> None:
    class Wrong(Rooms):
        def text_rewards(self, turn: Turn) -> Any:
            return returned

    with pytest.raises(UserCodeError, match=rf"Wrong.text_rewards: {message}"):
        played(Wrong(), ANSWER)


RENDERER = Renderer(tiny_tokenizer())
text = st.text(st.sampled_from("ab é€😀\n"), max_size=12)
tokens = st.lists(st.integers(0, 1029), max_size=4)  # single bytes among them


@given(st.lists(text | tokens, max_size=4), st.data())
def test_every_reward_is_paid_once_at_the_first_token_that_completes_its_text(
    parts: list[str | list[int]], data: st.DataObject
) -> None:
    """Characters lie across tokens, and some bytes are no character."""
    ids, decode = list[int](), RENDERER.decode
    for part in parts:
        ids += RENDERER.tokenizer.encode(part) if isinstance(part, str) else part
    whole = decode(ids)
    places = st.tuples(st.integers(1, max(1, len(whole))), st.sampled_from([0.5, -1.0, 2.0]))
    paid = data.draw(st.lists(places, max_size=4)) if whole else []
    expected = [0.0] * len(ids)
    for end, reward in paid:
        reaching = [n for n in range(len(ids)) if decode(ids[: n + 1]).startswith(whole[:end])]
        assert reaching == list(range(reaching[0], len(ids))), "once complete, it stays so"
        expected[reaching[0]] += reward
    assert paid_by_token(decode, ids, paid) == expected
