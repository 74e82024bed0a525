"""The tool of `server_rollout.py`, once as most people write tools, once asynchronous."""

import asyncio
import time

WAIT_S = 0.2


def get():  # type: ignore[no-untyped-def]
    """Get the note."""
    # No return annotation: Transformers would show it to the model, and Gymnast does not.
    time.sleep(WAIT_S)
    return "the note"


async def aget():  # type: ignore[no-untyped-def]
    """Get the note."""
    await asyncio.sleep(WAIT_S)
    return "the note"


aget.__name__ = "get"
TOOLS = {"sync": get, "async": aget}
