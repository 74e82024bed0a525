"""An episode in messages: how it begins, runs calls, is scored and is cleaned up.

`turn.py` takes its turns. Nothing here knows tokens, which are in `tokens/context.py`.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from gymnast.envs.boxes.access import BoxAccess
from gymnast.envs.boxes.episode_boxes import EpisodeBoxes
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.rows import (
    answered,
    checked_row,
    own_messages,
    prompt_of,
    row_limits,
    with_hint,
    with_system_prompt,
)
from gymnast.envs.environment.solution import Solution
from gymnast.envs.environment.state import EpisodeState
from gymnast.envs.environment.user_code import (
    HookCalls,
    call_hook,
    caused_by_policy,
    checked_messages,
    checked_numbers,
    checked_response,
    checked_reward,
    checked_state,
    checked_sum,
)
from gymnast.envs.environment.worked_turns import with_worked_turns
from gymnast.envs.records.episode import CallRecord, Info, Timings
from gymnast.envs.tools.definition import Tool
from gymnast.envs.tools.episode_tools import EpisodeTools
from gymnast.envs.tools.running import within
from gymnast.errors import InfrastructureError, UserCodeError
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.threads import Overrun
from gymnast.types import Message, StopReason, ToolCall
from gymnast.visible import visible_logger

logger = visible_logger(__name__)


class EpisodeRunner(HookCalls):
    """Runs the episodes of one environment, one after another.

    Attributes:
        state: Of the current or the last episode; empty before the first.
        boxes: The open boxes.
        tools: The tools of the episodes.
        running: Whether a turn may be taken.
        agent: Says messages for hooks that ask the agent who plays; None: nobody does.
        stand_in: Says them where nobody does, for `check_env`.
        follows_branches: Whether who plays follows a program into further contexts where `reset`
            is not told, for `check_env`.

    Args:
        hooks: The environment, whose hooks and tools are called.
        tools: The tools of its class, by name.
        stop_tools: Names of the tools that end an episode.
        boxes: The environment's boxes.
        encode: Tokenizes a text, to measure results.
    """

    def __init__(
        self,
        hooks: Hooks,
        tools: Mapping[str, Tool],
        stop_tools: Iterable[str],
        boxes: EpisodeBoxes,
        encode: Callable[[str], Sized],
    ) -> None:
        super().__init__(hooks)
        self.boxes = boxes
        self.running = False
        self.agent: Callable[..., Awaitable[Mapping[str, Any]]] | None = None
        self.stand_in: Callable[..., Awaitable[Mapping[str, Any]]] | None = None
        self.tools = EpisodeTools(
            hooks,
            tools,
            stop_tools,
            chosen=not self.is_default("tools_for"),
            own_call_tool=self._own_call_tool,
            thread=self._thread,
        )
        self.follows_branches = False
        self._encode = encode
        self._needs_cleanup = False
        self.forget()

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no agent, which belongs to the event loop that plays the original."""
        return vars(self) | {"agent": None}

    # ---- an episode, from begin to end ----

    def forget(self) -> None:
        """Forget the last episode."""
        self.state = EpisodeState({}, self.tools.of_class)

    async def sample_row(self, rng: np.random.Generator) -> Any:
        """Choose the row of an episode that is given none.

        Raises:
            UserCodeError: `sample_row` raised.
            DataError: There are no rows.
        """
        return await self.hook("sample_row", rng)

    async def begin(self, row: Any, worked: Sequence[Message] = ()) -> list[Message]:
        """Begin an episode: open its box, set it up, find its tools.

        Args:
            row: The episode's.
            worked: Worked turns, which the prompt shows first.

        Returns:
            The messages of its prompt; none where it comes with a program's first request.

        Raises:
            DataError: The row lacks what the environment needs.
            UserCodeError: A hook raised.
            InfrastructureError: What the episode runs on broke.
        """
        row = checked_row(row, self._owner)
        hooks, limits = self.hooks, row_limits(row)
        timeout_s = limits.get("episode_timeout_s", hooks.episode_timeout_s)
        state = self.state = EpisodeState(
            row,
            self.tools.at_first(row),
            limits,
            None if timeout_s is None else time.monotonic() + timeout_s,
            abandoned_before=self._thread.abandoned,
        )
        if self.boxes.wanted:
            with state.timings.measure("sandbox"):
                self.boxes.choose(await self._chosen_spec(row))
                await self.boxes.take(self._prepare)
        self._needs_cleanup = True
        with state.timings.measure("setup"):
            messages = await self.hook("setup", row)
            if self.tools.chosen:
                state.tools = self.tools.choose(await self.hook("tools_for", row), row)
        if self.has_requests:
            state.program_runs = True
            return []
        if messages is not None:
            messages = checked_messages(messages, self.blame("setup"))
            if problem := answered(messages):
                raise self.blame("setup").error(f"returned a prompt that {problem}")
        else:
            messages = prompt_of(row)
        state.own_messages = own_messages(messages)
        messages = with_system_prompt(messages, hooks.system_prompt)
        state.prompt = with_worked_turns(messages, worked)
        return state.prompt

    async def _chosen_spec(self, row: Any) -> SandboxSpec | None:
        """The spec of this episode's box; None where the class does not choose."""
        if type(self.hooks).sandbox_spec_for is BoxAccess.sandbox_spec_for:
            return None
        self.boxes.choose(None)
        spec = self.boxes.settings("sandbox_spec_for", row).spec
        choose, blame = self.hooks.sandbox_spec_for, self.blame("sandbox_spec_for")
        chosen = await call_hook(choose, row, spec, thread=self._thread, blame=blame)
        if not isinstance(chosen, SandboxSpec):
            raise blame.error(f"returned {chosen!r:.200}; it must return a SandboxSpec")
        return chosen

    def limit(self, name: str) -> Any:
        """A limit of this episode: that of its row, or else the environment's."""
        return self.state.limits.get(name, getattr(self.hooks, name))

    async def hinted(self) -> Sequence[list[Message]] | None:
        """Versions of the prompt as a teacher sees it (`with_hint`), none without a hint; or None.

        None stands for an environment that has no hints.

        Raises:
            UserCodeError: The hook raised, or returned something else.
        """
        if self.is_default("hint"):
            return None
        given = await self.hook("hint", self.state.row)
        if given is None:
            return ()
        hint = checked_messages(given, self.blame("hint"))
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

    async def run_calls(self, calls: Sequence[ToolCall]) -> list[CallRecord]:
        """Run the calls of a message, and measure each tool.

        Raises:
            InfrastructureError: Something that a tool runs on broke.
            UserCodeError: A tool used a box, but its class declares none.
        """
        state = self.state
        records = await self.tools.runner(state.tools, state.deadline, self._encode).run(calls)
        for record in records:
            if record.call.name in state.tools:
                state.timings.add(f"tool/{record.call.name}", record.seconds)
        return records

    async def respond(self, message: Message) -> list[Message] | None:
        """What the environment says to a message without calls; None where that ends the episode.

        Raises:
            Overrun: The episode's time was up before it had said anything.
            PromptTooLong: It asked the agent with more than the agent's context holds.
            UserCodeError: The hook raised, or returned something else.
            ToolDefinitionError: What it offers cannot be tools.
        """
        if self.is_default("respond"):
            return None
        left_s = self.state.time_left_s
        if left_s is not None and left_s <= 0:
            raise Overrun
        with self.state.timings.measure("respond"):
            said = await within(self.hook("respond", message), left_s)
        if said is None:
            return None
        messages, tools = checked_response(said, self.blame("respond"))
        if tools is not None:
            before, self.state.tools = self.hooks.tools, self.tools.changed(tools)
            if self.hooks.tools != before:
                messages[-1]["tools"] = self.hooks.tools
        return messages

    def _own_call_tool(self) -> Callable[..., Any] | None:
        """The environment's own `call_tool`; None where it has none."""
        return None if self.is_default("call_tool") else self.hooks._hook("call_tool")

    async def next_state(self) -> Info:
        """What info says about the state that the next turn acts in.

        Raises:
            UserCodeError: `turn_state` raised, or returned what cannot be hashed.
        """
        if self.is_default("turn_state"):
            return {}
        with self.state.timings.measure("state"):
            returned = await self.scoring_hook("turn_state", None)
        return {"state": checked_state(returned, self.blame("turn_state"))}

    async def end(self, reward: float) -> tuple[float, Info]:
        """Score the episode and clean up.

        Args:
            reward: Of the last turn.

        Returns:
            The same with the episode's, and further info.

        Raises:
            UserCodeError: A hook raised.
        """
        state = self.state
        extra: Info = {}
        with state.settling(self.boxes):
            with state.timings.measure("cleanup"):
                await self.stop_program()
            scored, extra = await self._score()
            what = "the rewards of the last turn and of the episode"
            reward = checked_sum([reward, scored], self.blame("reward"), what)
        if state.failure is not None:
            reward, extra = 0.0, {"failure": f"{type(state.failure).__name__}: {state.failure}"}
            state.stop_reason = StopReason.error
        elif state.broke_box:  # the rewards of its turns are taken back
            reward, extra = min(0.0, -state.paid), {}
        given_up = self._thread.abandoned - state.abandoned_before
        counts = state.counts(abandoned=given_up, boxed=self.boxes.has_box)
        extra["metrics"] = counts | extra.get("metrics", {})
        if state.unreceived:
            extra["unreceived"] = sorted(state.unreceived)
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
            returned = await self.scoring_hook("reward", 0.0, episode)
            metrics = await self.scoring_hook("metrics", {}, episode)
        metrics = checked_numbers(metrics, self.blame("metrics"))
        reward, extra = checked_reward(returned, self.blame("reward"))
        return reward, {**extra, "metrics": metrics | extra.get("metrics", {})}

    def solution(self) -> Solution:
        """What `solve` says in the episode that has begun."""
        hooks, blame = self.hooks, self.blame("solve")
        return Solution(hooks.solve, self.state, self._thread, blame, hooks.solve_timeout_s)

    # ---- where a program has the loop (`requests.py`) ----

    @property
    def has_requests(self) -> bool:
        """Whether episodes are the requests of a program, rather than calls and responses."""
        return not self.is_default("next_request")

    async def stop_program(self) -> None:
        """End the episode's program, if it has one that has not ended.

        Raises:
            UserCodeError: The hook raised.
        """
        runs, self.state.program_runs = self.state.program_runs, False
        if runs:
            await self.hook("stop_program")

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
                try:
                    await self.stop_program()
                finally:
                    await self.hook("cleanup")
        except Exception as error:
            known = isinstance(error, InfrastructureError) or caused_by_policy(error)
            if self.boxes.broke is None and not known:
                raise
            logger.warning("%s.cleanup failed", self._owner, exc_info=True)
        finally:
            self.agent = None
            if self.boxes.any_open:
                await self.boxes.close()

    async def abort(self) -> None:
        """Clean up after an exception, which matters more than one in `cleanup`."""
        self.running = False
        try:
            await self.clean_up()
        except UserCodeError:
            logger.warning("%s.cleanup failed too", self._owner, exc_info=True)
