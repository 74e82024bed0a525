"""Opening a sandbox by the name of its backend."""

from collections.abc import Callable
from typing import Any

from gymnast.errors import SandboxUnavailable, UsageError
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.visible import visible_logger

log = visible_logger("gymnast.sandboxes")


def open_sandbox(
    backend: str = "auto", *, spec: SandboxSpec | None = None, **limits: Any
) -> Sandbox:
    """Open a box.

    Args:
        backend: "docker", "landlock", "bubblewrap", "local" (no isolation), or "auto": the
            strongest that works here, in this order, which is logged and never is "local". Landlock
            without namespaces comes last, as its boxes show which files the host has.
        spec: The image and the limits.
        **limits: Or some of them, by the names of `SandboxSpec`.

    Raises:
        SandboxUnavailable: The backend does not work here, or none does; it says why.
        UsageError: There is no such backend or limit, or a limit breaks its rule.
    """
    if spec is not None and limits:
        raise UsageError(f"spec and {', '.join(limits)} were given; name the limits in one place")
    spec = spec or SandboxSpec.from_limits(limits)
    if backend == "auto":
        return _open_strongest(spec)
    if backend not in _BACKENDS:
        names = ", ".join(["auto", *_BACKENDS])
        raise UsageError(f"there is no sandbox backend {backend!r}; there are {names}")
    return _BACKENDS[backend](spec)


def backends() -> tuple[str, ...]:
    """The names of all backends, whether or not they work here."""
    return tuple(_BACKENDS)


def _open_strongest(spec: SandboxSpec) -> Sandbox:
    reasons: dict[str, None] = {}
    for name, opens in _STRONGEST_FIRST:
        try:
            sandbox = opens(spec)
        except SandboxUnavailable as error:
            reasons[f"{name}: {error}"] = None
        else:
            log.info("sandbox backend %s, the strongest that works here", name)
            return sandbox
    raise SandboxUnavailable(
        "no backend that isolates works here. "
        + "; ".join(reasons)
        + '. Code that is trusted can run without isolation: backend "local"'
    )


def _docker(spec: SandboxSpec) -> Sandbox:
    from gymnast.sandboxes.docker.sandbox import DockerSandbox

    return DockerSandbox(spec)


def _landlock(spec: SandboxSpec) -> Sandbox:
    from gymnast.sandboxes.host.landlock import LandlockSandbox

    return LandlockSandbox(spec)


def _landlock_with_namespaces(spec: SandboxSpec) -> Sandbox:
    from gymnast.sandboxes.host.landlock import check_works

    check_works(namespaces=True)
    return _landlock(spec)


def _bubblewrap(spec: SandboxSpec) -> Sandbox:
    from gymnast.sandboxes.host.bubblewrap import BubblewrapSandbox

    return BubblewrapSandbox(spec)


def _local(spec: SandboxSpec) -> Sandbox:
    from gymnast.sandboxes.host.local import LocalSandbox

    return LocalSandbox(spec)


_BACKENDS: dict[str, Callable[[SandboxSpec], Sandbox]] = {
    "docker": _docker,
    "landlock": _landlock,
    "bubblewrap": _bubblewrap,
    "local": _local,
}
_STRONGEST_FIRST = (  # those that isolate
    ("docker", _docker),
    ("landlock", _landlock_with_namespaces),
    ("bubblewrap", _bubblewrap),
    ("landlock", _landlock),
)
