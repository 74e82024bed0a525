"""Where untrusted code runs: the contract of a sandbox, its backends, and pools of boxes.

`docs/sandboxes.md` says how environments use boxes, `docs/isolation.md` which attacks each backend
stops. To read the code, begin with `contract/base.py` (the contract) and `contract/spec.py` (the
limits); then the docstring of a backend in `docker/` or `host/`, which says what it protects from.
`pool/pool.py` keeps boxes ready, `backends/sweep.py` removes what killed runs leave, and `guest/`
runs in the box.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gymnast.sandboxes.backends.open import open_sandbox
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.process import Process
from gymnast.sandboxes.contract.spec import ExecResult, SandboxSpec

if TYPE_CHECKING:
    from gymnast.sandboxes.docker.sandbox import DockerSandbox
    from gymnast.sandboxes.host.bubblewrap import BubblewrapSandbox
    from gymnast.sandboxes.host.landlock import LandlockSandbox
    from gymnast.sandboxes.host.local import LocalSandbox
    from gymnast.sandboxes.pool.pool import SandboxPool

__all__ = [
    "BubblewrapSandbox",
    "DockerSandbox",
    "ExecResult",
    "LandlockSandbox",
    "LocalSandbox",
    "Process",
    "Sandbox",
    "SandboxPool",
    "SandboxSpec",
    "open_sandbox",
]

# Imported when first used: the Docker SDK takes a while, and not everyone has an engine.
_LAZY = {
    "BubblewrapSandbox": "host.bubblewrap",
    "DockerSandbox": "docker.sandbox",
    "LandlockSandbox": "host.landlock",
    "LocalSandbox": "host.local",
    "SandboxPool": "pool.pool",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'gymnast.sandboxes' has no attribute {name!r}")
    return getattr(import_module(f"gymnast.sandboxes.{_LAZY[name]}"), name)
