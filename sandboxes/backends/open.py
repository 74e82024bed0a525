"""Opening a sandbox by the name of its backend.

A backend is a subclass of `Sandbox` whose constructor takes a `SandboxSpec`: one of those below, of
an installed package (`gymnast/lookup.py`), or "module:Class". `docs/extending.md` shows one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from gymnast.errors import GymnastError, SandboxUnavailable, UsageError, UserCodeError
from gymnast.lookup import Names
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.visible import visible_logger

Opens = Callable[[SandboxSpec], Sandbox]

log = visible_logger("gymnast.sandboxes")


def open_sandbox(
    backend: str = "auto", *, spec: SandboxSpec | None = None, **limits: Any
) -> Sandbox:
    """Open a box.

    Args:
        backend: "docker", "landlock", "bubblewrap", "local" (no isolation); or "auto": the
            strongest of these that works here, in this order, which is logged and is never "local".
            Landlock without namespaces comes last, as its boxes show which files the host has. A
            backend of an installed package, or of your own, is named as `gymnast/lookup.py` says.
        spec: The image and the limits.
        **limits: Or some of them, by the names of `SandboxSpec`.

    Raises:
        SandboxUnavailable: The backend does not work here, or none does; it says why.
        UsageError: There is no such backend or limit, or a limit breaks its rule.
        UserCodeError: The constructor of a backend that is not built in raised, or its module did.
    """
    if spec is not None and limits:
        raise UsageError(f"spec and {', '.join(limits)} were given; name the limits in one place")
    spec = spec or SandboxSpec.from_limits(limits)
    return _open(backend, spec)


def backends() -> tuple[str, ...]:
    """The short names of all backends, whether or not they work here."""
    return tuple(name for name in BACKENDS.known() if name != AUTO)


def check_backend(name: str) -> str:
    """Check the name of a backend, and return it with an absolute path if it names a file.

    Raises:
        UsageError: There is no such backend.
        UserCodeError: Its module raised while it was imported.
    """
    return BACKENDS.check(name)


def isolates(name: str) -> bool:
    """Whether a backend isolates, as far as is known: "local" and its subclasses do not.

    Raises:
        UsageError: There is no such backend.
        UserCodeError: Its module raised while it was imported.
    """
    from gymnast.sandboxes.host.local import LocalSandbox

    backend = BACKENDS.find(name)
    return not (isinstance(backend, type) and issubclass(backend, LocalSandbox))


def _open(backend: str, spec: SandboxSpec) -> Sandbox:
    opens = BACKENDS.find(backend)
    try:
        return opens(spec)
    except GymnastError:
        raise
    except Exception as error:
        if backend in _BUILTIN:
            raise
        problem = f"{type(error).__name__}: {error}"
        raise UserCodeError("__init__", None, f"sandbox backend {backend!r}: {problem}") from error


def _open_strongest(spec: SandboxSpec) -> Sandbox:
    reasons: dict[str, None] = {}
    for name, needs_namespaces in _STRONGEST_FIRST:
        try:
            if needs_namespaces:
                _check_namespaces()
            sandbox = _open(name, spec)
        except SandboxUnavailable as error:
            reasons[f"{name}: {error}"] = None
        else:
            _say_once(name)
            return sandbox
    raise SandboxUnavailable(
        "no backend that isolates works here. "
        + "; ".join(reasons)
        + '. Code that is trusted can run without isolation: backend "local"'
    )


@cache
def _say_once(name: str) -> None:
    log.info("sandbox backend %s, the strongest that works here", name)


def _check_namespaces() -> None:
    from gymnast.sandboxes.host.landlock import check_works

    check_works(namespaces=True)


AUTO = "auto"
_BUILTIN: dict[str, str | Opens] = {
    AUTO: _open_strongest,
    "docker": "gymnast.sandboxes.docker.sandbox:DockerSandbox",
    "landlock": "gymnast.sandboxes.host.landlock:LandlockSandbox",
    "bubblewrap": "gymnast.sandboxes.host.bubblewrap:BubblewrapSandbox",
    "local": "gymnast.sandboxes.host.local:LocalSandbox",
}
_STRONGEST_FIRST = (  # those that isolate, and whether the host must allow namespaces
    ("docker", False),
    ("landlock", True),
    ("bubblewrap", False),
    ("landlock", False),
)
BACKENDS: Names[Opens] = Names(
    "sandbox backend",
    "gymnast.sandboxes",
    _BUILTIN,
    base=Sandbox,
    wanted="subclass of gymnast.sandboxes.Sandbox",
    error=UsageError,
)
