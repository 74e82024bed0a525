"""An episode without its tokens: what was said and how it ended, as if played in messages.

Reading no tokens makes it many times as quick to go through all episodes of a run.
"""

from collections.abc import Mapping
from typing import Any

from gymnast.trainers.records.columns import as_trajectory
from gymnast.types import Trajectory

_OF_CONTEXT = ("turn_rewards", "messages", "tools")
_WITHOUT_TOKENS: dict[str, Any] = {
    "ids": [],
    "action_mask": [],
    "logprobs": [],
    "prompt_length": 0,
    "versions": None,
    "token_rewards": None,
    "states": None,
}

CONVERSATION = (
    *("reward", "no_reward", "stop_reason", "terminated", "truncated", "seed", "order"),
    *("row", "metrics", "reward_parts"),
    *_OF_CONTEXT,
    *(f"branches.list.element.{name}" for name in _OF_CONTEXT),
)
"""The columns that it takes."""


def as_conversation(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory of a record that has the columns of `CONVERSATION`, without tokens."""
    branches = record.get("branches")
    others = None if branches is None else [_without_tokens(branch) for branch in branches]
    return as_trajectory({**_without_tokens(record), "branches": others})


def _without_tokens(context: Mapping[str, Any]) -> dict[str, Any]:
    turns = [[0, 0]] * len(context["turn_rewards"])
    return {**context, **_WITHOUT_TOKENS, "turns": turns}
