"""Container: tools that live inside an image, run by a program in it.

docs/container.md specifies the program; `tool_program.py` talks to it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.boxes.fresh_box import graded
from gymnast.envs.builtin.tool_program import ToolProgram, described
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.rows import pick_row
from gymnast.envs.environment.tokens.spaces import TokenIds
from gymnast.envs.records.episode import Episode, Info
from gymnast.envs.tools.definition import Tool
from gymnast.errors import ConfigError
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.threads import in_background

DEFAULT_PROGRAM = "/gymnast/tools"


class Container(Environment):
    """The tools of an image, offered by a program in it.

    The program describes the tools and runs their calls; it may also prepare an episode from its
    row and score it. It is started for each of these in the episode's box, in the working folder,
    whose files are the only state that lasts between two starts:

        PROGRAM describe              -> {"protocol": 1, "tools": [...]}, and which of these it has:
        PROGRAM call NAME < arguments -> the result, as text; an error where the exit code is not 0
        PROGRAM rows                  -> rows as JSON lines
        PROGRAM setup < beginning     -> nothing, or {"messages": [...]}
        PROGRAM reward < episode      -> 0.5, or {"name": 0.5}

    An image and a YAML file are all that a training run needs:

        environment:
          id: gymnast/Container-v0
          sandbox: {backend: docker, image: "team/tools:1"}

    If the program has no `reward`, each episode's own reward is 0.0, and reward functions of the
    run score it. `reward` runs in a fresh box, to which the working folder is copied and nothing
    else: not /tmp, no process, no variable. So the policy decides which files it finds, and no
    more. If it fails, but would not after an episode in which nothing was done, the reward is 0.0.

    `metrics` gives `grading_failed`: 1 if `reward` failed because of what the policy did.

    Args:
        *arguments: As for `Environment`.
        program: The program: a path in the box, or an argument vector.
        **settings: As for `Environment`. `sandbox` names backend, image and limits; `stop_tools`
            names tools of the image, in addition to those that it marks.

    Raises:
        ConfigError: `program` is empty.
    """

    sandbox_spec: ClassVar[SandboxSpec | None] = SandboxSpec()

    def __init__(
        self,
        *arguments: Any,
        program: str | Sequence[str] = DEFAULT_PROGRAM,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        argv = (program,) if isinstance(program, str) else tuple(program)
        if not argv or not all(isinstance(part, str) and part for part in argv):
            raise ConfigError(
                f"Container: program is {program!r:.200}; it must be a path in the box, or a list "
                "of texts that begins with one."
            )
        self._argv = argv
        self._program: ToolProgram | None = None
        self._seed: int | None = None
        self._messages: Any = None
        self._grading_failed = False

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TokenIds, Info]:
        """See `Environment.areset`. The first one asks the program to describe itself."""
        await in_background(self._ask)
        self._seed = self._messages = None
        return await super().areset(seed=seed, options=options)

    def prepare_sandbox(self, sandbox: Sandbox) -> None:
        """Let the program prepare the episode."""
        self._messages = self._set_up(sandbox)

    def _set_up(self, sandbox: Sandbox) -> Any:
        program = self._known_program
        return program.setup(sandbox, self._beginning()) if program.has_setup else None

    def tools_for(self, row: Mapping[str, Any]) -> list[Tool]:
        """The tools that the program describes."""
        return list(self._known_program.tools.values())

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        """Let the program run the call, in the episode's box."""
        return await self._known_program.acall(self.sandbox, name, arguments)

    def setup(self, row: Mapping[str, Any]) -> Any:
        """The messages of the program's `setup`; without any, the row's prompt."""
        self._grading_failed = False
        return self._messages

    async def reward(self, episode: Episode) -> Any:
        """The reward that the program prints; 0.0 if it has no `reward`."""
        program = self._known_program
        if not program.has_reward:
            return 0.0
        played = {"messages": episode.messages, "answer": episode.answer}
        untouched = {"messages": list(episode.prompt), "answer": ""}
        reason = {"stop_reason": str(episode.stop_reason)}
        reward = await graded(
            self.sandbox,
            self.box_settings,
            lambda place: program.areward(place, self._beginning() | played | reason),
            begin=self._set_up,
            control=lambda place: program.areward(place, self._beginning() | untouched | reason),
        )
        self._grading_failed = reward is None
        return 0.0 if reward is None else reward

    def metrics(self, episode: Episode) -> dict[str, float]:
        """See the class."""
        return {"grading_failed": float(self._grading_failed)}

    async def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else one of the program's."""
        if self.rows is None:
            await in_background(self._ask)
        rows = self._known_program.rows if self.rows is None else self.rows
        return pick_row(rows or None, rng, type(self).__name__)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """See `Environment.tools`. Before the first episode, this starts the program."""
        if self.row:
            return super().tools
        self._ask()
        return [tool.schema for tool in self._known_program.tools.values()]

    def _ask(self) -> None:
        """Ask the program to describe itself, once."""
        if self._program is None:
            self._program = described(self.box_settings, self._argv)

    @property
    def _known_program(self) -> ToolProgram:
        assert self._program is not None  # `areset` has asked it
        return self._program

    def _beginning(self) -> dict[str, Any]:
        if self._seed is None:
            self._seed = int(self.np_random.integers(2**31))
        return {"row": dict(self.row), "seed": self._seed}
