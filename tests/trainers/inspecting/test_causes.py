"""Why saved episodes are unpaid: each has one cause, and mistakes of one form count together."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.trainers.inspecting.cause import CAUSES, cause_of
from gymnast.trainers.inspecting.causes import (
    EXAMPLES,
    MISTAKES,
    Diagnosis,
    diagnose,
    unpaid_up_to,
)
from gymnast.trainers.inspecting.causes_shown import causes_text
from gymnast.trainers.inspecting.filters import Filter
from gymnast.trainers.inspecting.index import Index
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import Branch, Span, StopReason, Trajectory
from saved_episodes import answered, call, episode, said

FAULT = 'Error: add(a: int) -> int: argument "a": input should be a valid integer (got {!r})'
UNREAD = "the call could not be read: Expecting ',' delimiter: line 1 column {}"

RIGHT = [call("add", {"a": 2}), answered("5")]
MALFORMED = [call("", "oops", error=UNREAD.format(7))]
WRONG = [call("add", {"a": "x"}), answered(FAULT.format("x"))]


@pytest.mark.parametrize(
    ("unpaid", "cause"),
    [
        (episode(said("5"), no_reward=True), "no reward given"),
        (episode(*RIGHT, said("5"), metrics={"sandbox/broken": 1.0}), "box broken"),
        (episode(*RIGHT, stop_reason=StopReason.error), "box broken"),
        (episode(said("so much"), stop_reason=StopReason.max_tokens), "cut off"),
        (episode(*RIGHT, stop_reason=StopReason.timeout), "cut off"),
        (episode(said("5")), "no calls"),
        (episode(said("5"), tools=()), "wrong answer"),
        (episode(*MALFORMED, said("5")), "malformed calls"),
        (episode(call("ad", {}), answered("Error: 'ad': ...", name="ad")), "unknown tools"),
        (episode(*WRONG, stop_reason=StopReason.max_turns), "wrong arguments"),
        (episode(call("add", {}), answered("Error: add: KeyError: 'x'")), "failed tools"),
        (episode(call("add", {}), answered("Error: add was given up after 2 s")), "timeouts"),
        (episode(*RIGHT, stop_reason=StopReason.max_turns), "no final answer"),
        (episode(*RIGHT, said("6")), "wrong answer"),
    ],
)
def test_each_cause_is_told_from_what_is_saved(unpaid: Trajectory, cause: str) -> None:
    assert cause_of(unpaid).cause == cause


def test_a_mistake_from_which_the_policy_recovered_is_no_cause() -> None:
    right = [call("add", {"a": 2}, number=1), answered("5", number=1)]
    assert cause_of(episode(*WRONG, *right, said("6"))).cause == "wrong answer"
    assert cause_of(episode(*RIGHT, call("no", {}, number=1))).cause == "unknown tools"


@pytest.mark.parametrize("stop_reason", ["max_tokens", "context", "timeout"])
@pytest.mark.parametrize("cut", [[], [said("so much")], [call("", "hal", error="cut off")]])
def test_what_failed_before_a_limit_ended_the_episode_is_said_with_it(
    stop_reason: StopReason, cut: list[Any]
) -> None:
    ended: dict[str, Any] = {"stop_reason": StopReason(stop_reason)}
    found = cause_of(episode(*MALFORMED, answered("Error: no JSON"), *WRONG, *cut, **ended))
    assert (found.cause, found.form) == ("cut off", f"{stop_reason} after wrong arguments")
    assert (found.written, found.answer) == ('add(a="x")', FAULT.format("x"))
    right = [call("add", {"a": 2}, number=1), answered("5", number=1)]
    assert cause_of(episode(*WRONG, *right, *cut, **ended)).form == stop_reason


def test_tools_that_are_offered_later_are_known() -> None:
    offer: Any = {"role": "user", "content": "More.", "tools": [{"function": {"name": "mul"}}]}
    assert cause_of(episode(*RIGHT, offer, call("mul", {}, number=1))).cause == "wrong answer"


def test_the_calls_of_further_contexts_count() -> None:
    branch = Branch([], [], [], 0, [Span(0, 0)], [0.0], messages=MALFORMED)
    whole = episode(said("5"), branches=[branch], order=[0, 1])
    assert cause_of(whole).cause == "malformed calls"


def diagnosed(folder: Path, *groups: list[Trajectory], bar: float | None = None) -> Diagnosis:
    write_rollouts(folder / "rollouts/step_00001.parquet", groups)
    return diagnose(Index(folder).entries(), bar=bar)


def test_mistakes_of_one_form_count_together_with_an_example(tmp_path: Path) -> None:
    groups = [
        [episode(call("add", {"a": value}), answered(FAULT.format(value)))] for value in ("x", "y)")
    ]
    groups += [[episode(call("", "oops", error=UNREAD.format(n)))] for n in (7, 12, 9)]
    groups += [[episode(call("sum", {}))], [episode(*RIGHT, said("5"), reward=1.0)]]
    found = diagnosed(tmp_path, *groups)
    assert (found.episodes, found.unpaid) == (7, 6)
    assert found.mean_reward == pytest.approx(1 / 7)
    malformed, arguments, unknown = found.causes
    assert (malformed.name, malformed.count, malformed.share) == ("malformed calls", 3, 0.5)
    [mistake] = malformed.mistakes
    assert (mistake.count, mistake.example) == (3, "step_00001/2/0")
    assert mistake.answer == UNREAD.format(7)
    assert mistake.form == "the call could not be read: Expecting … delimiter: line … column …"
    [fault] = arguments.mistakes
    assert fault.form == 'add: argument "a": input should be a valid integer'
    assert (fault.count, fault.written) == (2, 'add(a="x")')
    assert [mistake.form for mistake in unknown.mistakes] == ["sum"]


TRACE = "Traceback:\n  line 3\nAssertionError: largest([{}]) is '{}', not False\n"


def test_what_ended_by_itself_is_sorted_by_the_last_result_of_a_tool(tmp_path: Path) -> None:
    ended: dict[str, Any] = {"stop_reason": StopReason.environment}
    groups = [
        [episode(call("add", {"a": 2}), answered(TRACE.format(values, -1.5)), **ended)]
        for values in ("0, 1", "2", "-3, 4.5, 6")
    ]
    groups += [[episode(*RIGHT, said("6"))]]
    [cause] = diagnosed(tmp_path, *groups).causes
    assertion, number = cause.mistakes
    assert assertion.form == ('environment after "AssertionError: largest([…]) is …, not False"')
    assert (assertion.count, assertion.written) == (3, "add(a=2)")
    assert assertion.answer == TRACE.format("0, 1", -1.5)
    assert (number.form, number.written, number.answer) == ("answered", "6", "5")


def test_the_last_words_of_a_program_are_those_of_its_last_request() -> None:
    branch = Branch([], [], [], 0, [Span(0, 0)] * 2, [0.0, 0.0], messages=[*RIGHT, said("7")])
    branch = replace(branch, tools=episode().tools)
    found = cause_of(episode(said("5"), branches=[branch], order=[0, 1, 1]))
    assert (found.cause, found.written, found.answer) == ("wrong answer", "7", "5")


def test_a_penalty_is_not_nothing(tmp_path: Path) -> None:
    some = [episode(said("5"), reward=reward) for reward in (-0.1, 0.0)]
    text = causes_text(diagnosed(tmp_path, some))
    assert text.startswith("2 episodes, of which 2 earned at most 0; mean reward -0.05")


def test_what_is_said_of_a_mistake_names_what_it_was_told(tmp_path: Path) -> None:
    ended: dict[str, Any] = {"stop_reason": StopReason.environment}
    some = [episode(*MALFORMED, **ended), episode(*WRONG)]
    some += [episode(*RIGHT, call("add", {"a": 1}), answered(f"Bad{'x' * n}")) for n in range(7)]
    text = causes_text(diagnosed(tmp_path, some))
    assert f'error "{UNREAD.format(7)}"' in text
    assert 'answered "Error: add(a: int)' in text
    assert 'stop reason answered after "Bad"  (step_00001/0/2)\n         "add(a=1)"' in text
    assert 'last result "Bad"' in text and "      2  others\n" in text


def test_groups_all_alike_are_counted(tmp_path: Path) -> None:
    right, wrong = episode(*RIGHT, said("5"), reward=1.0), episode(*RIGHT, said("6"))
    found = diagnosed(tmp_path, [right, wrong], [wrong, wrong], [right, right], [wrong])
    assert (found.groups, found.groups_alike, found.groups_unpaid) == (3, 2, 1)


def test_a_group_is_judged_by_all_of_its_episodes_whichever_are_looked_at(tmp_path: Path) -> None:
    right, wrong = episode(*RIGHT, said("5"), reward=1.0), episode(*RIGHT, said("6"))
    groups = [[right, wrong], [wrong, right, wrong], [wrong, wrong], [right, right]]
    write_rollouts(tmp_path / "rollouts/step_00001.parquet", groups)
    found = diagnose(Index(tmp_path).find(Filter(max_reward=0.0)))
    assert (found.episodes, found.unpaid) == (5, 5)
    assert (found.groups, found.groups_alike, found.groups_unpaid) == (3, 1, 1)


def test_episodes_without_calls_are_counted_however_they_ended(tmp_path: Path) -> None:
    cut = episode(said("so much"), stop_reason=StopReason.max_tokens)
    some = [cut, cut, episode(said("5")), episode(*WRONG), episode(said("5"), tools=())]
    found = diagnosed(tmp_path, some)
    assert (found.unpaid, found.without_calls) == (5, 3)
    assert "3 of these 5 called no tool\n" in causes_text(found)
    one = causes_text(diagnosed(tmp_path, [episode(said("5"))]))
    assert one.startswith(
        "1 episode, of which 1 earned nothing; mean reward 0\nit called no tool\n"
    )


def test_what_earned_something_is_not_said_to_have_earned_nothing(tmp_path: Path) -> None:
    paid = [episode(said("5"), reward=reward) for reward in (0.44, 0.5, 0.5)]
    text = causes_text(diagnosed(tmp_path, paid, [paid[0], paid[0]]))
    assert text.startswith("5 episodes, of which 3 earned at most 0.44; mean reward 0.464\n")
    assert (
        "in 1 of 2 groups all episodes have the same reward, so nothing is learned from it" in text
    )
    assert "in 1 none earned more than 0.44" in text


def test_examples_are_a_few_of_many(tmp_path: Path) -> None:
    [cause] = diagnosed(tmp_path, [episode(said("5"))] * 20).causes
    assert (cause.count, list(cause.examples)) == (
        20,
        [f"step_00001/0/{member}" for member in range(EXAMPLES)],
    )


def test_the_lowest_reward_is_unpaid_where_none_is_zero(tmp_path: Path) -> None:
    assert unpaid_up_to([0.1, 0.1, 0.5]) == 0.1
    assert unpaid_up_to([1.0, 1.0]) == unpaid_up_to([]) == unpaid_up_to([-1.0, 1.0]) == 0.0
    some = [episode(said("5"), reward=reward) for reward in (-1.0, 0.2, 0.4)]
    assert diagnosed(tmp_path, some).unpaid == 1
    assert diagnosed(tmp_path, some, bar=0.3).unpaid == 2


MESSAGES = st.sampled_from([*RIGHT, *MALFORMED, *WRONG, said("5"), call("no", {})])
SAVED = st.builds(
    lambda messages, **known: episode(*messages, **known),
    st.lists(MESSAGES, max_size=5),
    reward=st.sampled_from([0.0, 1.0]),
    stop_reason=st.sampled_from(StopReason),
    no_reward=st.booleans(),
)


@given(groups=st.lists(st.lists(SAVED, min_size=1, max_size=3), min_size=1, max_size=4))
def test_every_unpaid_episode_has_exactly_one_cause(
    groups: list[list[Trajectory]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = diagnosed(tmp_path_factory.mktemp("run"), *groups)
    unpaid = [t for group in groups for t in group if t.no_reward or t.reward == 0]
    assert found.unpaid == len(unpaid) == sum(cause.count for cause in found.causes)
    assert {cause.name for cause in found.causes} == {cause_of(t).cause for t in unpaid}
    assert {cause.name for cause in found.causes} <= {*CAUSES}
    for cause in found.causes:
        counts = [mistake.count for mistake in cause.mistakes]
        assert sum(counts) in (0, cause.count) or len(counts) == MISTAKES
