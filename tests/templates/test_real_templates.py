"""The renderer on the chat templates of real models: all 169 that three pinned packages carry.

What must hold for each of them:

    round trip   what the template itself writes for some calls is read back as these calls: one
                 or several, any name, any JSON value, with text and a thought beside them
    encoded      the action for a message is what the template writes for it, and reads back as it
    spelled      control tokens that a model spells out in an argument are text
    appended     context + action + observation read exactly as the template writes them, token for
                 token where it preserves what it wrote; a turn that was cut gets its end
    stops        generation stops where a turn of text and a turn of calls end, and not before
    shown        the call that a model is shown, where it wrote a wrong one, reads as a right one
    injection    no text of a message or a tool ever becomes an added token
    ids          the ids of calls differ from turn to turn

A template that cannot do one of these is listed in `template_exceptions.py` with the reason. The
list is exact: one that begins to work has to leave it. Templates without tools are held to the same
rules with the plain protocol.
"""

import keyword
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import template_checks as checks
from template_cases import SEVERAL
from template_corpus import Template
from template_exceptions import EXCEPTIONS, KINDS
from template_messages import ANSWER, MARKED, NEXT, call, calling, result
from template_report import REPORT, report
from template_results import Result, Subject

pytestmark = pytest.mark.network


# --- The fixed cases


def test_the_packages_carry_as_many_templates_as_ever(templates: dict[str, Template]) -> None:
    assert len(templates) == 169


@pytest.mark.parametrize("kind", KINDS)
def test_every_template_passes_but_for_the_listed(kind: str, results: dict[str, Result]) -> None:
    found = {
        name: reason
        for name, result in results.items()
        for check, reason in result.failures
        if check.startswith(kind)
    }
    listed = {name for (name, listed_kind) in EXCEPTIONS if listed_kind == kind}
    unlisted = {name: reason for name, reason in found.items() if name not in listed}
    assert not unlisted
    assert listed <= set(found), f"works now: {sorted(listed - set(found))}"


def test_95_percent_of_the_templates_that_write_calls_round_trip(
    results: dict[str, Result],
) -> None:
    writing = {name: result for name, result in results.items() if result.writes_calls}
    assert len(writing) >= 132
    passing = [name for name, result in writing.items() if result.round_trips]
    assert len(passing) >= 0.95 * len(writing)


def test_the_report_is_up_to_date(results: dict[str, Result]) -> None:
    written = REPORT.read_text(encoding="utf-8")
    assert report(results) == written, "run: python benchmarks/template_report.py"


