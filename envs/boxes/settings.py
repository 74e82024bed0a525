"""Where an environment's boxes come from: the setting `sandbox`, read and checked."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from gymnast.errors import ConfigError, UsageError
from gymnast.lookup import did_you_mean
from gymnast.sandboxes.backends.open import check_backend, open_sandbox
from gymnast.sandboxes.backends.sweep import sweep_in_background
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import SandboxSpec, check_whole
from gymnast.sandboxes.pool.pool import MAX_BOXES, WARM, SandboxPool, shared_pool
from gymnast.threads import in_background

_OF_POOL = ("warm", "max_boxes")  # fields of the setting that are the pool's, not the spec's


@dataclasses.dataclass(frozen=True)
class BoxSettings:
    """Where an environment's boxes come from.

    Attributes:
        backend: As for `open_sandbox`.
        spec: The image and the limits.
        warm: How many boxes are kept ahead at most.
        max_boxes: How many boxes may live at once in this process.
        pooled: Whether boxes are kept ready. Those of a spec that a row has chosen are not: the
            next row chooses another.
    """

    backend: str
    spec: SandboxSpec
    warm: int = WARM
    max_boxes: int = MAX_BOXES
    pooled: bool = True

    def __post_init__(self) -> None:
        check_whole("warm", self.warm, 1)
        check_whole("max_boxes", self.max_boxes, 1)

    def pool(self, purpose: str = "") -> SandboxPool:
        """This process's pool of such boxes for a purpose; see `shared_pool`."""
        return shared_pool(
            self.backend,
            self.spec,
            purpose=purpose,
            warm=self.warm,
            max_boxes=self.max_boxes,
        )

    async def take(self, purpose: str = "") -> Sandbox:
        """Take a fresh box for a purpose.

        Raises:
            SandboxError: None is available.
        """
        if self.pooled:
            return await self.pool(purpose).atake()
        sweep_in_background(containers=self.backend in ("auto", "docker"))
        return await in_background(partial(open_sandbox, self.backend, spec=self.spec))

    def with_spec(self, spec: SandboxSpec) -> "BoxSettings":
        """The same for boxes of another spec."""
        if spec == self.spec and spec.env == self.spec.env:
            return self
        return dataclasses.replace(self, spec=spec, pooled=False)


def box_settings(
    owner: str, spec: SandboxSpec | None, given: str | Mapping[str, Any] | None
) -> BoxSettings | None:
    """Read the setting `sandbox` of an environment.

    Args:
        owner: The environment's class, for messages.
        spec: The spec that the class declares; None: it uses no box.
        given: A backend, or `{"backend": ..., "warm": ..., "max_boxes": ..., **fields of the
            spec}`; None: "auto".

    Returns:
        Where boxes come from, or None if the class uses none.

    Raises:
        ConfigError: It names an unknown backend or field, or a value that breaks its rule.
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
