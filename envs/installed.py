"""What is installed: each environment that has a name and each adapter, with where it comes from.

A package whose environment cannot be loaded is listed with its error; it is in nobody's way.
"""

import inspect
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import NamedTuple

import gymnast
from gymnast.envs.environment.environment import Environment
from gymnast.envs.registry import ENVIRONMENTS, SCHEMES, find, registered
from gymnast.errors import first_line


class Listed(NamedTuple):
    """An environment or an adapter.

    Attributes:
        name: An id, or what an adapter takes: "gymnasium:ID".
        text: What it is, or why it does not work.
        origins: Where it comes from: distributions with their versions, and its file.
    """

    name: str
    text: str
    origins: tuple[str, ...]


def environments() -> list[Listed]:
    """The environments that have names: the built-in ones, then those of installed packages."""
    return [_environment(name) for name in registered()]


def adapters() -> list[Listed]:
    """The adapters, and whether the package of each is installed."""
    return [_adapter(target.partition(":")[0]) for target in SCHEMES.values()]


def _environment(name: str) -> Listed:
    points = ENVIRONMENTS.registrations(name)
    try:
        cls = find(name)
    except Exception as error:  # whatever another package does, the others are listed
        text = f"does not work: {first_line(error)}"
        return Listed(name, text, tuple(_distribution(point) for point in points))
    text = (cls.__doc__ or "").strip().split("\n")[0] or "(its class has no docstring)"
    if not ENVIRONMENTS.is_builtin(name):
        return Listed(name, text, tuple(f"{_distribution(p)}: {_file(cls)}" for p in points))
    hidden = [f"{_distribution(point)} registers this id too, in vain" for point in points]
    return Listed(name, text, (f"gymnast {gymnast.__version__}: {_file(cls)}", *hidden))


def _adapter(module_name: str) -> Listed:
    module = import_module(module_name)
    name, _, text = (module.__doc__ or "").partition("\n")[0].partition(": ")
    package = module.PACKAGE
    needed = "needs no further package" if package is None else package.state()
    return Listed(name.strip("`"), text, (needed,))


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "?"


def _file(cls: type[Environment]) -> str:
    try:
        return inspect.getsourcefile(cls) or cls.__module__
    except (OSError, TypeError):  # made at run time, say
        return cls.__module__