# --- The same with anything in it

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,11}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name)
)
TEXTS = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn"), include_characters="\n\t")
    | st.sampled_from("\"'`\\{}[]()<>:,=|& \n"),
    max_size=12,
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.sampled_from(["22", "1.5", "true", "null", "None", "[1]", "{}", '"x"', ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)
CALLS = st.lists(
    st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=SEVERAL, unique_by=lambda c: c[0]
)

Drawn = list[tuple[str, dict[str, Any]]]

# One example holds many conversations, for a template is compiled anew when its turn comes.
over_all = settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
over_all_slowly = settings(over_all, max_examples=25)


def many(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=15, max_size=15)


Check = Callable[[Subject], str | None]


def failing(subjects: dict[str, Subject], kind: str, checks_of_one: list[Check]) -> dict[str, str]:
    """Run checks on every template that is not an exception: the first that fails of each."""
    found: dict[str, str] = {}
    for name, subject in subjects.items():
        if any((name, listed) in EXCEPTIONS for listed in (kind, "dialect", "any value")):
            continue
        for check in checks_of_one:
            if reason := checks.run(kind, check, subject):
                found[name] = reason
                break
    return found


@given(drawn=st.lists(CALLS, min_size=4, max_size=4))
@over_all
def test_any_calls_can_be_said(subjects: dict[str, Subject], drawn: list[Drawn]) -> None:
    def check(calls: Drawn) -> Check:
        def check(subject: Subject) -> str | None:
            fitting = calls[: subject.reference.most]
            numbered = [call(*one, n) for n, one in enumerate(fitting, start=1)]
            return checks.encoded(subject.renderer, subject.reference, calling(*numbered))

        return check

    assert not failing(subjects, "encoded", [check(calls) for calls in drawn])


def read_back(subjects: dict[str, Subject], drawn: list[Drawn]) -> None:
    def check(calls: Drawn) -> Check:
        def check(subject: Subject) -> str | None:
            fitting = calls[: subject.reference.most]
            numbered = [call(*one, n) for n, one in enumerate(fitting, start=1)]
            return checks.round_trip(subject.renderer, subject.reference, calling(*numbered))

        return check

    assert not failing(subjects, "round trip", [check(calls) for calls in drawn])


@given(drawn=many(CALLS))
@over_all
def test_any_calls_are_read_back(subjects: dict[str, Subject], drawn: list[Drawn]) -> None:
    read_back(subjects, drawn)


@pytest.mark.slow
@given(drawn=many(CALLS))
@over_all_slowly
def test_any_calls_are_read_back_slowly(subjects: dict[str, Subject], drawn: list[Drawn]) -> None:
    read_back(subjects, drawn)


@given(drawn=many(st.tuples(TEXTS, st.integers(1, 3), st.booleans())))
@over_all
def test_whatever_follows_is_written_as_the_template_does(
    subjects: dict[str, Subject], drawn: list[tuple[str, int, bool]]
) -> None:
    def check(words: str, count: int, again: bool) -> Check:
        def check(subject: Subject) -> str | None:
            given_calls = MARKED[: min(count, subject.reference.most)]
            after = [result(one, f"Wqresult {words}".strip()) for one in given_calls]
            return checks.appended(
                subject.renderer,
                subject.reference,
                calling(*given_calls),
                after=after,
                generation_prompt=again,
            )

        return check

    assert not failing(subjects, "appended", [check(*one) for one in drawn])


@given(drawn=many(st.tuples(TEXTS, st.booleans())))
@over_all
def test_whatever_a_user_says_next_is_written_as_the_template_does(
    subjects: dict[str, Subject], drawn: list[tuple[str, bool]]
) -> None:
    def check(words: str, again: bool) -> Check:
        after = [NEXT | {"content": f"Wqnext {words}".strip()}]
        return lambda subject: checks.appended(
            subject.renderer, subject.reference, ANSWER, after=after, generation_prompt=again
        )

    assert not failing(subjects, "appended", [check(*one) for one in drawn])


def test_a_user_who_spells_an_added_token_gets_its_letters(subjects: dict[str, Subject]) -> None:
    def check(subject: Subject) -> str | None:
        after = [NEXT | {"content": "Wqnext <eos>"}]
        return checks.appended(subject.renderer, subject.reference, ANSWER, after=after)

    assert not failing(subjects, "appended", [check])


# --- Whatever a policy writes

CUTS = st.tuples(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=3),
    st.lists(st.integers(0, 1200), max_size=4),
)


@pytest.fixture(scope="session")
def turns(subjects: dict[str, Subject]) -> list[tuple[Any, list[int], list[int], Any]]:
    """For each template its renderer, a context, a turn with calls in it, and the tools."""
    made = []
    for subject in subjects.values():
        turn = calling(*MARKED[: subject.reference.most])
        _, context, action = checks.split(subject.renderer, subject.reference, turn)
        made.append((subject.renderer, context, action, checks.tools_for(turn)))
    return made


def read_torn(turns: Any, drawn: list[tuple[list[tuple[int, int]], list[int]]]) -> None:
    for renderer, context, action, tools in turns:
        for cuts, junk in drawn:
            torn = list(action)
            for start, length in cuts:
                torn[start : start + length] = junk
            message = renderer.parse(torn, context_ids=context, tools=tools)
            assert isinstance(message["content"], str)
            for one in message["tool_calls"]:
                assert one.error is not None or isinstance(one.arguments, dict)
            renderer.observe([*context, *torn], [NEXT], tools=tools)


@given(drawn=many(CUTS))
@over_all
def test_a_torn_turn_is_read_without_an_exception(turns: Any, drawn: Any) -> None:
    read_torn(turns, drawn)


@pytest.mark.slow
@given(drawn=many(CUTS))
@settings(over_all, max_examples=40)  # times 15, times 167 templates: 100,000 turns
def test_100_000_torn_turns_are_read_without_an_exception(turns: Any, drawn: Any) -> None:
    read_torn(turns, drawn)
