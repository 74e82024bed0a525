"""What the hook `solve` says in an episode, whatever its form: one message after the other.

    await env.areset(options={"row": row})
    outcomes = await solve_episode(env)

`trainers/conversations` makes trajectories of it, `worked_turns.py` the examples in prompts.
"""

import asyncio
import inspect
import itertools
from collections.abc import AsyncGenerator
from functools import partial
from types import GeneratorType
from typing import Any

from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.state import EpisodeState
from gymnast.envs.environment.user_code import Blame
from gymnast.envs.records.assistant import assistant_message, with_call_ids
from gymnast.envs.records.episode import CallRecord, Outcome
from gymnast.errors import ConfigError, InfrastructureError, NoSolution
from gymnast.threads import Contained, EpisodeThread
from gymnast.types import Message, StopReason

_OVER = object()
_FORMS = "a list of assistant messages, a generator of them, or None where the row has no solution"


def can_solve(environment: Hooks | type[Hooks]) -> bool:
    """Whether an environment's class has a `solve` of its own."""
    cls = environment if isinstance(environment, type) else type(environment)
    return cls.solve is not Hooks.solve


def require_solve(environment: Hooks | type[Hooks], wanted_by: str) -> None:
    """Check that an environment's class has a `solve` of its own, with a time that it may take.

    Args:
        environment: The environment or its class.
        wanted_by: What needs it, for the message: "worked_turns=2".

    Raises:
        ConfigError: It has none, or its `solve_timeout_s` is no time.
    """
    cls = environment if isinstance(environment, type) else type(environment)
    if can_solve(environment):
        _check_timeout(environment.solve_timeout_s, cls.__name__)
        return
    raise ConfigError(
        f"{wanted_by}: {cls.__name__} has no `solve`, which says how an episode is solved. Write "
        "def solve(self, row), which yields or returns the assistant messages of a perfect "
        'episode: yield call("tool", argument=...), then yield "the answer" '
        "(docs/demonstrations.md)"
    )


def _check_timeout(given: Any, owner: str) -> None:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if given is not None and not (number and given > 0):
        raise ConfigError(
            f"{owner}.solve_timeout_s: must be a number of seconds > 0, or None for no limit, got "
            f"{given!r:.100}"
        )


async def solve_episode(environment: Any) -> list[Outcome]:
    """Play the episode that is running in an environment as its `solve` says, to its end.

    Returns:
        What came of each message.

    Raises:
        ConfigError: The environment's class has no `solve`, or its `solve_timeout_s` is no time.
        NoSolution: It has no solution for this row.
        UserCodeError: The solution is wrong: it raised, a call in it failed, or the episode ended
            before it did, or did not end with it.
        InfrastructureError: Something that the episode runs on broke.
    """
    require_solve(environment, "playing a solution")
    solution: Solution = environment._episode_runner.solution()
    outcomes: list[Outcome] = []
    try:
        while not outcomes or not (outcomes[-1].terminated or outcomes[-1].truncated):
            outcomes.append(await environment.act(await solution.next()))
        await solution.finish()
    finally:
        await solution.close()
    return outcomes


