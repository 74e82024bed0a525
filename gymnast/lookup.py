"""Importing what a user names: a module, or a Python file by its path."""

import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from gymnast.errors import GymnastError, UnknownEnvironment, UserCodeError
from gymnast.hints import nearest_file


def import_source(source: str) -> ModuleType:
    """Import a module by its name, or by its path if that ends with ".py".

    Raises:
        UnknownEnvironment: There is none.
        UserCodeError: It raised while it was imported.
    """
    return _module_of_file(Path(source)) if source.endswith(".py") else _module(source)


def _module(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:  # as `python -m` does; a console script starts without it
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_error(name, error) from error
        raise UnknownEnvironment(
            f"there is no module {name!r} to import (looked in {folder} and the installed "
            "packages). For a file, write its path: 'path/to/file.py:Class'."
        ) from error
    except GymnastError:  # a tool without a docstring, say: it tells what to do
        raise
    except Exception as error:
        raise _import_error(name, error) from error


def _module_of_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        near = nearest_file(path)
        hint = f" Did you mean {near}?" if near else ""
        raise UnknownEnvironment(f"there is no file {path}.{hint}")
    name = f"gymnast_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:  # executed once, however often it is named
        return sys.modules[name]
    if str(path.parent) not in sys.path:  # as `python file.py` does, for the modules beside it
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, GymnastError) or not isinstance(error, Exception):
            raise
        raise _import_error(str(path), error) from error
    return module


def _import_error(name: str, error: Exception) -> UserCodeError:
    problem = f"importing {name} raised {type(error).__name__}: {error}"
    return UserCodeError("import", None, problem)
