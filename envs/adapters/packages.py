"""The packages of adapters, which are imported when an environment of theirs is named."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import NamedTuple

from gymnast.errors import ConfigError, first_line


class Package(NamedTuple):
    """The package that an adapter needs; its module's `PACKAGE`, which `gymnast envs` shows.

    An adapter that needs none has None there.

    Attributes:
        name: Its distribution's: "reasoning-gym".
        install: What pip installs: "gymnast-rl[reasoning-gym]".
    """

    name: str
    install: str

    def state(self) -> str:
        """Whether it is installed, in a sentence. It is not imported."""
        try:
            return f"{self.name} {version(self.name)} is installed"
        except PackageNotFoundError:
            return f"{self.name} is not installed: pip install '{self.install}'"


def import_package(module: str, needed_by: str, install: str) -> ModuleType:
    """Import a package that is not among the dependencies.

    Args:
        module: Its module.
        needed_by: The name of the environment, for the error.
        install: What pip installs: "gymnast-rl[reasoning-gym]".

    Raises:
        ConfigError: It is not installed, or lacks a package itself.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{needed_by} needs the package {module}, which cannot be imported "
            f"({first_line(error)}). Run: pip install '{install}'"
        ) from error
