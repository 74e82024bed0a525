"""Calling the hooks that a user writes, and checking what they return.

An exception in a hook is the user's to fix, so it becomes a `UserCodeError` that carries the row.
So does a number that is not finite or that no float holds. `InfrastructureError` and the errors
that Gymnast raises on purpose pass through unchanged, except those that a path or a text of the
policy's may have caused.
"""

import asyncio
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.state import EpisodeState
from gymnast.envs.records.episode import Episode, Turn
from gymnast.envs.records.messages import read_messages
from gymnast.envs.records.next_request import NextRequest
from gymnast.envs.records.score import Score
from gymnast.envs.tools import bugs
from gymnast.envs.tools.running import call_user_code
from gymnast.errors import (
    DataError,
    GymnastError,
    ProcessInputClosed,
    ProcessTimeout,
    SandboxFileError,
    SandboxTextError,
    UserCodeError,
    described,
    shown,
)
from gymnast.numbers import finite_number, finite_sum
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.threads import EpisodeThread, being_cancelled, call_contained
from gymnast.types import Message

# Raised by a scoring hook, these may be due to what the policy left in its box or said.
POLICY_ERRORS = (SandboxFileError, SandboxTextError, ProcessInputClosed, ProcessTimeout)
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

    def error(self, problem: str, kind: type[UserCodeError] = UserCodeError) -> UserCodeError:
        """The error that names the class, the hook, the row and what went wrong."""
        row = shown(self.row, _MAX_ROW_CHARACTERS)
        return kind(self.hook, self.row, f"{self.owner}.{self.hook}: {problem}", row)

    @contextmanager
    def of_what_raises(self) -> Iterator[None]:
        """Run the user's code inside.

        Raises:
            UserCodeError: It raised an exception.
        """
        try:
            yield
        except GymnastError as error:
            if not isinstance(error, POLICY_ERRORS):
                raise
            raise self.error(described(error)) from error
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            raise self.error(described(error)) from error
        except (Exception, SystemExit) as error:
            problem = described(error)
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
        UserCodeError: It is not a finite number, or no float is as large.
    """
    try:
        return finite_number(value)
    except ValueError as error:
        text, way_out = ("the text ", ", as float(...)") if isinstance(value, str) else ("", "")
        if isinstance(value, int | Fraction | Decimal):
            way_out = ", of a size that a float holds: at most 1.8e308"
        problem = f"returned {text}{shown(value)}{what}; it must return a finite number{way_out}"
        raise blame.error(problem) from error


def checked_sum(numbers: Iterable[float], blame: Blame, what: str) -> float:
    """The sum of finite floats.

    Args:
        numbers: In the order in which they are added.
        blame: Of the hook that returned the last of them.
        what: Names the numbers, for the error: "the parts of the reward".

    Raises:
        UserCodeError: No float is as large.
    """
    try:
        return finite_sum(numbers)
    except ValueError as error:
        problem = f"{what} add up to more than a float holds, 1.8e308; return smaller numbers"
        raise blame.error(problem) from error


def checked_text_rewards(value: Any, text: str, blame: Blame) -> list[tuple[int, float]]:
    """The value of `text_rewards`: places in a text, and what is paid there.

    Raises:
        UserCodeError: It is not a list of pairs (end, reward), or a place is not in the text.
    """
    if isinstance(value, Mapping | str) or not isinstance(value, Iterable):
        raise blame.error(f"returned {shown(value)}; it must return pairs (end, reward)")
    with blame.of_what_raises():
        pairs = call_contained(lambda: list(map(_pair, value)))
    paid = []
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise blame.error(f"returned {shown(pair)} for a place; it must be (end, reward)")
        end, reward = pair
        if not isinstance(end, int) or isinstance(end, bool) or not 1 <= end <= len(text):
            raise blame.error(
                f"returned the place {shown(end)}; it must be a whole number from 1 to the length "
                f"of turn.raw, here {len(text)}"
            )
        paid.append((end, checked_number(reward, blame, f" for the place {end}")))
    return paid


def _pair(given: Any) -> Any:
    return tuple(given) if isinstance(given, Sequence) else given


def checked_state(value: Any, blame: Blame) -> Hashable:
    """The value of `turn_state`.

    Raises:
        UserCodeError: It cannot be hashed.
    """
    try:
        call_contained(lambda: hash(value))
    except Exception as error:
        raise blame.error(
            f"returned {shown(value)}, which cannot be hashed ({described(error)}); return a "
            "string, a number or a tuple of these, such as tuple(a_list) or json.dumps(a_dict, "
            "sort_keys=True)"
        ) from error
    state: Hashable = value
    return state


def checked_numbers(value: Any, blame: Blame) -> dict[str, float]:
    """Named numbers, as `reward` (for its parts) and `metrics` may return them.

    Raises:
        UserCodeError: It is not a mapping from names to finite numbers.
    """
    if not isinstance(value, Mapping):
        raise blame.error(f"returned {shown(value)}; it must return a dict of numbers")
    with blame.of_what_raises():
        items = call_contained(lambda: [(str(name), value[name]) for name in value])
    return {name: checked_number(number, blame, f" for {name!r}") for name, number in items}


def checked_reward(value: Any, blame: Blame) -> tuple[float, dict[str, Any]]:
    """The value of `reward` as a number, and what `info` says about it.

    Raises:
        UserCodeError: It is no finite number, mapping of such, `Score` or None.
    """
    if value is None:
        return 0.0, {"no_reward": True}
    if isinstance(value, Score):
        reward, extra = checked_reward(checked_numbers(value.parts, blame), blame)
        return reward, {**extra, "metrics": checked_numbers(value.metrics, blame)}
    if not isinstance(value, Mapping):
        return checked_number(value, blame), {}
    parts = checked_numbers(value, blame)
    reward = checked_sum(parts.values(), blame, "the parts of the reward")
    return reward, {"reward_parts": parts}


def checked_messages(value: Any, blame: Blame) -> list[Message]:
    """The value of a hook that says something, as a new list of messages.

    Raises:
        UserCodeError: It is not a list of messages.
    """
    try:
        return read_messages(value)
    except DataError as error:
        raise blame.error(f"returned messages that are not text: {error}") from error
    except ValueError as error:
        raise blame.error(f"returned {shown(value)}; it must return {error}, or None") from error


def checked_response(value: Any, blame: Blame) -> tuple[list[Message], Any]:
    """The value of `respond`: new messages, and the `tools` of the last one, or None.

    Raises:
        UserCodeError: It is no list of messages, or speaks for the policy or for a tool.
    """
    tools = None
    if isinstance(value, list | tuple) and value and isinstance(value[-1], Mapping):
        *others, last = value
        tools = last.get("tools")
        value = [*others, {key: part for key, part in last.items() if key != "tools"}]
    messages = checked_messages(value, blame)
    for message in messages:
        if message.get("tools") is not None:
            raise blame.error("returned `tools` with a message that is not the last; the last may")
        if message["role"] in ("assistant", "tool"):
            raise blame.error(
                f"returned a message with the role {message['role']!r}; the policy speaks for the "
                "assistant, and tools answer calls, so write {'role': 'user', 'content': '...'}"
            )
    return messages, tools


def checked_request(value: Any, contexts: int, blame: Blame) -> NextRequest:
    """The value of `next_request`, its messages as new ones.

    Raises:
        UserCodeError: It is no request, of an unknown context, or speaks for the policy in one.
    """
    if not isinstance(value, NextRequest):
        raise blame.error(f"returned {shown(value)}; it must return a NextRequest, or None")
    if value.branch is not None and value.branch not in range(contexts):
        raise blame.error(
            f"returned a request of context {value.branch!r}, but the episode has {contexts}; "
            "branch=None opens one"
        )
    messages = list(value.messages)
    if messages or value.branch is None:
        messages = checked_messages(messages, blame)
    if value.branch is not None and any(said["role"] == "assistant" for said in messages):
        raise blame.error(
            "returned a request that appends an assistant's message to a context, where only the "
            "policy speaks; branch=None opens one with this history"
        )
    return replace(value, messages=messages, tools=[dict(tool) for tool in value.tools])


class HookCalls:
    """Calls the hooks of one environment on its thread, or on the event loop.

    Attributes:
        hooks: The environment.
        state: Of the episode, whose row errors carry.
    """

    state: EpisodeState

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self._owner = type(hooks).__name__
        self._thread = EpisodeThread(f"gymnast-{self._owner}")

    async def hook(self, name: str, *arguments: Any) -> Any:
        """Call a hook on its thread or loop; a default one, which does little, directly."""
        function = self.hooks._hook(name)
        if self.is_default(name):
            return function(*arguments)
        return await call_hook(function, *arguments, thread=self._thread, blame=self.blame(name))

    async def scoring_hook(self, name: str, unusable: Any, *scored: Turn | Episode) -> Any:
        """Call a scoring hook; return `unusable` if it failed on what the policy left."""
        try:
            return await self.hook(name, *scored)
        except UserCodeError as error:
            if not caused_by_policy(error):
                raise
            self.state.unusable = True
            bugs.warn_of_unusable(type(self.hooks), error)
            return unusable

    def _prepare(self, box: Sandbox) -> None:
        with self.blame("prepare_sandbox").of_what_raises():
            call_contained(lambda: self.hooks._hook("prepare_sandbox")(box))

    @property
    def thread(self) -> EpisodeThread:
        """Runs what is not `async` in the environment's episodes."""
        return self._thread

    def is_default(self, hook: str) -> bool:
        """Whether no subclass overrides a hook."""
        return getattr(self.hooks._hook(hook), "__func__", None) is vars(Hooks)[hook]

    def blame(self, hook: str) -> Blame:
        """Whose code runs in a hook of this episode."""
        return Blame(self._owner, hook, self.state.row or None)
