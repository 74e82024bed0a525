"""Where untrusted code runs: the contract, one file a backend, and the worker inside the box.

`docs/sandboxes.md` says how environments use boxes, `docs/isolation.md` which attacks each backend
stops. To read the code: `contract/base.py` (the contract), `contract/spec.py` (the limits), then
the docstring of a backend, which says what it protects from and what not; `pool/pool.py` (boxes
kept ready), `backends/sweep.py` (what killed runs leave). `guest/` runs in the box.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gymnast.sandboxes.backends.open import open_sandbox
from gymnast.sandboxes.contract.base import Sandbox
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
