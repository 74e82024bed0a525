"""The box of an episode: which one an environment asks for, and what happens when it breaks.

Left out: how boxes are made (`gymnast.sandboxes`), and when an episode takes and closes its own
(`toolset.py`).
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from gymnast.errors import ConfigError, SandboxDead, UsageError
from gymnast.hints import did_you_mean
from gymnast.sandboxes.background import in_background
from gymnast.sandboxes.base import Sandbox
from gymnast.sandboxes.forwarding import ForwardingSandbox
from gymnast.sandboxes.open import backends
from gymnast.sandboxes.pool import MAX_BOXES, WARM, SandboxPool, shared_pool
from gymnast.sandboxes.spec import ExecResult, SandboxSpec, check_whole

T = TypeVar("T")

REPLACED = "[the box broke; a new one is used from here on: files and variables are gone]\n"
_OF_POOL = ("warm", "max_boxes")  # fields of the setting that are none of the spec


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
    names = ("auto", *backends())
    if backend not in names:
        raise ConfigError(
            f"{owner}: sandbox.backend must be one of {', '.join(names)}, got {backend!r:.100}."
        )
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
    """The box that an episode sees, whichever real one is behind it.

    Code that the policy runs can break its box. That is no fault of the infrastructure, and must
    not cost the policy's other members of the group their comparison. So: while tools run, a box
    that breaks during `exec` or `python` is replaced by a fresh one at the next call, and the
    result says so. A box that is found broken between two calls, or that breaks in a file call,
    was broken from outside: `SandboxDead`, an infrastructure error. So it is, too, at the call
    after one of a hook's that broke it.

    Attributes:
        replaced: How many boxes the episode's own code has broken.

    Args:
        settings: Where boxes come from.
        prepare: Called with every box that is put behind it, before anything else runs there.
    """

    def __init__(self, settings: BoxSettings, prepare: Callable[[Sandbox], object]) -> None:
        self.replaced = 0
        self._settings = settings
        self._prepare = prepare
        self._box: Sandbox | None = None
        self._closed = False
        self._tools_run = False
        self._changing = threading.Lock()
        self._replacing = threading.RLock()

    @contextmanager
    def tools_run(self) -> Iterator[None]:
        """Inside, what runs is the policy's doing."""
        self._tools_run = True
        try:
            yield
        finally:
            self._tools_run = False

    async def fill(self) -> None:
        """Take the first box.

        Raises:
            SandboxError: There is none to be had.
        """
        box = await self._settings.pool().atake()
        await in_background(lambda: self._put(box))

    @property
    def alive(self) -> bool:
        """See `Sandbox.alive`."""
        return not self._closed and (self._box is None or self._box.alive)

    def close(self) -> None:
        """See `Sandbox.close`."""
        with self._changing:
            self._closed = True
            box, self._box = self._box, None
        if box is not None:
            box.close()

    def _run(self, call: Callable[[Sandbox], ExecResult]) -> ExecResult:
        policys = self._tools_run
        box = self._behind()
        result = call(box)
        if not policys or (result.verdict != "dead" and box.alive):
            return result
        with self._changing:
            ours = self._box is box  # else it was closed meanwhile, or replaced by another call
            if ours:
                self._box = None
                self.replaced += 1
        if ours:
            box.close()
        return dataclasses.replace(result, stderr=result.stderr + REPLACED)

    def _behind(self) -> Sandbox:
        """The box behind; a fresh one where the last was broken."""
        box = self._box
        if box is not None:
            return box
        with self._replacing:  # of calls at the same time one takes a box, and all use it
            box = self._box
            if box is None:
                if self._closed:
                    raise SandboxDead("the episode's box was closed: the episode is over")
                box = self._put(self._settings.pool().take())
            return box

    def _put(self, box: Sandbox) -> Sandbox:
        try:
            self._prepare(box)
        except BaseException:
            box.close()
            raise
        with self._changing:
            if not self._closed:
                self._box = box
                return box
        box.close()
        raise SandboxDead("the episode's box was closed: the episode is over")
