"""The hooks: what a subclass of `Environment` overrides, and what it finds on `self`.

Each hook may be `async def` as well, but for `prepare_sandbox`.

Sync hooks and sync tools of an environment run on one thread of its own, so a database connection
that `setup` opens can be used in all of them; async ones run on the caller's event loop. An
exception in a hook stops the run with a `UserCodeError` that carries the row, unless it was the
policy's doing: what `turn_reward`, `reward`, `metrics` and `cleanup` meet in a box that the policy
broke, or as a missing file of it, scores 0 (docs/sandboxes.md).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gymnast.envs.boxes.box import BoxSettings
from gymnast.envs.boxes.fresh_box import run_grader
from gymnast.envs.environment.rows import pick_row
from gymnast.envs.records.episode import Episode, Turn
from gymnast.envs.tools.definition import Tool
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import ExecResult, SandboxSpec
from gymnast.types import Message

if TYPE_CHECKING:
    from gymnast.envs.environment.episode_runner import EpisodeRunner


class Hooks:
    """The defaults: the row's prompt begins the episode, and nothing is rewarded.

    A small complete example, with state that belongs to one episode:

        class Counter(Environment):
            def setup(self, row):
                self.count = row["start"]

            @tool
            def increment(self) -> int:
                \"\"\"Add one to the counter.\"\"\"
                self.count += 1
                return self.count

            def reward(self, episode):
                return float(self.count == self.row["goal"])
    """

    rows: Sequence[Mapping[str, Any]] | None
    max_turns: int
    episode_timeout_s: float | None
    system_prompt: str | None
    sandbox_spec: ClassVar[SandboxSpec | None] = None
    _class_tools: ClassVar[Mapping[str, Tool]] = {}
    _episode_runner: "EpisodeRunner"

    def prepare_sandbox(self, sandbox: Sandbox) -> None:
        """Put into a fresh box what an episode finds there. Not `async def`.

        Called before `setup`, where the class has a `sandbox_spec`. It runs on any thread.

        Args:
            sandbox: The box; `self.row` is the episode's row.
        """

    def setup(self, row: Mapping[str, Any]) -> Any:
        """Prepare an episode.

        Args:
            row: The row it begins with; also `self.row`.

        Returns:
            The messages the episode begins with, or None for the row's `prompt`.
        """
        return None

    def tools_for(self, row: Mapping[str, Any]) -> Any:
        """The tools of an episode, where they are not the same in each. Called after `setup`.

        By default, the methods that `@tool` marks. A class that offers one more for some rows:

            class Safe(Environment):
                def tools_for(self, row):
                    tools = list(super().tools_for(row))
                    return tools if row["locked"] else [*tools, self.take]

                @tool
                def knock(self) -> str:
                    \"\"\"Knock at the door of the safe.\"\"\"
                    return "It sounds hollow."

                def take(self, what: str) -> str:
                    \"\"\"Take something out of the safe.\"\"\"
                    return f"You have the {what}."

        Args:
            row: The row the episode begins with; also `self.row`.

        Returns:
            A list of functions and methods (marked with `@tool` or not), of descriptions with JSON
            schemas (`{"name": ..., "description": ..., "parameters": {...}}`, as a server lists
            them), and of what `super().tools_for(row)` returns. A tool that is only described is
            run by `call_tool`, which must then be overridden. `row["tools"]` and the setting
            `stop_tools` may name tools of this list.
        """
        return list(self._class_tools.values())

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run one call of a tool; by default, call the function or method of that name.

        Override it to run calls somewhere else, or to do something around each:

            class Remote(Environment):
                async def setup(self, row):
                    self.server = await connect(row["url"])

                async def tools_for(self, row):
                    return await self.server.list_tools()

                async def call_tool(self, name, arguments):
                    return await self.server.call_tool(name, arguments)

                async def cleanup(self):
                    await self.server.close()

        Only calls of offered tools whose arguments fit come here. Time limits hold from outside,
        and so does the cutting of long results. `await super().call_tool(name, arguments)` runs a
        sync tool on the episode's thread and an async one on the event loop.

        Args:
            name: The tool, as the policy wrote it.
            arguments: Validated and coerced.

        Returns:
            The result: a string, or what JSON can hold.

        Raises:
            Exception: What the policy is told, as of a tool that raises it.
        """
        return await self._episode_runner.call_tool(name, arguments)

    def reward(self, episode: Episode) -> Any:
        """Score a finished episode.

        Returns:
            A finite number, or named ones (`{"format": 0.2, "answer": 0.8}`) whose sum is the
            reward; these are in `info["reward_parts"]` too. Or None, where nothing can be said
            of the episode: it is never trained on, and `info["no_reward"]` is True.
        """
        return 0.0

    def turn_reward(self, turn: Turn) -> Any:
        """Score one turn, after its tools have run; a finite number."""
        return 0.0

    def metrics(self, episode: Episode) -> Any:
        """More numbers about a finished episode, by name, to be averaged and logged."""
        return {}

    def cleanup(self) -> Any:
        """Undo `setup`: called once after every episode, whatever happened in it."""
        return None

    def sample_row(self, rng: np.random.Generator) -> Any:
        """A row for a `reset` that is given none: one of `rows`.

        Raises:
            DataError: There are no rows.
        """
        return pick_row(self.rows, rng, type(self).__name__)

    # ---- what hooks and tools find on `self`: the current episode ----

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of the current episode."""
        return self._episode_runner.state.row

    @property
    def episode(self) -> Episode:
        """The episode so far."""
        return self._episode_runner.state.episode

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, in OpenAI's shape and JSON-serialisable."""
        return self.episode.messages

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The schemas of the tools offered in this episode, in OpenAI's shape.

        Before the first one, and in `setup` of a class with `tools_for`: the tools of the class.
        """
        return [tool.schema for tool in self._episode_runner.state.tools.values()]

    @property
    def tool_definitions(self) -> Mapping[str, Tool]:
        """The same tools with their options and parameters, by name."""
        return dict(self._episode_runner.state.tools)

    def end_episode(self) -> None:
        """End the episode after this turn, with `StopReason.environment`.

        To be called from a tool or from `turn_reward`: when a game is over, say.
        """
        self._episode_runner.state.ended = True

    # ---- and its boxes ----

    @property
    def sandbox(self) -> Sandbox:
        """The episode's box, from before `setup` until after `cleanup`; a fresh one each episode.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
            SandboxDead: No episode is running.
        """
        return self._episode_runner.boxes.box(self.row or None)

    @property
    def box_settings(self) -> BoxSettings:
        """Where the boxes of this environment come from: the backend, the image and the limits.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
        """
        return self._episode_runner.boxes.settings("box_settings", self.row or None)

    async def open_box(self) -> Sandbox:
        """Open a further box beside the episode's; for async hooks and tools.

        It is of the same image and limits, and empty: `prepare_sandbox` is not called with it. It
        is closed with the episode, or earlier by `async with await self.open_box() as box`.

        What the policy wrote belongs into `self.sandbox`, which tells who broke it. When this box
        breaks, that is taken for an accident (`SandboxDead`), and the episode is tried again.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
            SandboxError: There is none to be had.
        """
        return await self._episode_runner.boxes.open_further(self.row or None)

    @property
    def max_boxes(self) -> int | None:
        """How many episodes of this process may have a box at once; None: they have none."""
        return self.box_settings.max_boxes if self._episode_runner.boxes.wanted else None

    async def run_grader(
        self,
        command: str | Sequence[str],
        *,
        files: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> ExecResult | None:
        """Run a program on what the policy has left in its working folder; for an async `reward`.

        The program runs in a fresh box, to which the files of the folder are carried and nothing
        else of the policy's: no process, no variable, no file elsewhere, no link that leads out of
        the folder or to one of `files`. Its home is empty, and Python imports nothing from the
        folder. Only where it runs the policy's files itself can they answer for it. The Python
        session of the episode's own box ends, and with it what it has started.

        Args:
            command: An argument vector, or a text for `/bin/sh -c`.
            files: What the program needs, by path; the policy never sees it. A file of the
                policy's at such a path is replaced. Python imports modules from these files.
            stdin: What the program reads.

        Returns:
            How it ended; None where the policy left something that cannot be graded, such as more
            files than can be carried. Both are the policy's doing.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
            UsageError: An argument is of another type, or one of `files` cannot be written.
            SandboxError: A box broke, or there is none to be had.
        """
        return await run_grader(
            self.sandbox,
            self.box_settings,
            command,
            begin=self.prepare_sandbox,
            files=files or {},
            stdin=stdin,
        )
