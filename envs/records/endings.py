"""Which of the reasons for an episode to end is reported, where several hold."""

from collections.abc import Collection

from gymnast.types import StopReason

PRECEDENCE = (
    StopReason.error,
    StopReason.stop_tool,
    StopReason.answered,
    StopReason.environment,
    StopReason.context,
    StopReason.max_tokens,
    StopReason.max_turns,
    StopReason.timeout,
)


def first_reason(holding: Collection[StopReason]) -> StopReason | None:
    """The reason that is reported of those that hold, or None."""
    return next((reason for reason in PRECEDENCE if reason in holding), None)
