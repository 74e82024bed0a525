"""One trajectory as a row of a table, and back. docs/saved_episodes.md describes every column.

What has a fixed shape is a number or a typed list. What has a shape of its own in every row
(messages, the dataset's rows, ...) is JSON text: typed structs would add keys with null to each
call's arguments. `()`, the default of some sequences of a trajectory, is null.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from gymnast.trainers.records.json_text import from_json, hashable, to_json
from gymnast.types import Branch, Span, StopReason, Trajectory, VersionSpan

_SPANS = pa.list_(pa.list_(pa.int32()))

# Of each context; those of the first are columns of the table.
_BRANCH = pa.struct(
    [
        pa.field("prompt_length", pa.int32(), nullable=False),
        pa.field("ids", pa.list_(pa.int32()), nullable=False),
        pa.field("action_mask", pa.list_(pa.int8()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float64()), nullable=False),
        pa.field("advantages", pa.list_(pa.float32())),
        pa.field("token_rewards", pa.list_(pa.float64())),
        pa.field("turns", _SPANS, nullable=False),
        pa.field("turn_rewards", pa.list_(pa.float64()), nullable=False),
        pa.field("versions", _SPANS),
        pa.field("text", pa.string()),
        pa.field("token_ends", pa.list_(pa.int32())),
        pa.field("messages", pa.string(), nullable=False),
        pa.field("tools", pa.string()),
        pa.field("states", pa.string()),
    ]
)

SCHEMA = pa.schema(
    [
        pa.field("group", pa.int32(), nullable=False),
        pa.field("member", pa.int32(), nullable=False),
        pa.field("reward", pa.float64(), nullable=False),
        pa.field("no_reward", pa.bool_(), nullable=False),
        pa.field("stop_reason", pa.string(), nullable=False),
        pa.field("terminated", pa.bool_(), nullable=False),
        pa.field("truncated", pa.bool_(), nullable=False),
        pa.field("seed", pa.int64()),
        *(field for field in _BRANCH if field.name not in ("tools", "states")),
        pa.field("tools", pa.string()),
        pa.field("row", pa.string(), nullable=False),
        pa.field("metrics", pa.string(), nullable=False),
        pa.field("reward_parts", pa.string(), nullable=False),
        pa.field("states", pa.string()),
        pa.field("branches", pa.list_(_BRANCH)),
        pa.field("order", pa.list_(pa.int32())),
    ]
)


def as_record(trajectory: Trajectory) -> dict[str, Any]:
    """The columns that a trajectory alone fills; the others are its place, credit and text."""
    return {
        "reward": trajectory.reward,
        "no_reward": trajectory.no_reward,
        "stop_reason": str(trajectory.stop_reason),
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "seed": trajectory.seed,
        **_of_context(trajectory),
        "row": to_json(trajectory.row),
        "metrics": to_json(trajectory.metrics),
        "reward_parts": to_json(trajectory.reward_parts),
        "branches": _or_none([*map(_of_context, trajectory.branches)], trajectory.branches),
        "order": _or_none(trajectory.order),
    }


def _of_context(context: Trajectory | Branch) -> dict[str, Any]:
    return {
        "prompt_length": context.prompt_length,
        "ids": context.ids,
        "action_mask": context.action_mask,
        "logprobs": context.logprobs,
        "token_rewards": _or_none(context.token_rewards),
        "turns": list(map(list, context.turns)),
        "turn_rewards": context.turn_rewards,
        "versions": _or_none([*map(list, context.versions)], context.versions),
        "messages": to_json(context.messages),
        "tools": _json_or_none(context.tools),
        "states": _json_or_none(context.states),
    }


def as_trajectory(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory of a record; `experts`, which are not written, are None."""
    branches, order = record.get("branches"), record.get("order")  # not there in format 1
    return Trajectory(
        **_as_context(record),
        stop_reason=StopReason(record["stop_reason"]),
        terminated=record["terminated"],
        truncated=record["truncated"],
        reward_parts=from_json(record["reward_parts"]),
        no_reward=record["no_reward"],
        metrics=from_json(record["metrics"]),
        row=from_json(record["row"]),
        seed=record["seed"],
        branches=() if branches is None else [Branch(**_as_context(each)) for each in branches],
        order=() if order is None else order,
    )


def _as_context(record: Mapping[str, Any]) -> dict[str, Any]:
    tools, states, versions = record["tools"], record["states"], record["versions"]
    return {
        "ids": record["ids"],
        "action_mask": record["action_mask"],
        "logprobs": record["logprobs"],
        "prompt_length": record["prompt_length"],
        "turns": [Span(*span) for span in record["turns"]],
        "turn_rewards": record["turn_rewards"],
        "messages": from_json(record["messages"]),
        "tools": () if tools is None else from_json(tools),
        "versions": () if versions is None else [VersionSpan(*span) for span in versions],
        "token_rewards": () if record["token_rewards"] is None else record["token_rewards"],
        "states": () if states is None else [hashable(state) for state in from_json(states)],
    }


def _or_none(values: Sequence[Any], given: Sequence[Any] | None = None) -> list[Any] | None:
    return None if (values if given is None else given) == () else list(values)


def _json_or_none(values: Sequence[Any]) -> str | None:
    return None if values == () else to_json(list(values))
