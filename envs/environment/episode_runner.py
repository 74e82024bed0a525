"""The message level of an environment: episodes begin, take turns, are scored and cleaned up.

An assistant message goes in; tools run; the environment's messages and the reward come out. Nothing
here knows tokens, which `environment.py` adds.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import ResetNeeded

from gymnast.envs.environment.episode_boxes import EpisodeBoxes
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.rows import (
    checked_row,
    episode_tools,
    offered_tools,
    own_messages,
    prompt_of,
    with_hint,
    with_system_prompt,
)
from gymnast.envs.environment.solution import Solution
from gymnast.envs.environment.state import EpisodeState
from gymnast.envs.environment.user_code import (
    HookCalls,
    caused_by_policy,
    checked_messages,
    checked_number,
    checked_numbers,
    checked_reward,
    checked_state,
    checked_text_rewards,
)
from gymnast.envs.environment.worked_turns import with_worked_turns
from gymnast.envs.records.episode import Info, Timings, Turn
from gymnast.envs.records.messages import json_message, parse_tool_calls
from gymnast.envs.tools import bugs
from gymnast.envs.tools.definition import Tool, with_stop_tools
from gymnast.envs.tools.running import CallRunner, answer, call_user_code
from gymnast.errors import InfrastructureError, ToolDefinitionError, UserCodeError
from gymnast.types import Message, StopReason
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

Ending = tuple[float, bool, bool, Info]


class TurnTaken(NamedTuple):
    """A turn whose tools have run, before it is known whether it is the last.

    Attributes:
        turn: The message, its calls and their results.
        reward: The value of `turn_reward`, and what `text_rewards` pays.
        holding: The reasons to end the episode, other than token limits.
        text_rewards: What is paid where in `turn.raw`.
    """

    turn: Turn
    reward: float
    holding: set[StopReason]
    text_rewards: Sequence[tuple[int, float]] = ()


class EpisodeRunner(HookCalls):
    """Runs the episodes of one environment, one after another.

    Attributes:
        state: Of the current or the last episode; empty before the first.
        boxes: The open boxes.
        running: Whether a turn may be taken.

    Args:
        hooks: The environment, whose hooks and tools are called.
        tools: The tools of its class, by name.
        stop_tools: Names of the tools that end an episode.
        boxes: The environment's boxes.
    """

    def __init__(
        self,
        hooks: Hooks,
        tools: Mapping[str, Tool],
        stop_tools: Iterable[str],
        boxes: EpisodeBoxes,
    ) -> None:
        super().__init__(hooks)
        self.boxes = boxes
        self.running = False
        self._methods = tools
        self._stop_tools = stop_tools if isinstance(stop_tools, str) else tuple(stop_tools)
        self._own_tools = not self._is_default("tools_for")
        self._tools = tools if self._own_tools else with_stop_tools(tools, self._stop_tools)
        self._needs_cleanup = False
        self.forget()

    # ---- an episode, from begin to end ----

    def forget(self) -> None:
        """Forget the last episode."""
        self.state = EpisodeState({}, self._tools)

    async def sample_row(self, rng: np.random.Generator) -> Any:
        """Choose the row of an episode that is given none.

        Raises:
            UserCodeError: `sample_row` raised.
            DataError: There are no rows.
        """
        return await self._hook("sample_row", rng)

    async def begin(self, row: Any, worked: Sequence[Message] = ()) -> list[Message]:
        """Begin an episode: open its box, set it up, find its tools.

        Args:
            row: The episode's.
            worked: Worked turns, which the prompt shows first.

        Returns:
            The messages of its prompt.

        Raises:
            DataError: The row lacks what the environment needs.
            UserCodeError: A hook raised.
            InfrastructureError: What the episode runs on broke.
        """
        row = checked_row(row, self._owner)
        hooks, timeout_s = self._hooks, self._hooks.episode_timeout_s
        state = self.state = EpisodeState(
            row,
            self._tools if self._own_tools else offered_tools(row, self._tools),
            None if timeout_s is None else time.monotonic() + timeout_s,
            abandoned_before=self._thread.abandoned,
        )
        self._require_methods()
        if self.boxes.wanted:
            with state.timings.measure("sandbox"):
                await self.boxes.take(self._prepare)
        self._needs_cleanup = True
        with state.timings.measure("setup"):
            messages = await self._hook("setup", row)
            if self._own_tools:
                state.tools = await self._tools_for(row)
        if messages is not None:
            messages = checked_messages(messages, self._blame("setup"))
        else:
            messages = prompt_of(row)
        state.own_messages = own_messages(messages)
        messages = with_system_prompt(messages, hooks.system_prompt)
        state.prompt = with_worked_turns(messages, worked)
        return state.prompt

    async def hinted(self) -> Sequence[list[Message]] | None:
        """Versions of the prompt as a teacher sees it (`with_hint`), none without a hint; or None.

        None stands for an environment that has no hints.

        Raises:
            UserCodeError: The hook raised, or returned something else.
        """
        if self._is_default("hint"):
            return None
        given = await self._hook("hint", self.state.row)
        if given is None:
            return ()
        hint = checked_messages(given, self._blame("hint"))
        return with_hint(self.state.prompt, hint, self.state.own_messages)

    def require_episode(self) -> None:
        """Check that a turn may be taken, and start its timings.

        Raises:
            ResetNeeded: No episode is running.
        """
        if not self.running:
            raise ResetNeeded(
                f"{self._owner}: no episode is running; call reset() first, and again "
                "after a step that returned terminated or truncated."
            )
        self.state.timings = Timings()

    async def take_turn(
        self,
        message: Mapping[str, Any],
        encode: Callable[[str], Sized],
        *,
        raw: str | None = None,
        cut: bool = False,
    ) -> TurnTaken:
        """Run a message's calls and score the turn.

        Args:
            message: What the policy wrote.
            encode: Tokenizes a text, to measure its length.
            raw: All that it wrote, markup included; None: the message's text.
            cut: Whether the message reached its maximum length.

        Raises:
            UserCodeError: `turn_reward` or `text_rewards` raised.
        """
        state = self.state
        self.boxes.policy_acts()
        index = len(state.turns)
        calls = parse_tool_calls(message, turn=index)
        turn = Turn(index, json_message(message, calls))
        turn = replace(turn, raw=turn.text if raw is None else raw)
        reward, text_rewards = 0.0, list[tuple[int, float]]()
        with state.settling(self.boxes):
            with state.timings.measure("tools"):
                records = await self._call_runner(encode).run(calls)
            for record in records:
                if record.call.name in state.tools:
                    state.timings.add(f"tool/{record.call.name}", record.seconds)
            turn = replace(turn, calls=tuple(records), results=tuple(map(answer, records)))
            bugs.warn_of_bugs(type(self._hooks), turn.errors, state.row)
            with state.timings.measure("reward"):
                returned = await self._scoring_hook("turn_reward", 0.0, turn)
                paid = await self._scoring_hook("text_rewards", (), turn)
            reward = checked_number(returned, self._blame("turn_reward"))
            text_rewards = checked_text_rewards(paid, turn.raw, self._blame("text_rewards"))
            reward += sum(value for _, value in text_rewards)
        holding = state.holding(turn, cut=cut, max_turns=self._hooks.max_turns)
        # After a failure, or without a complete call in a message that was cut, there is no answer.
        if state.failure is not None or StopReason.max_tokens in holding:
            turn = replace(turn, results=())
        return TurnTaken(turn, reward, holding, text_rewards)

    async def end_turn(self, taken: TurnTaken, reason: StopReason | None) -> Ending:
        """Record a turn and, where it was the last, score and close the episode.

        Args:
            taken: The turn.
            reason: Why it is the last one; None if it is not.

        Returns:
            The reward, whether the episode is terminated, whether it is truncated, and the info.
        """
        state, turn, reward = self.state, taken.turn, taken.reward
        state.turns.append(turn)
        extra: Info = {}
        if reason is None:
            with state.settling(self.boxes):
                extra = await self.next_state()
            reason = state.broken  # while the hook ran
        state.stop_reason = reason
        if reason is not None:
            reward, extra = await self._end_episode(reward)
        if taken.text_rewards and state.broken is None:
            extra["text_rewards"] = list(taken.text_rewards)
        state.paid += reward
        ended = state.stop_reason
        info = {
            "timings": state.timings,
            "tool_calls": turn.tool_calls,
            "errors": turn.errors,
            "stop_reason": ended,
            **extra,
        }
        terminated = ended is not None and ended.terminated
        return reward, terminated, ended is not None and not terminated, info

    async def next_state(self) -> Info:
        """What info says about the state that the next turn acts in.

        Raises:
            UserCodeError: `turn_state` raised, or returned what cannot be hashed.
        """
        if self._is_default("turn_state"):
            return {}
        with self.state.timings.measure("state"):
            returned = await self._scoring_hook("turn_state", None)
        return {"state": checked_state(returned, self._blame("turn_state"))}

    async def _end_episode(self, reward: float) -> tuple[float, Info]:
        """Score the episode and clean up; return the last turn's reward and further info."""
        state = self.state
        extra: Info = {}
        with state.settling(self.boxes):
            scored, extra = await self._score()
            reward += scored
        if state.failure is not None:
            reward, extra = 0.0, {"failure": f"{type(state.failure).__name__}: {state.failure}"}
            state.stop_reason = StopReason.error
        elif state.broke_box:  # the rewards of its turns are taken back
            reward, extra = min(0.0, -state.paid), {}
        given_up = self._thread.abandoned - state.abandoned_before
        counts = state.counts(abandoned=given_up, boxed=self.boxes.has_box)
        extra["metrics"] = counts | extra.get("metrics", {})
        self.running = False
        with state.timings.measure("cleanup"):
            await self.clean_up()
        return reward, extra

    async def _score(self) -> tuple[float, Info]:
        """The episode's reward, its parts and the subclass's metrics."""
        state = self.state
        if state.failure is not None or state.broke_box:
            return 0.0, {}
        episode = state.episode
        with state.timings.measure("reward"):
            returned = await self._scoring_hook("reward", 0.0, episode)
            metrics = await self._scoring_hook("metrics", {}, episode)
        metrics = checked_numbers(metrics, self._blame("metrics"))
        reward, extra = checked_reward(returned, self._blame("reward"))
        return reward, {"metrics": metrics, **extra}

    # ---- tools ----

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run a call by the function or method of its tool."""
        function = self._function(name)
        if function is None:
            raise NotImplementedError(f"tool {name!r} has no function; override call_tool")
        return await call_user_code(self._thread, partial(function, **arguments))

    async def _tools_for(self, row: Mapping[str, Any]) -> dict[str, Tool]:
        """The tools that the hook `tools_for` returns, limited to those that the row names."""
        given = await self._hook("tools_for", row)
        methods = self._methods if self._is_default("call_tool") else None
        return episode_tools(given, row, self._stop_tools, methods, self._owner)

    def _call_runner(self, encode: Callable[[str], Sized]) -> CallRunner:
        state = self.state
        return CallRunner(
            tools=state.tools,
            call_tool=self.call_tool if self._is_default("call_tool") else self._hooks.call_tool,
            thread=self._thread,
            code_of=self._code_of,
            deadline=state.deadline,
            encode=encode,
        )

    def _function(self, name: str) -> Callable[..., Any] | None:
        """The function or method behind a tool; None where it is only described."""
        tool = self.state.tools.get(name)
        if tool is not None and tool.function is not None:
            return tool.function
        return getattr(self._hooks, name) if name in self._methods else None

    def _code_of(self, name: str) -> list[Callable[..., Any]]:
        """The author's functions that run a tool's calls."""
        hook = [] if self._is_default("call_tool") else [self._hooks.call_tool]
        function = self._function(name)
        return hook if function is None else [*hook, function]

    def _require_methods(self) -> None:
        """Check that no attribute of the instance hides a tool, which is looked up by name."""
        hidden = [name for name in self._methods if name in vars(self._hooks)]
        if hidden:
            raise ToolDefinitionError(
                f"{self._owner}: tool {hidden[0]!r} is hidden by the attribute "
                f"self.{hidden[0]}. Rename one of them."
            )

    def solution(self) -> Solution:
        """What `solve` says in the episode that has begun."""
        return Solution(self._hooks.solve, self.state, self._thread, self._blame("solve"))

    # ---- cleaning up ----

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to clean up."""
        return not self._needs_cleanup and not self.boxes.any_open

    def stop_thread(self) -> None:
        """Let the episode's thread end once it is idle; another starts when needed."""
        self._thread.stop()

    async def clean_up(self) -> None:
        """Run `cleanup` if the last episode still needs it, and close its boxes.

        Raises:
            UserCodeError: `cleanup` raised.
        """
        needed, self._needs_cleanup = self._needs_cleanup, False
        try:
            if needed:
                await self._hook("cleanup")
        except Exception as error:
            known = isinstance(error, InfrastructureError) or caused_by_policy(error)
            if self.boxes.broke is None and not known:
                raise
            logger.warning("%s.cleanup failed", self._owner, exc_info=True)
        finally:
            if self.boxes.any_open:
                await self.boxes.close()

    async def abort(self) -> None:
        """Clean up after an exception, which matters more than one in `cleanup`."""
        self.running = False
        try:
            await self.clean_up()
        except UserCodeError:
            logger.warning("%s.cleanup failed too", self._owner, exc_info=True)
