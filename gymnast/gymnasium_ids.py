"""Gymnast's ids in Gymnasium's registry: `gymnasium.make` knows them after `import gymnast`.

`import gymnast` does not import Gymnasium, which would take longer than all the rest: the ids are
registered when Gymnasium is imported, or at once if it already is.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ENVIRONMENTS = {
    "gymnast/Arithmetic-v0": "gymnast.envs.builtin.arithmetic:Arithmetic",
    "gymnast/Code-v0": "gymnast.envs.builtin.code.environment:Code",
    "gymnast/Container-v0": "gymnast.envs.builtin.container:Container",
    "gymnast/Harbor-v0": "gymnast.envs.builtin.harbor.environment:Harbor",
    "gymnast/Program-v0": "gymnast.envs.programs.environment:Program",
    "gymnast/HarborProgram-v0": "gymnast.envs.builtin.harbor.program:HarborProgram",
    "gymnast/Python-v0": "gymnast.envs.builtin.python:Python",
    "gymnast/SQL-v0": "gymnast.envs.builtin.sql.environment:SQL",
    "gymnast/Search-v0": "gymnast.envs.builtin.search.environment:Search",
    "gymnast/Shell-v0": "gymnast.envs.builtin.shell:Shell",
}
_REGISTRATION = "gymnasium.envs.registration"


def register_ids() -> None:
    """Register the environments, now or when Gymnasium is imported."""
    module = sys.modules.get(_REGISTRATION)
    if module is not None:
        _register(module)
    else:
        sys.meta_path.insert(0, _WhenImported())


def _register(registration: Any) -> None:
    for id, entry_point in ENVIRONMENTS.items():
        if id not in registration.registry:
            registration.register(id=id, entry_point=entry_point, disable_env_checker=True)


class _WhenImported:
    """Stands first among Python's finders until Gymnasium's registry is imported."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as the other finders do, and register the ids once it is executed."""
        if fullname != _REGISTRATION or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            self._register_after(spec.loader)
        return spec

    def _register_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _register(module)

        loader.exec_module = exec_module
