"""The box of an episode, who is to blame when it breaks, and what the policy is told of a result.

`episode_boxes.py` opens and closes it.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from gymnast.envs.boxes.settings import BoxSettings
from gymnast.errors import SandboxBroken, SandboxDead
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.forwarding import ForwardingSandbox
from gymnast.sandboxes.contract.spec import ExecResult
from gymnast.threads import in_background
from gymnast.visible import visible_logger

T = TypeVar("T")

_ENDINGS = {
    "timeout": "[out of time, killed]",
    "oom": "[out of memory, killed]",
    "output_limit": "[too much output]",
}

# In the metrics of an episode with a box: 1 if the policy broke it, which makes the reward 0.
BROKEN = "sandbox/broken"
_BROKEN = "the box broke, and the episode is over"

log = visible_logger(__name__)


class EpisodeBox(ForwardingSandbox):
    """The box that an episode sees, which decides who is to blame when it breaks.

    A policy must not be able to choose to be sampled again. Code that runs in a box can break it,
    at once or some time later, during a call or between two. So:

    - Until the policy acts, a box that breaks is a failure of the infrastructure: `SandboxDead`.
      The episode ends with `StopReason.error` and is tried again. Before the policy's first call
      the box is pinged once more.
    - From then on a box that breaks, in any call and for any hook, was broken by the policy:
      `SandboxBroken`. The episode ends with reward 0, is counted, and is never tried again.
    - The exception is `Sandbox.engine_lost`, which nothing in a box can bring about: the engine was
      stopped or restarted. Boxes without an engine give no such evidence, so a box that was killed
      from outside counts as broken by the policy. A reward that is wrong once in a while is noise;
      a reward that the policy can avoid would teach it to.

    A box is never replaced during an episode: a fresh one would undo what the policy did, and
    reset whatever an environment counts in it.

    Attributes:
        broke: Why no call can be made any more, and by its type who is to blame; None while the box
            works. It is set even if the call that broke the box raised nothing.

    Args:
        settings: Where boxes come from.
        prepare: Called with the box before anything else runs there.
        purpose: Of the pool that it is taken from. Who holds a box while another one is waited for
            takes them from two pools, or they wait in a circle.
    """

    def __init__(
        self,
        settings: BoxSettings,
        prepare: Callable[[Sandbox], object],
        purpose: str = "",
    ) -> None:
        self.broke: SandboxBroken | SandboxDead | None = None
        self._settings, self._purpose = settings, purpose
        self._prepare = prepare
        self._box: Sandbox | None = None
        self._closed = False
        self._acting = self._was_well = False
        self._changing = threading.Lock()
        self._asking = threading.Lock()

    def policy_acts(self) -> None:
        """Blame the policy from now on if the box breaks. May be called again."""
        self._acting = True

    async def fill(self) -> None:
        """Take the box.

        Raises:
            SandboxError: None is available.
        """
        box = await self._settings.take(self._purpose)
        await in_background(lambda: self._put(box))

    @property
    def alive(self) -> bool:
        """See `Sandbox.alive`."""
        return not self._closed and self.broke is None and (self._box is None or self._box.alive)

    def close(self) -> None:
        """See `Sandbox.close`."""
        with self._changing:
            self._closed = True
            box, self._box = self._box, None
        if box is not None:
            box.close()

    def forward(self, call: Callable[[Sandbox], T]) -> T:
        """Make a call, and decide who is to blame if the box breaks."""
        box = self.target()
        if self._acting:
            self._require_sign_of_life(box)
        try:
            result = call(box)
        except SandboxDead as error:
            raise self._blamed(box, str(error)) from None
        if not box.alive:
            self._blamed(box, "it broke during a call")
        return result

    def target(self) -> Sandbox:
        """See `ForwardingSandbox.target`."""
        box = self._box
        self._require_unbroken()
        if box is None:
            raise SandboxDead("the episode's box was closed: the episode is over")
        return box

    def _require_unbroken(self) -> None:
        if self.broke is not None:
            raise type(self.broke)(str(self.broke))

    def _require_sign_of_life(self, box: Sandbox) -> None:
        """Ping the box once, before the policy's first call, so as not to blame it for others."""
        with self._asking:
            if not self._was_well and not box.ping():
                with self._changing:
                    self.broke = self.broke or SandboxDead("the box broke before the policy acted")
            self._was_well = True
        self._require_unbroken()

    def _blamed(self, box: Sandbox, why: str) -> SandboxBroken | SandboxDead:
        """Decide, once, who is to blame that the box broke."""
        lost = self._acting and box.engine_lost()
        with self._changing:
            if self._closed:  # while the call was under way
                return SandboxDead("the episode's box was closed: the episode is over")
            if self.broke is None:
                by_policy = self._acting and not lost
                self.broke = SandboxBroken(_BROKEN) if by_policy else SandboxDead(why)
                log.info("%s: %s", "the policy broke its box" if by_policy else "a box broke", why)
            return self.broke

    def _put(self, box: Sandbox) -> None:
        try:
            self._prepare(box)
        except BaseException:
            box.close()
            raise
        with self._changing:
            if not self._closed:
                self._box = box
                return
        box.close()
        raise SandboxDead("the episode's box was closed: the episode is over")


def in_words(result: ExecResult, *, command: bool = False) -> str:
    """A result as the policy is told it, in few tokens.

    Args:
        result: What a command or a piece of Python did.
        command: Whether it was a command, whose exit code is told; Python code has a traceback.

    Returns:
        What was printed, then the errors, then how it ended if that was no success.
    """
    ending = _ENDINGS.get(result.verdict, "")
    if result.verdict == "timeout" and "time limit" in result.stderr:
        ending = ""  # the Python session has reported it
    if command and result.verdict == "nonzero":
        ending = f"[exit code {result.exit_code}]"
    parts = (result.stdout, result.stderr, ending)
    text = "\n".join(part.rstrip("\n") for part in parts if part.strip("\n"))
    return text or "[no output]"
