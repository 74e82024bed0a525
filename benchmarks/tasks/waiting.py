"""Arithmetic whose calculator takes its time, as a service behind a network does."""

import asyncio
from typing import Any

from gymnast.envs.builtin.arithmetic import Arithmetic


class WaitingArithmetic(Arithmetic):
    """Arithmetic in which a turn with calls takes longer.

    Solutions, which prompts show, are played by `act` and do not wait.

    Args:
        tool_s: Seconds that the calls of a turn take.
        **settings: As for `Arithmetic`.
    """

    def __init__(self, *arguments: Any, tool_s: float = 0.5, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.tool_s = tool_s

    async def astep(self, action: Any) -> Any:
        """Arithmetic's, after some time."""
        taken = await super().astep(action)
        *_, info = taken
        if info["tool_calls"]:
            await asyncio.sleep(self.tool_s)
        return taken
