"""The box of an episode: which one an environment asks for, and whose doing it is when it breaks.

Left out: how boxes are made (`gymnast.sandboxes`), and when an episode takes and closes its own
(`environment/episode_runner.py`).
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gymnast.errors import ConfigError, SandboxBroken, SandboxDead, UsageError
from gymnast.lookup import did_you_mean
from gymnast.sandboxes.backends.open import check_backend
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.forwarding import ForwardingSandbox
from gymnast.sandboxes.contract.spec import ExecResult, SandboxSpec, check_whole
from gymnast.sandboxes.pool.pool import MAX_BOXES, WARM, SandboxPool, shared_pool
from gymnast.threads import in_background
from gymnast.visible import visible_logger

T = TypeVar("T")

_ENDINGS = {
    "timeout": "[out of time, killed]",
    "oom": "[out of memory, killed]",
    "output_limit": "[too much output]",
}

# In the metrics of an episode with a box: 1 where the policy broke it, which is reward 0.
BROKEN = "sandbox/broken"
_BROKEN = "the box broke, and the episode is over"
_OF_POOL = ("warm", "max_boxes")  # fields of the setting that are none of the spec

log = visible_logger(__name__)


@dataclasses.dataclass(frozen=True)
class BoxSettings:
    """Where an environment's boxes come from.

    Attributes:
        backend: A name that `open_sandbox` knows.
        spec: The image and the limits.
        warm: How many boxes are kept ahead at most.
        max_boxes: How many may live at once in this process.
    """

    backend: str
    spec: SandboxSpec
    warm: int = WARM
    max_boxes: int = MAX_BOXES

    def __post_init__(self) -> None:
        check_whole("warm", self.warm, 1)
        check_whole("max_boxes", self.max_boxes, 1)

    def pool(self, purpose: str = "") -> SandboxPool:
        """The pool of this process for such boxes of a purpose; see `shared_pool`."""
        return shared_pool(
            self.backend,
            self.spec,
            purpose=purpose,
            warm=self.warm,
            max_boxes=self.max_boxes,
        )


def box_settings(
    owner: str, spec: SandboxSpec | None, given: str | Mapping[str, Any] | None
) -> BoxSettings | None:
    """Read the setting `sandbox` of an environment.

    Args:
        owner: The environment's class, for messages.
        spec: What the class declares; None: it uses no box.
        given: A backend, or `{"backend": ..., "warm": ..., "max_boxes": ..., **fields of the
            spec}`; None: "auto".

    Returns:
        Where boxes come from, or None where the class uses none.

    Raises:
        ConfigError: It names no backend, no field of a spec, or a value that breaks its rule.
    """
    if spec is None:
        if given is not None:
            raise ConfigError(
                f"{owner}: sandbox is {given!r:.100}, but {owner} uses no box. Remove the setting, "
                "or declare sandbox_spec = SandboxSpec(...) on the class."
            )
        return None
    if given is None or isinstance(given, str):
        given = {"backend": "auto" if given is None else given}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{owner}: sandbox must be a backend's name or a mapping such as {{backend: docker, "
            f"image: ...}}, got {given!r:.100}."
        )
    fields = dict(given)
    backend = fields.pop("backend", "auto")
    if not isinstance(backend, str):
        raise ConfigError(
            f"{owner}: sandbox.backend must be the name of a backend, got {backend!r:.100}."
        )
    try:
        backend = check_backend(backend)
    except UsageError as error:
        raise ConfigError(f"{owner}: sandbox.backend: {error}") from error
    of_pool = {name: fields.pop(name) for name in _OF_POOL if name in fields}
    known = [*_OF_POOL, *(field.name for field in dataclasses.fields(SandboxSpec))]
    for name in fields:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(
                f"{owner}: sandbox has no field {name!r}.{hint} It has: backend, "
                f"{', '.join(known)}."
            )
    try:
        return BoxSettings(backend, dataclasses.replace(spec, **fields), **of_pool)
    except UsageError as error:
        raise ConfigError(f"{owner}: sandbox: {error}") from error
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"{owner}: sandbox: {error}, got {fields!r:.200}") from error


class EpisodeBox(ForwardingSandbox):
    """The box that an episode sees, and who is to blame when it breaks.

    A policy must not be able to choose to be sampled again. Whoever may run code in a box can
    break it, at once or some time later, amid a call or between two. So:

    - Until the policy acts, a box that breaks is infrastructure: `SandboxDead`. The episode ends
      with `StopReason.error` and is tried again. The box is asked for a sign of life once more
      before the first call after that moment.
    - From then on a box that breaks, in whatever call and for whatever hook, was broken by the
      policy: `SandboxBroken`. The episode ends with reward 0, is counted, and is never tried again.
    - Unless `Sandbox.engine_lost`: what nothing in a box can bring about, as an engine that was
      stopped or started again. Where boxes have no engine there is no such evidence, and a box
      that was killed from outside counts as the policy's: a reward that is wrong once in a while
      is noise, one that can be avoided is a lesson.

    A box is never replaced amid an episode: a fresh one would undo what the policy did, and give
    back whatever an environment counts in it.

    Attributes:
        broke: Why no call can be made any more, and thereby whose doing it was; None while it
            works. Also set where the call that broke it raised nothing.

    Args:
        settings: Where boxes come from.
        prepare: Called with the box before anything else runs there.
    """

    def __init__(self, settings: BoxSettings, prepare: Callable[[Sandbox], object]) -> None:
        self.broke: SandboxBroken | SandboxDead | None = None
        self._settings = settings
        self._prepare = prepare
        self._box: Sandbox | None = None
        self._closed = False
        self._acting = self._was_well = False
        self._changing = threading.Lock()
        self._asking = threading.Lock()

    def policy_acts(self) -> None:
        """From now on, what happens in the box is the policy's doing. May be called again."""
        self._acting = True

    async def fill(self) -> None:
        """Take the box.

        Raises:
            SandboxError: There is none to be had.
        """
        box = await self._settings.pool().atake()
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
        """Once, before the policy's first call: what has broken by now was not its doing."""
        with self._asking:
            if not self._was_well and not box.ping():
                with self._changing:
                    self.broke = self.broke or SandboxDead("the box broke before the policy acted")
            self._was_well = True
        self._require_unbroken()

    def _blamed(self, box: Sandbox, why: str) -> SandboxBroken | SandboxDead:
        """Decide, once, whose doing it was that the box broke."""
        lost = self._acting and box.engine_lost()
        with self._changing:
            if self._closed:  # while the call was under way
                return SandboxDead("the episode's box was closed: the episode is over")
            if self.broke is None:
                policys = self._acting and not lost
                self.broke = SandboxBroken(_BROKEN) if policys else SandboxDead(why)
                log.info("%s: %s", "the policy broke its box" if policys else "a box broke", why)
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
