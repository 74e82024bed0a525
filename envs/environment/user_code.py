"""Calling the hooks a user writes: sync ones on the episode's thread, async ones on the loop.

An exception in a hook is the user's to mend, so it becomes a `UserCodeError` that carries the row.
`InfrastructureError` and the errors Gymnast raises on purpose pass through unchanged, but for those
that a path or a text of the policy's may have caused.
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

# Where an episode is scored, these say something of what the policy has left in its box, or said.
OF_THE_POLICY = (SandboxFileError, SandboxTextError)
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

    @contextmanager
    def of_what_raises(self) -> Iterator[None]:
        """The user's code runs inside.

        Raises:
            UserCodeError: It raised.
        """
        try:
            yield
        except (GymnastError, asyncio.CancelledError) as error:
            if not isinstance(error, OF_THE_POLICY):
                raise
            raise self.error(f"{type(error).__name__}: {error}") from error
        except (Exception, SystemExit) as error:
            problem = f"{type(error).__name__}: {error}"
            if "'coroutine' object" in problem:
                problem += "; write `async def` and `await` what is async"
            raise self.error(problem) from error


async def call_hook(
    function: Callable[..., Any], *arguments: Any, thread: EpisodeThread, blame: Blame
) -> Any:
    """Call a hook and await it where it is async.

    Raises:
        UserCodeError: It raised.
    """
    with blame.of_what_raises():
        return await call_user_code(thread, functools.partial(function, *arguments))


def of_the_policy(error: BaseException) -> bool:
    """Whether what a hook raised may be due to what the policy left in its box, or said."""
    return isinstance(error, UserCodeError) and isinstance(error.__cause__, OF_THE_POLICY)


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


def checked_reward(value: Any, blame: Blame) -> tuple[float, dict[str, Any]]:
    """What `reward` returned, as a number and what `info` tells of it.

    Raises:
        UserCodeError: It is no finite number, no mapping of such, and not None.
    """
    if value is None:
        return 0.0, {"no_reward": True}
    if not isinstance(value, Mapping):
        return checked_number(value, blame), {}
    parts = checked_numbers(value, blame)
    return sum(parts.values(), 0.0), {"reward_parts": parts}


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
