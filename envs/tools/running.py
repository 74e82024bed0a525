"""Running the tool calls of one action.

Whatever the policy wrote, each call gets a record with the text of its result. The only exceptions
that come out are `InfrastructureError`, after which the episode cannot go on, and `UserCodeError`.
`environment/state.py` decides which calls end an episode.
"""

import asyncio
import copy
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from types import GeneratorType
from typing import Any

from gymnast.envs.records.arguments import BadArguments
from gymnast.envs.records.episode import CallRecord, ErrorKind, ToolError
from gymnast.envs.records.messages import encodable
from gymnast.envs.tools.bugs import is_bug, own_traceback
from gymnast.envs.tools.definition import Tool, no_such_tool
from gymnast.envs.tools.results import Written, cut_middle, shortened, written
from gymnast.envs.tools.validation import bind_arguments
from gymnast.errors import InfrastructureError, UserCodeError, described
from gymnast.threads import Contained, EpisodeThread, Overrun, being_cancelled, time_limit
from gymnast.types import Message, ToolCall
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

_MAX_ERROR_CHARACTERS = 2000  # an error may quote the policy, which may have written much


def approximate_tokens(text: str) -> Sized:
    """As many entries as a text has tokens, about: one for four characters."""
    return range(-(-len(text) // 4))


def answer(record: CallRecord) -> Message:
    """The message with the result of a call."""
    message: Message = {"role": "tool", "tool_call_id": record.call.id, "content": record.text}
    if record.call.name:
        message["name"] = record.call.name
    return message


async def call_user_code(thread: EpisodeThread, function: Callable[[], Any]) -> Any:
    """Call a user's function: an async one on the event loop, a sync one on the thread.

    A generator is collected into a list on the thread. What it raises is an `Exception`, the
    task's cancellation or a `KeyboardInterrupt` on the event loop, where Ctrl-C arrives; one that
    is raised on the thread is the function's own.
    """
    if inspect.iscoroutinefunction(function):
        return await Contained(function())
    result = await thread.run(lambda: _whole(function()))
    return await Contained(result) if inspect.isawaitable(result) else result


class _Failed(Exception):
    """A call did not succeed; the message is for the policy."""

    def __init__(
        self, kind: ErrorKind, message: str, exception: str = "", traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.kind, self.exception, self.traceback = kind, exception, traceback


@dataclass
class CallRunner:
    """What running calls needs.

    Attributes:
        tools: The tools offered in this episode, by name.
        call_tool: Runs a call, given the tool's name and the arguments; sync or async.
        thread: Runs `call_tool` if it is sync.
        code_of: Returns the author's functions that run the calls of a tool; see `bugs.py`.
        deadline: When the episode's time is up, on `time.monotonic`; None: never.
        encode: Tokenizes a text, to measure results.
    """

    tools: Mapping[str, Tool]
    call_tool: Callable[[str, dict[str, Any]], Any]
    thread: EpisodeThread
    code_of: Callable[[str], Sequence[Callable[..., Any]]]
    deadline: float | None = None
    encode: Callable[[str], Sized] = field(default=approximate_tokens)

    async def run(self, calls: Sequence[ToolCall]) -> list[CallRecord]:
        """Run calls in order; consecutive ones of concurrent tools run at the same time.

        Returns:
            One record for each call, in the order of the calls.

        Raises:
            InfrastructureError: Something that a tool runs on broke.
            UserCodeError: A tool used a box, but its class declares none.
        """
        records: list[CallRecord] = []
        for together, group in itertools.groupby(calls, key=self._concurrent):
            if not together:
                records += [await self._record(call) for call in group]
                continue
            outcomes = await asyncio.gather(*map(self._record, group), return_exceptions=True)
            for record in outcomes:
                if isinstance(record, BaseException):
                    raise record
                records.append(record)
        return records

    def _concurrent(self, call: ToolCall) -> bool:
        return call.name in self.tools and self.tools[call.name].options.concurrent

    async def _record(self, call: ToolCall) -> CallRecord:
        arguments: dict[str, Any] = {}
        start = time.perf_counter()
        try:
            tool = self._find(call)
            arguments = _bind(tool, call.arguments)
            own = _bind(tool, _copied(tool, call.arguments))  # a tool may change what it is given
            start = time.perf_counter()
            result = await self._call(tool, own)
            seconds = time.perf_counter() - start
            value, text = self._written(tool, result)
        except _Failed as failure:
            message = shortened(encodable(str(failure)), _MAX_ERROR_CHARACTERS)
            kind, exception = failure.kind, failure.exception
            error = ToolError(kind, call.name, message, exception, encodable(failure.traceback))
            seconds = time.perf_counter() - start
            return CallRecord(call, arguments, None, f"Error: {error.message}", error, seconds)
        return CallRecord(call, arguments, value, text, None, seconds)

    def _find(self, call: ToolCall) -> Tool:
        tool = self.tools.get(call.name)
        if call.error is not None:
            how = f"Call it as {tool.signature}." if tool else f"Tools: {self._signatures()}."
            raise _Failed("malformed", f"{call.error}. {how}")
        if tool is None:
            message = f"{call.name!r}: {no_such_tool(call.name, self.tools)}"
            raise _Failed("unknown_tool", message)
        return tool

    def _signatures(self) -> str:
        return ", ".join(tool.signature for tool in self.tools.values()) or "(none)"

    async def _call(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        timeout_s = self._timeout_s(tool)
        if timeout_s is not None and timeout_s <= 0:
            raise _Failed("timeout", f"{tool.name} was not run: the episode's time is up")
        call = partial(self.call_tool, tool.name, arguments)
        try:
            return await within(call_user_code(self.thread, call), timeout_s)
        except (InfrastructureError, UserCodeError):
            raise
        except Overrun:
            message = f"{tool.name} was given up after {timeout_s:.3g} s"
            raise _Failed("timeout", message) from None
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and being_cancelled():
                raise  # the episode is being cancelled, not something inside the tool
            logger.debug("tool %s raised", tool.name, exc_info=True)
            message, name = f"{tool.name}: {described(error)}", type(error).__name__
            sources = self.code_of(tool.name)
            if is_bug(error, sources, arguments):
                raise _Failed("bug", message, name, own_traceback(error, sources)) from error
            raise _Failed("exception", message, name) from error

    def _timeout_s(self, tool: Tool) -> float | None:
        limits = [] if tool.options.timeout_s is None else [tool.options.timeout_s]
        if self.deadline is not None:
            limits.append(self.deadline - time.monotonic())
        return min(limits) if limits else None

    def _written(self, tool: Tool, result: Any) -> Written:
        try:
            value, text = written(result)
        except TypeError as error:
            raise _Failed("bug", f"{tool.name}: {error}", type(error).__name__) from error
        limit = tool.options.max_output_tokens
        return Written(value, text if limit is None else cut_middle(text, limit, self.encode))


def _whole(result: Any) -> Any:
    """A generator as a list, so that the tool's code runs on the tool's thread."""
    return list(result) if isinstance(result, GeneratorType) else result


def _copied(tool: Tool, arguments: Any) -> Any:
    try:
        return copy.deepcopy(arguments)
    except RecursionError:
        message = f"{tool.signature}: the arguments are nested too deeply"
        raise _Failed("bad_arguments", message) from None


def _bind(tool: Tool, arguments: Any) -> dict[str, Any]:
    try:
        return bind_arguments(tool, arguments)
    except BadArguments as error:
        raise _Failed("bad_arguments", str(error)) from error


async def within(awaitable: Awaitable[Any], timeout_s: float | None) -> Any:
    """Await something for a limited time, in seconds; None: as long as it takes.

    Raises:
        Overrun: The time is up.
        TimeoutError: Its own.
    """
    if timeout_s is None:
        return await awaitable
    async with time_limit(timeout_s):
        return await awaitable
