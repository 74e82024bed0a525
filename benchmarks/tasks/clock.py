"""Clock: what time it is elsewhere, by a server of the Model Context Protocol."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gymnast.envs import Episode, call
from gymnast.envs.adapters.mcp.environment import McpEnvironment
from gymnast.types import Message

MINUTES = {  # ahead of UTC, in every season
    "Africa/Lagos": 60,
    "America/Bogota": -300,
    "Asia/Dubai": 240,
    "Asia/Jakarta": 420,
    "Asia/Kathmandu": 345,
    "Asia/Kolkata": 330,
    "Asia/Singapore": 480,
    "Asia/Tokyo": 540,
    "Pacific/Honolulu": -600,
}


class Clock(McpEnvironment):
    """Tell the time elsewhere."""

    name = "time"
    command = ("mcp-server-time", "--local-timezone", "UTC")

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Two zones, and a time in one of them."""
        here, there = (str(zone) for zone in rng.choice(list(MINUTES), 2, replace=False))
        minutes = 15 * int(rng.integers(96))
        time = _time(minutes)
        return {
            "prompt": f"It is {time} in {here}. What time is it in {there}?",
            "arguments": {"source_timezone": here, "time": time, "target_timezone": there},
            "answer": _time(minutes - MINUTES[here] + MINUTES[there]),
        }

    def reward(self, episode: Episode) -> dict[str, float]:
        """0.3 for the right call, and 0.7 for an answer that has the time."""
        asked = any(each.arguments == self.row["arguments"] for each in episode.calls)
        return {"asked": 0.3 * asked, "told": 0.7 * (self.row["answer"] in episode.answer)}

    def solve(self, row: Mapping[str, Any]) -> Iterator[Message | str]:
        """Ask the server, and say what it says."""
        yield call("convert_time", **row["arguments"])
        yield f"It is {row['answer']}."


def _time(minutes: int) -> str:
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}"
