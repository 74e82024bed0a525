"""The open boxes of an environment: the one of the current episode, and further ones beside it.

`settings.py` says where boxes come from, and `box.py` who is to blame when one breaks.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gymnast.envs.boxes.box import EpisodeBox
from gymnast.envs.boxes.settings import BoxSettings
from gymnast.errors import SandboxBroken, SandboxDead, UserCodeError
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import SandboxSpec


@dataclass(eq=False)
class _Further:
    """A further box: its number among those held at once, and the box once it is open."""

    number: int
    box: Sandbox | None = None


class EpisodeBoxes:
    """The open boxes of one environment.

    Args:
        owner: The environment's class, for messages.
        settings: Where boxes come from; None if the class declares no `sandbox_spec`.
    """

    def __init__(self, owner: str, settings: BoxSettings | None) -> None:
        self._owner = owner
        self._settings = self._of_class = settings
        self._box: EpisodeBox | None = None
        self._further: list[_Further] = []

    @property
    def wanted(self) -> bool:
        """Whether each episode has a box."""
        return self._settings is not None

    @property
    def any_open(self) -> bool:
        """Whether any box is open."""
        return self._box is not None or bool(self._further)

    @property
    def has_box(self) -> bool:
        """Whether the episode's box is open."""
        return self._box is not None

    @property
    def broke(self) -> SandboxBroken | SandboxDead | None:
        """How the episode's box broke, which says who broke it; None while it works."""
        return None if self._box is None else self._box.broke

    def choose(self, spec: SandboxSpec | None) -> None:
        """Say what the boxes of the next episode are like; None: as for every episode."""
        settings = self._of_class
        self._settings = settings if settings is None or spec is None else settings.with_spec(spec)

    def settings(self, hook: str, row: Any) -> BoxSettings:
        """Where the boxes of this episode come from.

        Args:
            hook: The attribute of the environment that needs a box.
            row: The episode's row, or None.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
        """
        if self._settings is None:
            raise UserCodeError(
                hook,
                row,
                f"{self._owner} uses self.{hook}, but asks for no box. Declare on the class: "
                "sandbox_spec = SandboxSpec() (from gymnast.sandboxes import SandboxSpec).",
            )
        return self._settings

    def box(self, row: Any) -> Sandbox:
        """The episode's box.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
            SandboxDead: No episode is running.
        """
        self.settings("sandbox", row)
        if self._box is None:
            raise SandboxDead(f"{self._owner} has no box: no episode is running")
        return self._box

    async def take(self, prepare: Callable[[Sandbox], object]) -> None:
        """Open the episode's box, if it has one.

        Args:
            prepare: Called with the box before anything else runs there.

        Raises:
            SandboxError: No box could be opened.
        """
        if self._settings is not None:
            self._box = EpisodeBox(self._settings, prepare)
            await self._box.fill()

    async def open_further(self, row: Any) -> Sandbox:
        """Open a box beside the episode's; see `Environment.open_box`."""
        settings = self.settings("open_box", row)
        # An episode holds boxes while it waits for the next one. So its first, second, ... box
        # comes from the first, second, ... pool: episodes never wait in a circle.
        held = [one.number for one in self._further if one.box is None or one.box.alive]
        further = _Further(1 + max(held, default=0))
        self._further.append(further)
        try:
            box = await settings.take(f"further box {further.number}")
        except BaseException:
            self._further = [one for one in self._further if one is not further]
            raise
        if further not in self._further:
            await box.aclose()
            raise SandboxDead("a box was opened while the episode ended")
        further.box = box
        return box

    def policy_acts(self) -> None:
        """From now on the policy is responsible for what happens in the episode's box."""
        if self._box is not None:
            self._box.policy_acts()

    async def close(self) -> None:
        """Close all boxes."""
        boxes: list[Sandbox] = [one.box for one in self._further if one.box is not None]
        if self._box is not None:
            boxes.append(self._box)
        self._box, self._further = None, []
        await asyncio.gather(*(box.aclose() for box in boxes))
