"""Where two episodes with the same actions first differ: what, and after which turn."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.replaying.difference import first_difference
from gymnast.types import Branch, Span, Trajectory
from saved_episodes import episode, said

ACTION = 9  # the token of every action


def in_tokens(prompt: list[int], answers: list[list[int]], rewards: list[float]) -> dict[str, Any]:
    """The fields of a context: a prompt, then actions of one token, each with an answer."""
    ids, turns = list(prompt), []
    for answer in answers:
        turns.append(Span(len(ids), len(ids) + 1))
        ids += [ACTION, *answer]
    mask = [int(any(start <= n < end for start, end in turns)) for n in range(len(ids))]
    return {
        "ids": ids,
        "action_mask": mask,
        "logprobs": [0.0] * len(ids),
        "prompt_length": len(prompt),
        "turns": turns,
        "turn_rewards": rewards,
    }


def decode(ids: Any) -> str:
    return "".join(map(str, ids))


ANSWERS = st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=4)


@given(ANSWERS, st.data())
def test_the_first_token_that_differs_is_found_after_its_turn(
    answers: list[list[int]], data: st.DataObject
) -> None:
    whole = replace(episode(said("x")), **in_tokens([1, 2], answers, [0.0] * len(answers)))
    assert first_difference(whole, whole, decode) is None
    turn = data.draw(st.integers(0, len(answers)))
    changed = [list(answer) for answer in answers]
    prompt = [1, 2]
    if turn == 0:
        prompt = [1, 4]
    else:
        at = data.draw(st.integers(0, len(changed[turn - 1])))
        changed[turn - 1][at:] = [4]
    other = replace(whole, **in_tokens(prompt, changed, [0.0] * len(answers)))
    found = first_difference(whole, other, decode)
    assert found is not None
    assert (found.what, found.turn) == ("observation" if turn else "prompt", turn)
    assert "4" in found.found


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=4), st.data())
def test_the_first_reward_that_differs_is_found(rewards: list[float], data: st.DataObject) -> None:
    answers = [[1]] * len(rewards)
    whole = replace(episode(said("x")), **in_tokens([1], answers, rewards))
    turn = data.draw(st.integers(1, len(rewards)))
    changed = [*rewards[: turn - 1], rewards[turn - 1] + 0.25, *rewards[turn:]]
    found = first_difference(whole, replace(whole, turn_rewards=changed), decode)
    assert found is not None and (found.what, found.turn) == ("reward", turn)


def two_contexts(second: list[int], answer: list[int]) -> Trajectory:
    """A turn in the first context, one in a branch, and one in the first again."""
    branch = Branch(**in_tokens(second, [answer], [0.0]))
    first = in_tokens([1], [[2], [3]], [0.0, 1.0])
    return replace(episode(said("x")), **first, branches=[branch], order=[0, 1, 0])


def test_turns_are_counted_in_order_of_time_over_all_contexts() -> None:
    whole = two_contexts([5], [6])
    found = first_difference(whole, two_contexts([5], [7]), decode)
    assert found is not None and (found.what, found.turn) == ("observation", 2)
    found = first_difference(whole, two_contexts([4], [6]), decode)
    assert found is not None and (found.what, found.turn) == ("prompt", 1)
    alone = replace(whole, branches=(), order=(), **in_tokens([1], [[2], [3]], [0.0, 1.0]))
    found = first_difference(whole, alone, decode)
    assert found is not None and (found.what, found.turn) == ("prompt", 1)


def test_a_long_diff_is_short() -> None:
    one, other = (
        episode({"role": "user", "content": "\n".join(f"{word} {n}" for n in range(99))}, said("x"))
        for word in ("one", "two")
    )
    found = first_difference(one, other, None)
    assert found is not None and found.what == "prompt"
    assert len(found.lines()) < 30 and found.lines()[-1].endswith("more lines")
