"""How an episode ends: the order of the reasons, and what is appended within the limits."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.environment.tokens.context import TokenBudget, close_turn
from gymnast.envs.records.endings import PRECEDENCE, first_reason
from gymnast.types import StopReason


def test_the_first_reason_in_the_order_wins() -> None:
    order = ["error", "stop_tool", "answered", "environment"]
    order += ["context", "max_tokens", "max_turns", "timeout"]
    assert [reason.value for reason in PRECEDENCE] == order
    assert set(PRECEDENCE) == set(StopReason)
    for earlier, later in combinations(PRECEDENCE, 2):
        assert first_reason({later, earlier}) is earlier
    assert first_reason(()) is None


@pytest.mark.parametrize(
    ("max_tokens", "context", "left"),
    [(20, None, 15), (None, 30, 15), (20, 29, 14), (4, None, 0), (None, None, 2**31 - 16)],
)
def test_the_tokens_left_are_always_a_number(
    max_tokens: int | None, context: int | None, left: int
) -> None:
    found = TokenBudget(10, max_tokens, context).left(15)
    assert found == left and min(512, found) <= 512


def render(results: int, prompt: int = 3):  # type: ignore[no-untyped-def]
    return lambda generation_prompt: [7] * (results + prompt * generation_prompt)


@pytest.mark.parametrize(
    ("holding", "max_tokens", "context", "results", "appended", "reason"),
    [
        # Nothing holds: results and generation prompt, as long as one token can follow.
        ((), 20, None, 6, 9, None),
        ((), 19, None, 6, 6, StopReason.max_tokens),
        ((), None, 30, 6, 9, None),
        ((), None, 29, 6, 6, StopReason.context),
        ((), 19, 29, 6, 6, StopReason.context),
        # The results fit exactly, or not at all.
        ((), 16, None, 6, 6, StopReason.max_tokens),
        ((), 15, None, 6, 0, StopReason.max_tokens),
        ((), None, 25, 6, 0, StopReason.context),
        # At an end nothing follows the results.
        ((StopReason.stop_tool,), 20, None, 6, 6, StopReason.stop_tool),
        ((StopReason.stop_tool,), 15, None, 6, 0, StopReason.stop_tool),
        ((StopReason.environment,), None, 25, 6, 0, StopReason.environment),
        ((StopReason.max_turns,), 17, None, 6, 6, StopReason.max_turns),
        ((StopReason.max_turns,), 16, None, 6, 6, StopReason.max_tokens),
        ((StopReason.max_turns,), 15, None, 6, 0, StopReason.max_tokens),
        ((StopReason.timeout,), None, 99, 6, 6, StopReason.timeout),
        ((StopReason.answered,), 10, 20, 0, 0, StopReason.answered),
        ((StopReason.max_tokens,), 99, 99, 0, 0, StopReason.max_tokens),
        ((StopReason.max_tokens,), 99, 20, 0, 0, StopReason.context),
    ],
)
def test_what_follows_an_action(
    holding: tuple[StopReason, ...],
    max_tokens: int | None,
    context: int | None,
    results: int,
    appended: int,
    reason: StopReason | None,
) -> None:
    """The prompt has 10 tokens and the context, action included, 20."""
    budget = TokenBudget(10, max_tokens, context)
    ids, found = close_turn(budget, 20, holding, render(results))
    assert (len(ids), found) == (appended, reason)


@given(
    st.sets(st.sampled_from(PRECEDENCE)),
    st.integers(1, 40),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 60),
    st.integers(0, 30),
)
def test_limits_always_hold(
    holding: set[StopReason],
    action: int,
    max_tokens: int | None,
    context: int | None,
    results: int,
) -> None:
    budget = TokenBudget(10, max_tokens, context)
    length = 10 + action
    fits = budget.fits(length)
    ids, reason = close_turn(budget, length, holding, render(results))
    if fits:
        assert budget.fits(length + len(ids))
    else:
        assert ids == [] and reason is not None
    left = budget.left(length + len(ids))
    if reason is None:
        assert not holding and (left is None or left >= 1)
    assert len(ids) in {0, results, results + 3}
