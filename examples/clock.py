"""The reward of clock.yaml."""

from gymnast.types import Trajectory


def tells_the_time(trajectory: Trajectory) -> float:
    """Whether the answer has the time that the row asks for."""
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and trajectory.row["answer"] in last["content"])
