"""The bound of staleness: no token beyond it is learned from, and what is within it stays."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.errors import UsageError
from gymnast.trainers.ahead.bound import oldest, staleness_metrics, token_versions, within
from gymnast.trainers.algorithms.advantages import ESTIMATORS
from gymnast.trainers.learner.credit import with_advantages
from gymnast.types import Span, StopReason, Trajectory, VersionSpan


@st.composite
def episodes(draw: Callable[..., Any]) -> Trajectory:
    """Turns of some tokens, observations between them, versions that only grow."""
    ids: list[int] = [1, 2]
    mask, turns, versions, version = [0, 0], [], [], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 4))):
        start = len(ids)
        for length in draw(st.lists(st.integers(1, 4), max_size=3)):
            versions.append(VersionSpan(len(ids), len(ids) + length, version))
            ids += [7] * length
            mask += [1] * length
            version += draw(st.integers(0, 2))
        turns.append(Span(start, len(ids)))
        observed = draw(st.integers(0, 3))
        ids += [9] * observed
        mask += [0] * observed
    rewards = [draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in turns]
    by_token = [float(bit) for bit in mask] if draw(st.booleans()) else []
    return Trajectory(
        ids=ids,
        action_mask=mask,
        logprobs=[-1.0 * bit for bit in mask],
        prompt_length=2,
        turns=turns,
        turn_rewards=rewards,
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        versions=versions,
        token_rewards=by_token,
    )


@given(episodes(), st.integers(0, 12))
def test_older_tokens_become_context_and_all_others_stay(played: Trajectory, least: int) -> None:
    seen = within(played, least)
    versions = token_versions(played)
    assert token_versions(seen).tolist() == [v for v in versions.tolist() if v >= least]
    assert (seen.ids, seen.prompt_length, seen.turn_rewards) == (
        *(played.ids, played.prompt_length, played.turn_rewards),
    )
    newer = (versions >= least).tolist()
    places = [place for place, bit in enumerate(played.action_mask) if bit]
    kept = {place for place, new in zip(places, newer, strict=True) if new}
    assert seen.action_mask == [int(place in kept) for place in range(len(seen.ids))]
    assert seen.logprobs == [-1.0 * bit for bit in seen.action_mask]
    assert [place for start, end in seen.turns for place in range(start, end)] == sorted(kept)
    assert len(seen.turns) == len(played.turns)


@given(st.lists(st.lists(episodes(), min_size=1, max_size=3), min_size=1, max_size=3))
def test_what_is_learned_from_is_within_the_bound(groups: list[list[Trajectory]]) -> None:
    newest = max(
        int(v.max(initial=0)) for g in groups for t in g if len(v := token_versions(t)) + 1
    )
    for most in range(4):
        seen = [[within(t, newest - most) for t in group] for group in groups]
        found = staleness_metrics(seen, newest, most)
        assert not found or 0 <= found["staleness/mean"] <= found["staleness/max"] <= most
        first = oldest(t for group in groups for t in group)
        if first is not None and newest - first > most:
            with pytest.raises(AssertionError, match="updates old, and the bound is"):
                staleness_metrics(groups, newest, most)


@given(st.lists(episodes(), min_size=2, max_size=4), st.integers(0, 8))
def test_advantages_are_those_of_whole_episodes(group: list[Trajectory], least: int) -> None:
    estimator = ESTIMATORS["grpo"]
    whole = with_advantages([group], estimator)[0]
    seen = with_advantages([[within(t, least) for t in group]], estimator)[0]
    for ours, theirs in zip(seen, whole, strict=True):
        assert ours.advantages.tolist() == theirs.advantages.tolist()
        left = ours.trajectory.action_tokens
        tail = theirs.token_advantages[len(theirs.token_advantages) - left :]
        assert ours.token_advantages.tolist() == tail.tolist()


@given(episodes())
def test_tokens_of_which_nobody_knows_the_version_are_refused(played: Trajectory) -> None:
    if played.action_tokens:
        with pytest.raises(UsageError, match=r"Completion.versions"):
            token_versions(dataclasses.replace(played, versions=played.versions[:-1]))
