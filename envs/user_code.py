"""Calling the hooks a user writes: sync ones on the episode's thread, async ones on the loop.

An exception in a hook is the user's to mend, so it becomes a `UserCodeError` that carries the row.
`InfrastructureError` and the errors Gymnast raises on purpose pass through unchanged.
"""

import asyncio
import functools
import inspect
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gymnast.envs.messages import read_messages
from gymnast.envs.worker import Worker
from gymnast.errors import DataError, GymnastError, UserCodeError
from gymnast.types import Message

_MAX_ROW_CHARACTERS = 500


@dataclass(frozen=True)
class Blame:
    """Whose code runs, for the error if it fails.

    Attributes:
        owner: The class.
        hook: The method.
        row: The episode's row; None where there is none yet.
    """

    owner: str
    hook: str
    row: Any

    def error(self, problem: str) -> UserCodeError:
        """The error that names the class, the hook, the row and what went wrong."""
        try:
            shown = repr(self.row)
        except Exception:  # of an object in the row
            shown = reprlib.repr(self.row)
        if len(shown) > _MAX_ROW_CHARACTERS:
            shown = shown[:_MAX_ROW_CHARACTERS] + "..."
        message = f"{self.owner}.{self.hook}: {problem} (row: {shown})"
        return UserCodeError(self.hook, self.row, message)


async def call_hook(
    function: Callable[..., Any], *arguments: Any, worker: Worker, blame: Blame
) -> Any:
    """Call a hook and await it where it is async.

    Raises:
        UserCodeError: It raised.
    """
    try:
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        result = await worker.run(functools.partial(function, *arguments))
        return await result if inspect.isawaitable(result) else result
    except (GymnastError, asyncio.CancelledError):
        raise
    except (Exception, SystemExit) as error:
        raise blame.error(f"{type(error).__name__}: {error}") from error


def checked_number(value: Any, blame: Blame, what: str = "") -> float:
    """A reward as a float.

    Raises:
        UserCodeError: It is no finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise blame.error(f"returned {value!r}{what}; it must return a finite number")
    return number


def checked_numbers(value: Any, blame: Blame) -> dict[str, float]:
    """Named numbers, as `reward` (its parts) and `metrics` may return.

    Raises:
        UserCodeError: It is no mapping from names to finite numbers.
    """
    if not isinstance(value, Mapping):
        raise blame.error(f"returned {value!r}; it must return a dict of numbers")
    return {
        str(name): checked_number(number, blame, f" for {name!r}") for name, number in value.items()
    }


def checked_messages(value: Any, blame: Blame) -> list[Message]:
    """What `setup` returned, as a new list of messages.

    Raises:
        UserCodeError: It is no list of messages.
    """
    try:
        return read_messages(value)
    except DataError as error:
        raise blame.error(f"returned messages that are not text: {error}") from error
    except ValueError as error:
        raise blame.error(f"returned {value!r:.200}; it must return {error}, or None") from error
