"""Calling the hooks that a user writes, and checking what they return.

An exception in a hook is the user's to fix, so it becomes a `UserCodeError` that carries the row.
`InfrastructureError` and the errors that Gymnast raises on purpose pass through unchanged, except
those that a path or a text of the policy's may have caused.
"""

import asyncio
import functools
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gymnast.envs.records.messages import read_messages
from gymnast.envs.tools.running import call_user_code
from gymnast.errors import (
    DataError,
    GymnastError,
    SandboxFileError,
    SandboxTextError,
    UserCodeError,
)
from gymnast.threads import EpisodeThread
from gymnast.types import Message

# Raised by a scoring hook, these may be due to what the policy left in its box or said.
POLICY_ERRORS = (SandboxFileError, SandboxTextError)
_MAX_ROW_CHARACTERS = 500


@dataclass(frozen=True)
class Blame:
    """Whose code runs, for the error if it fails.

    Attributes:
        owner: The class.
        hook: The method.
        row: The episode's row; None before there is one.
    """

    owner: str
    hook: str
    row: Any

    def error(self, problem: str) -> UserCodeError:
        """The error that names the class, the hook, the row and what went wrong."""
        try:
            shown = repr(self.row)
        except Exception:  # raised by an object in the row
            shown = reprlib.repr(self.row)
        if len(shown) > _MAX_ROW_CHARACTERS:
            shown = shown[:_MAX_ROW_CHARACTERS] + "..."
        message = f"{self.owner}.{self.hook}: {problem} (row: {shown})"
        return UserCodeError(self.hook, self.row, message)

    @contextmanager
    def of_what_raises(self) -> Iterator[None]:
        """Run the user's code inside.

        Raises:
            UserCodeError: It raised an exception.
        """
        try:
            yield
        except (GymnastError, asyncio.CancelledError) as error:
            if not isinstance(error, POLICY_ERRORS):
                raise
            raise self.error(f"{type(error).__name__}: {error}") from error
        except (Exception, SystemExit) as error:
            problem = f"{type(error).__name__}: {error}"
            if "'coroutine' object" in problem:
                problem += "; write `async def` and `await` async calls"
            raise self.error(problem) from error


async def call_hook(
    function: Callable[..., Any], *arguments: Any, thread: EpisodeThread, blame: Blame
) -> Any:
    """Call a hook: a sync one on the episode's thread, an async one on the event loop.

    Raises:
        UserCodeError: It raised an exception.
    """
    with blame.of_what_raises():
        return await call_user_code(thread, functools.partial(function, *arguments))


def caused_by_policy(error: BaseException) -> bool:
    """Whether a hook's exception may be due to what the policy left in its box or said."""
    return isinstance(error, UserCodeError) and isinstance(error.__cause__, POLICY_ERRORS)


def checked_number(value: Any, blame: Blame, what: str = "") -> float:
    """A reward as a float.

    Raises:
        UserCodeError: It is not a finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise blame.error(f"returned {value!r}{what}; it must return a finite number")
    return number


def checked_numbers(value: Any, blame: Blame) -> dict[str, float]:
    """Named numbers, as `reward` (for its parts) and `metrics` may return them.

    Raises:
        UserCodeError: It is not a mapping from names to finite numbers.
    """
    if not isinstance(value, Mapping):
        raise blame.error(f"returned {value!r}; it must return a dict of numbers")
    return {
        str(name): checked_number(number, blame, f" for {name!r}") for name, number in value.items()
    }


def checked_reward(value: Any, blame: Blame) -> tuple[float, dict[str, Any]]:
    """The value of `reward` as a number, and what `info` says about it.

    Raises:
        UserCodeError: It is neither a finite number nor a mapping of such nor None.
    """
    if value is None:
        return 0.0, {"no_reward": True}
    if not isinstance(value, Mapping):
        return checked_number(value, blame), {}
    parts = checked_numbers(value, blame)
    return sum(parts.values(), 0.0), {"reward_parts": parts}


def checked_messages(value: Any, blame: Blame) -> list[Message]:
    """The value of `setup` as a new list of messages.

    Raises:
        UserCodeError: It is not a list of messages.
    """
    try:
        return read_messages(value)
    except DataError as error:
        raise blame.error(f"returned messages that are not text: {error}") from error
    except ValueError as error:
        raise blame.error(f"returned {value!r:.200}; it must return {error}, or None") from error