class Solution:
    """The messages of `solve` for one episode.

    Sync code of the hook runs on the episode's thread, as that of other hooks does.

    Args:
        hook: The bound method `solve`.
        state: The episode, after its beginning.
        thread: The episode's.
        blame: Of the hook.
        timeout_s: How long each message may take, in seconds; None: as long as it takes.

    Attributes:
        said: How many messages it has given.
    """

    def __init__(
        self,
        hook: Any,
        state: EpisodeState,
        thread: EpisodeThread,
        blame: Blame,
        timeout_s: float | None,
    ) -> None:
        self.said = 0
        self._hook, self._state = hook, state
        self._thread, self._blame, self._timeout_s = thread, blame, timeout_s
        self._steps: AsyncGenerator[Any, Any] | None = None
        self._ids = (f"call{number:05}" for number in itertools.count())

    async def next(self) -> Message:
        """The next message, after what the environment answered to the last one.

        Calls without an id get one of nine letters and digits, which every template takes.

        Raises:
            NoSolution: The hook returned None.
            UserCodeError: The hook raised, said something that is no message or has no more to
                say, or a call that it made did not succeed.
        """
        self._check_calls()
        said = await self._advance()
        if said is _OVER:
            last = f"after message {self.said}" if self.said else "without a message"
            raise self._blame.error(
                f"ended {last}, but the episode goes on. Its last message must end the episode: an "
                "answer without a call, or a call of a stop tool"
            )
        self.said += 1
        try:
            return with_call_ids(assistant_message(said), self._ids)
        except ValueError as error:
            raise self._blame.error(
                f"message {self.said} is {said!r:.200}; it must be {error}"
            ) from error

    async def finish(self) -> None:
        """Check, after the episode's end, that nothing failed and that nothing was left to say.

        Raises:
            UserCodeError: The last call failed, or there are further messages.
            InfrastructureError: The episode broke.
        """
        state = self._state
        if state.failure is not None:
            raise InfrastructureError(f"the episode broke: {state.failure}") from state.failure
        self._check_calls()
        more = await self._advance()
        if more is not _OVER:
            way_out = "; raise max_turns" if state.stop_reason == StopReason.max_turns else ""
            raise self._blame.error(
                f"the episode ended ({state.stop_reason}) with message {self.said}, but solve "
                f"goes on with {_in_short(more)}{way_out}"
            )

    async def close(self) -> None:
        """End the hook's generator, if it still runs."""
        if self._steps is not None:
            await self._steps.aclose()

    def _check_calls(self) -> None:
        """Check that the calls of the last message succeeded."""
        turns = self._state.turns
        for record in turns[-1].calls if turns and self.said else ():
            if record.error is not None:
                raise self._blame.error(
                    f"message {self.said}: {_shown(record)} failed: {record.error.message}"
                )

    async def _advance(self) -> Any:
        """What the hook says next, or `_OVER`."""
        with self._blame.of_what_raises():
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    if self._steps is None:
                        self._steps = await self._begin()
                        return await Contained(anext(self._steps))
                    answers = [dict(message) for message in self._state.turns[-1].results]
                    return await Contained(self._steps.asend(answers))
            except StopAsyncIteration:
                return _OVER
            except TimeoutError:
                if not limit.expired():  # the hook's own
                    raise
        where = f"after message {self.said}" if self.said else "before its first message"
        raise self._blame.error(
            f"took longer than {self._timeout_s:g} s {where}; it must not wait, or its class sets "
            "solve_timeout_s, in seconds (None: no limit)"
        )

    async def _begin(self) -> AsyncGenerator[Any, Any]:
        """Call the hook; bring what it returns into one form."""
        row = self._state.row
        if inspect.iscoroutinefunction(self._hook):
            given = await Contained(self._hook(row))
        else:
            given = await self._thread.run(lambda: self._hook(row))
            if inspect.isawaitable(given):
                given = await Contained(given)
        if given is None:
            raise self._blame.error("returned None: there is no solution for this row", NoSolution)
        if inspect.isasyncgen(given):
            return given
        if isinstance(given, GeneratorType):
            return self._on_thread(given)
        if isinstance(given, list | tuple):
            return _listed(given)
        raise self._blame.error(f"returned {given!r:.200}; it must return {_FORMS}")

    async def _on_thread(self, generator: Any) -> AsyncGenerator[Any, Any]:
        """A sync generator as an async one, which runs on the episode's thread."""

        def advance(sent: Any) -> Any:
            try:
                return generator.send(sent)
            except StopIteration:
                return _OVER

        answers = None
        try:
            while (said := await self._thread.run(partial(advance, answers))) is not _OVER:
                answers = yield said
        finally:
            if not generator.gi_running:  # it does where its thread was abandoned
                await self._thread.run(generator.close)


async def _listed(messages: "list[Any] | tuple[Any, ...]") -> AsyncGenerator[Any, Any]:
    for message in messages:
        yield message


def _shown(record: CallRecord) -> str:
    given = ", ".join(f"{name}={value!r:.80}" for name, value in record.call.arguments.items())
    return f"the call {record.call.name or '(unreadable)'}({given})"


def _in_short(said: Any) -> str:
    """What a solution says, for an error: the tools that it calls, or else the message."""
    try:
        names = [call["function"]["name"] for call in said["tool_calls"]]
    except (TypeError, LookupError):
        names = []
    return f"a call of {', '.join(map(str, names))}" if names else f"{said!r:.200}"
