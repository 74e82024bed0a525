"""Calling the hooks a user writes: sync ones on the episode's thread, async ones on the loop.

An exception in a hook is the user's to mend, so it becomes a `UserCodeError` that carries the row.
`InfrastructureError` and the errors Gymnast raises on purpose pass through unchanged.
"""

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from gymnast.envs.rows import are_messages
from gymnast.envs.worker import Worker
from gymnast.errors import GymnastError, UserCodeError
from gymnast.types import Message

_MAX_ROW_CHARACTERS = 500


async def call_hook(hook: Callable[..., Any], *arguments: Any, worker: Worker, row: Any) -> Any:
    """Call a bound hook method and await it where it is async.

    Raises:
        UserCodeError: The hook raised.
    """
    try:
        if inspect.iscoroutinefunction(hook):
            return await hook(*arguments)
        result = await worker.run(functools.partial(hook, *arguments))
        return await result if inspect.isawaitable(result) else result
    except (GymnastError, asyncio.CancelledError):
        raise
    except (Exception, SystemExit) as error:
        raise user_error(hook, row, f"{type(error).__name__}: {error}") from error


def user_error(hook: Callable[..., Any], row: Any, problem: str) -> UserCodeError:
    """The error that names a hook, its class, the row and what went wrong."""
    name = getattr(hook, "__name__", str(hook))
    owner = type(getattr(hook, "__self__", None)).__name__
    shown = repr(row)
    if len(shown) > _MAX_ROW_CHARACTERS:
        shown = shown[:_MAX_ROW_CHARACTERS] + "..."
    return UserCodeError(name, row, f"{owner}.{name}: {problem} (row: {shown})")


def checked_number(hook: Callable[..., Any], value: Any, row: Any, what: str = "") -> float:
    """A reward as a float.

    Raises:
        UserCodeError: It is no finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise user_error(hook, row, f"returned {value!r}{what}; it must return a finite number")
    return number


def checked_numbers(hook: Callable[..., Any], value: Any, row: Any) -> dict[str, float]:
    """Named numbers, as `reward` (its parts) and `metrics` may return.

    Raises:
        UserCodeError: It is no mapping from names to finite numbers.
    """
    if not isinstance(value, Mapping):
        raise user_error(hook, row, f"returned {value!r}; it must return a dict of numbers")
    return {
        str(name): checked_number(hook, number, row, f" for {name!r}")
        for name, number in value.items()
    }


def checked_messages(hook: Callable[..., Any], value: Any, row: Any) -> list[Message]:
    """What `setup` returned, as a new list of messages.

    Raises:
        UserCodeError: It is no list of messages.
    """
    if not are_messages(value):
        problem = f"returned {value!r:.200}; it must return a list of messages, or None"
        raise user_error(hook, row, problem)
    return [dict(message) for message in value]  # type: ignore[misc]
