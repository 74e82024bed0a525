"""Calls that wait until a module is imported, so that `import gymnast` need not import it."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, call: Callable[[Any], object]) -> None:
    """Call a function with a module: now if it is imported, else as soon as it is.

    Args:
        name: The module's full name.
        call: Takes the module, which is complete by then.
    """
    module = sys.modules.get(name)
    if module is not None:
        call(module)
    else:
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder:
    """Stands first among Python's finders until its module is imported."""

    def __init__(self, name: str, call: Callable[[Any], object]) -> None:
        self._name = name
        self._call = call
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as the other finders do, and call once it is executed."""
        if fullname != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            self._call_after(spec.loader)
        return spec

    def _call_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._call(module)

        loader.exec_module = exec_module
