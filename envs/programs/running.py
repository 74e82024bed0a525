"""Programs as they run: what they find, how they end, and Python functions as programs.

Commands are in `commands.py`. Each program runs on threads of its own and ends a future, so that an
episode can wait for its end and for its next request at once.
"""

import asyncio
import inspect
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gymnast.shared_threads import start_thread

STOPPED = 137
"""The exit code of a program that was ended, as of a process that is killed."""

BROKEN = -1
"""The exit code of a command whose box broke."""

GRACE_S = 5.0
"""How long a function may take to end after its episode, before its thread is given up."""


@dataclass(frozen=True)
class Access:
    """How a program reaches the endpoint.

    Attributes:
        url: "http://127.0.0.1:PORT".
        key: The key of its episode.
    """

    url: str
    key: str = field(repr=False)

    @property
    def base_url(self) -> str:
        """The address that OpenAI's clients take."""
        return f"{self.url}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that clients read."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.key,
        }


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended, which `reward` finds as `self.result`.

    Attributes:
        exit_code: Of a command; 128 + N where signal N ended it, so 137 where it was killed. Of a
            function: 0, or 1 where it raised. -1: its box broke.
        stdout: The end of what a command wrote there.
        stderr: Likewise; of a function that raised, the traceback.
        value: What a function returned.
        stopped: Whether it was ended, because the episode was over before it was.
        folder: The folder that a command on the host ran in, until the episode is cleaned up.
    """

    exit_code: int
    stdout: str = ""
    stderr: str = field(default="", repr=False)
    value: Any = None
    stopped: bool = False
    folder: Path | None = None


class Running(ABC):
    """A program that was started.

    Attributes:
        ended: Of how it ends.
    """

    def __init__(self) -> None:
        self.ended: Future[ProgramResult] = Future()
        self.ended.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it

    @abstractmethod
    def stop(self) -> ProgramResult:
        """End it with all that it has started, if it runs; return how it ended. It blocks."""

    @abstractmethod
    def remove(self) -> None:
        """Remove what it has left behind on this machine. Its end comes first."""


class RunningFunction(Running):
    """A Python function or coroutine function, on a thread of its own.

    A coroutine function is cancelled when its episode ends. The thread of another one cannot be
    ended: its requests fail from then on, which ends most, and it is given up after `GRACE_S`.

    Args:
        function: Called with `base_url`, `api_key` and `task`.
        access: How it reaches the endpoint.
        task: What it is told of the row.
    """

    def __init__(
        self, function: Callable[..., Any], access: Access, task: Mapping[str, Any]
    ) -> None:
        super().__init__()
        given: dict[str, Any] = {"base_url": access.base_url, "api_key": access.key}
        self._call: Callable[[], Any] = partial(function, **given, task=dict(task))
        self._stopping = False
        self._cancel: Callable[[], object] | None = None
        start_thread("gymnast-program", self._run)

    def stop(self) -> ProgramResult:
        """See `Running.stop`."""
        self._stopping = True
        if self._cancel is not None:
            self._cancel()
        try:
            return self.ended.result(GRACE_S)
        except TimeoutError:
            return ProgramResult(STOPPED, stderr="the function did not end", stopped=True)

    def remove(self) -> None:
        """See `Running.remove`."""

    def _run(self) -> None:
        result = ProgramResult(1)
        try:
            value = self._call()
            if inspect.isawaitable(value):
                value = asyncio.run(self._awaited(value))
            result = ProgramResult(0, value=value, stopped=self._stopping)
        except (asyncio.CancelledError, KeyboardInterrupt):
            result = ProgramResult(STOPPED, stopped=True)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            result = ProgramResult(code, stopped=self._stopping)
        except BaseException as error:
            below = error.__traceback__ and error.__traceback__.tb_next  # without this frame
            shown = "".join(traceback.format_exception(type(error), error, below))
            result = ProgramResult(1, stderr=shown, stopped=self._stopping)
        finally:
            self.ended.set_result(result)

    async def _awaited(self, value: Any) -> Any:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(value)

        def cancel() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        self._cancel = cancel
        try:
            if self._stopping:
                task.cancel()
            return await task
        finally:
            self._cancel = None
