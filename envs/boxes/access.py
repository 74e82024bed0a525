"""The boxes of an environment's episodes: what its class says of them, and finds on `self`."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gymnast.envs.boxes.episode_boxes import EpisodeBoxes
from gymnast.envs.boxes.fresh_box import run_grader
from gymnast.envs.boxes.settings import BoxSettings
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import ExecResult, SandboxSpec


class BoxAccess:
    """An environment, as its boxes know it: a class without a `sandbox_spec` has none."""

    sandbox_spec: ClassVar[SandboxSpec | None] = None
    _episode_runner: Any

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of the current episode."""
        row: Mapping[str, Any] = self._episode_runner.state.row
        return row

    @property
    def _boxes(self) -> EpisodeBoxes:
        boxes: EpisodeBoxes = self._episode_runner.boxes
        return boxes

    def sandbox_spec_for(self, row: Mapping[str, Any], spec: SandboxSpec) -> Any:
        """Choose the image and the limits of one episode's box, where rows differ in them.

        Called before `prepare_sandbox`, if the class has a `sandbox_spec`. A class whose rows name
        an image:

            def sandbox_spec_for(self, row, spec):
                return dataclasses.replace(spec, image=row["image"])

        Boxes of another spec than `spec` are opened when an episode asks for them; none is kept
        ready.

        Args:
            row: The episode's row; also `self.row`.
            spec: That of the class, with what the setting `sandbox` changes.

        Returns:
            A `SandboxSpec`.
        """
        return spec

    def prepare_sandbox(self, sandbox: Sandbox) -> None:
        """Prepare a fresh box for an episode. Not `async def`.

        Called before `setup` if the class has a `sandbox_spec`, on any thread.

        Args:
            sandbox: The box. `self.row` is the episode's row.
        """

    @property
    def sandbox(self) -> Sandbox:
        """The episode's box: fresh in each episode, open from before `setup` to after `cleanup`.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
            SandboxDead: No episode is running.
        """
        return self._boxes.box(self.row or None)

    @property
    def box_settings(self) -> BoxSettings:
        """Where this environment's boxes come from: the backend, the image and the limits.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
        """
        return self._boxes.settings("box_settings", self.row or None)

    async def open_box(self) -> Sandbox:
        """Open another box beside the episode's, in an async hook or tool.

        It has the same image and limits and is empty: `prepare_sandbox` is not called for it. It is
        closed when the episode ends, or earlier with `async with await self.open_box() as box`.

        Run what the policy wrote in `self.sandbox`, not here: when this box breaks, that counts as
        an accident (`SandboxDead`), and the episode is tried again.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
            SandboxError: No box could be opened.
        """
        return await self._boxes.open_further(self.row or None)

    @property
    def max_boxes(self) -> int | None:
        """How many episodes of this process may have a box at once; None if they use no box."""
        return self.box_settings.max_boxes if self._boxes.wanted else None

    async def run_grader(
        self,
        command: str | Sequence[str],
        *,
        files: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> ExecResult | None:
        """Run a program on the files the policy left in its working folder, in an async `reward`.

        The program runs in a fresh box. The files of the folder are copied there and nothing else
        of the policy's: no process, no variable, no file from elsewhere, no link that leads out of
        the folder or to one of `files`. Its home is empty, and Python imports nothing from the
        folder. The policy's code runs there only if the program runs it. The Python session of the
        episode's own box ends, with everything it started.

        Args:
            command: An argument vector, or a string for `/bin/sh -c`.
            files: Files that the program needs, `{path: text}`. The policy never sees them. They
                replace the policy's files at these paths, and Python imports modules from them.
            stdin: The program's standard input.

        Returns:
            How the program ended, or None if the folder cannot be graded, for example because it
            holds more files than can be copied. Either is the policy's responsibility.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
            UsageError: An argument has the wrong type, or one of `files` cannot be written.
            SandboxError: A box broke, or none could be opened.
        """
        return await run_grader(
            self.sandbox,
            self.box_settings,
            command,
            begin=self._episode_runner.hooks._hook("prepare_sandbox"),
            files=files or {},
            stdin=stdin,
        )
