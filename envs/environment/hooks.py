"""The hooks: what a subclass of `Environment` overrides. Each may be `async def` as well.

Sync hooks and sync tools of an environment run on one thread of its own, so a database connection
that `setup` opens can be used in all of them; async ones run on the caller's event loop. An
exception in a hook stops the run with a `UserCodeError` that carries the row, unless it was the
policy's doing: what `turn_reward`, `reward`, `metrics` and `cleanup` meet in a box that the policy
broke, or as a missing file of it, scores 0 (docs/sandboxes.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.environment.rows import pick_row
from gymnast.envs.records.episode import Episode, Turn
from gymnast.envs.tools.definition import Tool
from gymnast.sandboxes.contract.base import Sandbox


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
    _class_tools: ClassVar[Mapping[str, Tool]] = {}

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
        raise NotImplementedError  # `Environment` runs it

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
