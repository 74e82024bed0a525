"""The nouns hold what they promise."""

import json
from typing import Any

import pytest

from gymnast.types import Completion, Sampling, Span, StopReason, ToolCall, Trajectory


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("temperature", -0.1, "must be >= 0"),
        ("top_p", 0.0, "must be > 0"),
        ("top_k", -1, "must be >= 0"),
        ("min_p", 1.5, "must be <= 1"),
        ("repetition_penalty", 0.0, "must be > 0"),
        ("max_new_tokens", 0, "must be >= 1"),
    ],
)
def test_sampling_names_what_is_out_of_range(name: str, value: float, rule: str) -> None:
    with pytest.raises(ValueError, match=rf"Sampling\.{name}: {rule}.*got {value}"):
        Sampling(**{name: value})  # type: ignore[arg-type]


def test_a_tool_call_has_openais_shape() -> None:
    call = ToolCall("c1", "add", {"a": 1})
    assert json.loads(json.dumps(call.to_dict())) == {
        "id": "c1",
        "type": "function",
        "function": {"name": "add", "arguments": {"a": 1}},
    }


def test_three_reasons_terminate_and_the_others_truncate() -> None:
    terminating = {reason for reason in StopReason if reason.terminated}
    assert terminating == {"answered", "stop_tool", "environment"}


def test_a_trajectory_cannot_be_misaligned() -> None:
    def made(mask: list[int], **more: Any) -> Trajectory:
        return Trajectory(
            ids=[1, 2, 3],
            action_mask=mask,
            logprobs=[0.0, -1.0, -1.0],
            prompt_length=1,
            turns=[Span(1, 3)],
            turn_rewards=[0.5],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
            **more,
        )

    assert (made([0, 1, 1]).reward, made([0, 1, 1]).action_tokens) == (0.5, 2)
    with pytest.raises(AssertionError, match="differ in length"):
        made([0, 1])
    assert made([0, 1, 1], token_rewards=[0.0, 0.25, 0.25], states=["start"]).reward == 0.5
    with pytest.raises(AssertionError, match="every token has one reward"):
        made([0, 1, 1], token_rewards=[0.25, 0.25])
    with pytest.raises(AssertionError, match="every turn has one state"):
        made([0, 1, 1], states=["start", "end"])


def test_long_records_are_shown_to_people_in_a_line() -> None:
    assert repr(Completion([1] * 500, [0.0] * 500, "length")) == (
        "<Completion tokens=500 stop=length>"
    )
    trajectory = Trajectory(
        ids=[1] * 5000,
        action_mask=[0] * 1000 + [1] * 4000,
        logprobs=[0.0] * 5000,
        prompt_length=1000,
        turns=[Span(1000, 5000)],
        turn_rewards=[0.25],
        stop_reason=StopReason.max_turns,
        terminated=False,
        truncated=True,
        messages=[{"role": "user", "content": "x" * 9000}],
    )
    assert repr(trajectory) == (
        "<Trajectory reward=0.25 stop_reason=max_turns turns=1 tokens=5000 sampled=4000>"
    )
