"""The message level of an environment: tools, hooks, and what happens in one turn.

An assistant message goes in; tools run; the environment's messages, the reward and the end come
out. Nothing here knows tokens; `environment.py` puts them around it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from typing import Any, ClassVar, Self

from gymnasium.error import ResetNeeded

from gymnast.envs.boxes.box import box_settings
from gymnast.envs.environment.episode_boxes import EpisodeBoxes
from gymnast.envs.environment.functions import environment_class
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.rows import (
    checked_row,
    episode_tools,
    offered_tools,
    prompt_of,
    with_system_prompt,
)
from gymnast.envs.environment.state import EpisodeState
from gymnast.envs.environment.user_code import (
    Blame,
    call_hook,
    checked_messages,
    checked_number,
    checked_numbers,
    checked_reward,
    of_the_policy,
)
from gymnast.envs.records.ending import first_reason
from gymnast.envs.records.episode import Episode, Outcome, Turn
from gymnast.envs.records.messages import json_message, read_calls
from gymnast.envs.records.metrics import Timings
from gymnast.envs.tools.bugs import Told
from gymnast.envs.tools.definition import Tool, tools_of_class, with_stop_tools
from gymnast.envs.tools.running import CallRunner, answer, approximate_tokens, call_user_code
from gymnast.errors import (
    InfrastructureError,
    ToolDefinitionError,
    UsageError,
    UserCodeError,
)
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.threads import EpisodeThread
from gymnast.types import Message, StopReason
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

CONSTRUCTOR = (
    "Write: def __init__(self, renderer=None, *, size=3, **settings): "
    "super().__init__(renderer, **settings); self.size = size."
)
Info = dict[str, Any]
Ending = tuple[float, bool, bool, Info]


class Toolset(Hooks):
    """Tools and hooks, driven message by message. Users subclass `Environment`, not this."""

    sandbox_spec: ClassVar[SandboxSpec | None] = None
    system_prompt: str | None
    max_turns: int
    _told: ClassVar[Told] = Told()
    _running = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._class_tools = tools_of_class(cls)
        cls._told = Told()

    def __init__(
        self, stop_tools: Iterable[str], sandbox: str | Mapping[str, Any] | None = None
    ) -> None:
        owner = type(self).__name__
        self._boxes = EpisodeBoxes(owner, box_settings(owner, self.sandbox_spec, sandbox))
        self._stop_tools = stop_tools if isinstance(stop_tools, str) else tuple(stop_tools)
        known = self._class_tools
        self._all_tools = (
            with_stop_tools(known, self._stop_tools) if self._is_default("tools_for") else known
        )
        self._thread = EpisodeThread(f"gymnast-{type(self).__name__}")
        self._forget_episode()
        self._running = False
        self._needs_cleanup = False

    @classmethod
    def from_tools(
        cls,
        functions: Iterable[Callable[..., Any]],
        *,
        reward: Callable[[Episode], Any] | None = None,
        stop_tools: Iterable[str] = (),
    ) -> type[Self]:
        """Make an environment class of plain functions.

        Args:
            functions: The tools: with type hints and docstrings, marked with `@tool` or not.
            reward: Scores an episode, whose row is `episode.row`.
            stop_tools: Names of those that end the episode.

        Raises:
            ToolDefinitionError: A function lacks a docstring or a type hint.
            ConfigError: `stop_tools` names none of the functions.
        """
        return environment_class(cls, functions, reward, stop_tools)

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of the current episode."""
        return self._state.row

    @property
    def sandbox(self) -> Sandbox:
        """The episode's box, from before `setup` until after `cleanup`; a fresh one each episode.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
            SandboxDead: No episode is running.
        """
        return self._boxes.box(self._state.row or None)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The schemas of the tools offered in this episode, in OpenAI's shape.

        Before the first one, and in `setup` of a class with `tools_for`: the tools of the class.
        """
        return [tool.schema for tool in self._state.tools.values()]

    @property
    def tool_definitions(self) -> Mapping[str, Tool]:
        """The same tools with their options and parameters, by name."""
        return dict(self._state.tools)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run one call of a tool; a hook: see `Hooks.call_tool`."""
        function = self._function(name)
        if function is None:
            raise NotImplementedError(f"tool {name!r} has no function; override call_tool")
        return await call_user_code(self._thread, partial(function, **arguments))

    @property
    def episode(self) -> Episode:
        """The episode so far."""
        return self._state.episode

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, in OpenAI's shape and JSON-serialisable."""
        return self._state.episode.messages

    def end_episode(self) -> None:
        """End the episode after this turn, with `StopReason.environment`.

        To be called from a tool or from `turn_reward`: when a game is over, say.
        """
        self._state.ended = True

    async def act(self, message: Mapping[str, Any]) -> Outcome:
        """Take one turn at the level of messages: what `step` does between parsing and rendering.

        Limits on tokens do not hold here. An episode is driven by `act` or by `step`, not by both.

        Args:
            message: An assistant message in OpenAI's shape, with or without `tool_calls`.

        Returns:
            `(messages, reward, terminated, truncated, info)`, the messages being what the
            environment answers.

        Raises:
            ResetNeeded: No episode is running.
            UserCodeError: A hook raised.
        """
        self._require_episode()
        self._state.timings = Timings()
        try:
            turn, turn_reward, holding = await self._take_turn(message, cut=False)
            ending = await self._end_turn(turn, turn_reward, first_reason(holding))
            return Outcome(list(turn.results), *ending)
        except BaseException:
            await self._abort()
            raise

    # ---- what the token level builds on ----

    async def _begin(self, row: Any, timeout_s: float | None) -> list[Message]:
        """Begin an episode: its tools, its setup, its first messages."""
        row = checked_row(row, type(self).__name__)
        state = self._state = EpisodeState(
            row,
            offered_tools(row, self._all_tools)
            if self._is_default("tools_for")
            else self._all_tools,
            None if timeout_s is None else time.monotonic() + timeout_s,
            abandoned_before=self._thread.abandoned,
        )
        self._require_methods()
        if self._boxes.wanted:
            with state.timings.measure("sandbox"):
                await self._boxes.take(self._prepare)
        self._needs_cleanup = True
        with state.timings.measure("setup"):
            found = await self._hook("setup", row)
            if not self._is_default("tools_for"):
                state.tools = await self._tools_for(row)
        given = None if found is None else checked_messages(found, self._blame("setup"))
        messages = prompt_of(row) if given is None else given
        state.prompt = with_system_prompt(messages, self.system_prompt)
        return state.prompt

    async def _tools_for(self, row: Mapping[str, Any]) -> dict[str, Tool]:
        """The tools that the hook `tools_for` gives, those of them that the row names."""
        given = await self._hook("tools_for", row)
        runs_all = type(self).call_tool is not Toolset.call_tool
        runs = None if runs_all else self._class_tools
        return episode_tools(given, row, self._stop_tools, runs, type(self).__name__)

    def _forget_episode(self) -> None:
        self._state = EpisodeState({}, self._all_tools)

    async def _take_turn(
        self, message: Mapping[str, Any], *, cut: bool
    ) -> tuple[Turn, float, set[StopReason]]:
        """Run an action's calls, score the turn, and say what ends it, token limits apart."""
        state = self._state
        self._boxes.policy_acts()
        index = len(state.turns)
        calls = read_calls(message, turn=index)
        turn = Turn(index, json_message(message, calls))
        score = 0.0
        with state.settling(self._boxes):
            with state.timings.measure("tools"):
                runner = CallRunner(state.tools, self.call_tool, self._thread, self._code_of)
                runner.deadline, runner.encode = state.deadline, self._encode
                records = await runner.run(calls)
            for record in records:
                if record.call.name in state.tools:
                    state.timings.add(f"tool/{record.call.name}", record.seconds)
            turn = Turn(index, turn.message, tuple(records), tuple(map(answer, records)))
            self._told.tell(type(self).__name__, turn.errors, state.row)
            with state.timings.measure("reward"):
                found = await self._scoring_hook("turn_reward", turn, 0.0)
            score = checked_number(found, self._blame("turn_reward"))
        if state.failure is not None:
            turn = Turn(index, turn.message, turn.calls)
        holding = state.holding(turn, cut=cut, max_turns=self.max_turns)
        if StopReason.max_tokens in holding:  # cut before any whole call: nothing is answered
            turn = Turn(index, turn.message, turn.calls)
        return turn, score, holding

    async def _end_turn(self, turn: Turn, reward: float, reason: StopReason | None) -> Ending:
        """Record a turn and, where it was the last, score and close the episode."""
        state = self._state
        state.turns.append(turn)
        state.stop_reason = reason
        extra: Info = {}
        if reason is not None:
            with state.settling(self._boxes):
                reward += await self._score(extra)
            if state.failure is not None:
                reward, extra = 0.0, {"failure": f"{type(state.failure).__name__}: {state.failure}"}
                state.stop_reason = StopReason.error
            elif state.broke_box:  # what the turns were paid is taken back
                reward, extra = min(0.0, -state.paid), {}
            given_up = self._thread.abandoned - state.abandoned_before
            counts = state.counts(abandoned=given_up, boxed=self._boxes.has_box)
            extra["metrics"] = counts | extra.get("metrics", {})
            self._running = False
            with state.timings.measure("cleanup"):
                await self._clean_up()
        state.paid += reward
        ended = state.stop_reason
        info = self._info() | {
            "tool_calls": turn.tool_calls,
            "errors": turn.errors,
            "stop_reason": ended,
            **extra,
        }
        terminated = ended is not None and ended.terminated
        return reward, terminated, ended is not None and not terminated, info

    async def _score(self, extra: Info) -> float:
        """The episode's reward; its parts and the subclass's metrics are put into `extra`."""
        state = self._state
        if state.failure is not None or state.broke_box:
            return 0.0
        episode = state.episode
        with state.timings.measure("reward"):
            found = await self._scoring_hook("reward", episode, 0.0)
            more = await self._scoring_hook("metrics", episode, {})
        extra["metrics"] = checked_numbers(more, self._blame("metrics"))
        reward, told = checked_reward(found, self._blame("reward"))
        extra |= told
        return reward

    async def _scoring_hook(self, name: str, of: Turn | Episode, unusable: Any) -> Any:
        """Call a hook that scores; `unusable` where it could not use what the policy has left."""
        try:
            return await self._hook(name, of)
        except UserCodeError as error:
            if not of_the_policy(error):
                raise
            self._state.unusable = True
            self._told.tell_unusable(error)
            return unusable

    def _require_methods(self) -> None:
        """A tool is looked up by its name, which an attribute of the instance would hide."""
        hidden = [name for name in self._all_tools if name in vars(self)]
        if hidden:
            raise ToolDefinitionError(
                f"{type(self).__name__}: tool {hidden[0]!r} is hidden by the attribute "
                f"self.{hidden[0]}. Rename one of them."
            )

    def _prepare(self, box: Sandbox) -> None:
        with self._blame("prepare_sandbox").of_what_raises():
            self.prepare_sandbox(box)

    def _function(self, name: str) -> Callable[..., Any] | None:
        """The function or method behind a tool; None where it is only described."""
        tool = self._state.tools.get(name)
        if tool is not None and tool.function is not None:
            return tool.function
        return getattr(self, name) if name in self._class_tools else None

    def _code_of(self, name: str) -> list[Callable[..., Any]]:
        """The author's functions that run a tool's calls."""
        hook = [] if type(self).call_tool is Toolset.call_tool else [self.call_tool]
        function = self._function(name)
        return hook if function is None else [*hook, function]

    def _encode(self, text: str) -> Sized:
        """Measure a text in tokens."""
        return approximate_tokens(text)

    def _info(self) -> Info:
        """What every info has; new objects each time."""
        return {"timings": self._state.timings}

    async def _hook(self, name: str, *arguments: Any) -> Any:
        """Call a hook where it runs; a default one, which does nothing, at once."""
        hook = getattr(self, name)
        if self._is_default(name):
            return hook(*arguments)
        return await call_hook(hook, *arguments, thread=self._thread, blame=self._blame(name))

    def _is_default(self, hook: str) -> bool:
        """Whether no subclass overrides a hook."""
        return getattr(getattr(self, hook), "__func__", None) is vars(Hooks)[hook]

    def _blame(self, hook: str) -> Blame:
        return Blame(type(self).__name__, hook, self._state.row or None)

    def _require_construction(self) -> None:
        if "_thread" not in vars(self):
            raise UsageError(
                f"{type(self).__name__}.__init__ does not call super().__init__. {CONSTRUCTOR}"
            )

    def _require_episode(self) -> None:
        self._require_construction()
        if not self._running:
            raise ResetNeeded(
                f"{type(self).__name__}: no episode is running; call reset() first, and again "
                "after a step that returned terminated or truncated."
            )

    async def _clean_up(self) -> None:
        """Run `cleanup` if the last episode still needs it, and close its box."""
        needed, self._needs_cleanup = self._needs_cleanup, False
        try:
            if needed:
                await self._hook("cleanup")
        except Exception as error:
            known = isinstance(error, InfrastructureError) or of_the_policy(error)
            if self._boxes.broke is None and not known:
                raise
            logger.warning("%s.cleanup failed", type(self).__name__, exc_info=True)
        finally:
            if self._boxes.any_open:
                await self._boxes.close()

    async def _abort(self) -> None:
        """Clean up behind an exception, which matters more than one in `cleanup`."""
        self._running = False
        try:
            await self._clean_up()
        except UserCodeError:
            logger.warning("%s.cleanup failed too", type(self).__name__, exc_info=True)
