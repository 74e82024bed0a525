"""In a vLLM server: writes its requests down, and has it say that it can sleep.

    RECORD=FILE vllm serve MODEL --middleware vllm_recording.Recording

A vLLM for CPUs takes no `--enable-sleep-mode` and says so in `/server_info`. It answers `/sleep`
and `/wake_up` all the same, and samples nothing in between; its memory it keeps.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Message = dict[str, Any]
CANNOT, CAN = b'"enable_sleep_mode":false', b'"enable_sleep_mode":true '
BEGINS, ENDS = "begins", "ends"


class Recording:
    """Stands before a server's routes.

    Args:
        app: The routes.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._file = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def __call__(
        self, scope: Message, receive: Any, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in ("/health", "/metrics"):
            await self._app(scope, receive, send)
            return
        query = scope["query_string"].decode()
        request = scope["path"] + (f"?{query}" if query else "")

        async def answer(message: Message) -> None:
            if scope["path"] == "/server_info" and "body" in message:
                message = message | {"body": message["body"].replace(CANNOT, CAN)}
            await send(message)

        self._note(BEGINS, request)
        try:
            await self._app(scope, receive, answer)
        finally:
            self._note(ENDS, request)

    def _note(self, what: str, request: str) -> None:
        os.write(self._file, f"{what} {request}\n".encode())


def recorded(file: Path) -> list[tuple[str, str]]:
    """What began and ended, in order: `(BEGINS, "/sleep?level=1")`."""
    lines = file.read_text().splitlines()
    return [(what, request) for what, _, request in (line.partition(" ") for line in lines)]
