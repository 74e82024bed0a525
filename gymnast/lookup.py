"""Finds what a name means, by one rule for environments, sandboxes, losses, rewards and the rest.

A name is

    docker                    a short one: built in, or registered by an installed package
    my_package.boxes:MyBox    a module and what it defines; the working folder is searched too
    path/to/boxes.py:MyBox    a Python file and what it defines
    gymnasium:FrozenLake-v1   a scheme, whose adapter makes the thing of what follows it

A scheme wins over a module of its name, and `python:gymnasium:MyEnv` names what the module defines.
Packages register short names by entry points, with one group for each kind:

    [project.entry-points."gymnast.sandboxes"]
    firecracker = "my_package.boxes:FirecrackerSandbox"

`docs/extending.md` lists the groups. A built-in name wins over a registered one; a name that two
packages register is refused.
"""

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gymnast.errors import ConfigError, GymnastError, UsageError, UserCodeError, first_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_LISTED = 30  # names in a message
_FILE = re.compile(r"(\w+:)?(.+\.py)(:[^:]*)")  # a scheme, a path, and a name in it
_MODULE = "python:"  # what follows is a module, though a scheme may have its name


class Names(Generic[T]):
    """All things of one kind that can be named.

        SANDBOXES = Names(
            "sandbox backend",
            "gymnast.sandboxes",
            {"docker": "gymnast.sandboxes.docker.sandbox:DockerSandbox"},
            base=Sandbox,
            wanted="subclass of gymnast.sandboxes.Sandbox",
        )
        SANDBOXES.find("docker")  # imports it

    Args:
        kind: What messages call one of them.
        group: The entry-point group by which packages register short names.
        builtin: Maps each built-in short name to the thing itself or to "module:name", which is
            imported when it is used. It may grow later.
        base: The class that they are subclasses of; None: they are callables.
        wanted: What they must be, for messages: "function".
        schemes: Maps each scheme to "module:function", which is imported when it is used; the
            function is given what follows the scheme, and returns the thing.
        error: Raised if a name means nothing.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        builtin: Mapping[str, str | T] | None = None,
        *,
        base: type | None = None,
        wanted: str = "function",
        schemes: Mapping[str, str] | None = None,
        error: type[UsageError] = ConfigError,
    ) -> None:
        self.kind, self.group = kind, group
        self.schemes: Mapping[str, str] = {} if schemes is None else schemes
        self._builtin: Mapping[str, str | T] = {} if builtin is None else builtin
        self._base, self._wanted, self._error = base, wanted, error
        self._loaded: dict[str, T] = {}  # by entry points and adapters

    def find(self, given: str | T, field: str = "") -> T:
        """Return what a name means; anything but a name is checked and returned.

        Args:
            given: A name, or the thing itself.
            field: The field that named it, for errors: "algorithm.loss".

        Raises:
            UsageError: Nothing has this name, it is not of this kind, or the package that
                registers it is broken. The class is this kind's `error`.
            UserCodeError: Importing its module raised.
            GymnastError: Its module raised one itself, because it defines a tool wrongly, say.
        """
        try:
            return self._find(given)
        except _NotFound as error:
            place = f"{field}: " if field else ""
            raise self._error(f"{place}{error}") from error.__cause__

    def known(self) -> list[str]:
        """The short names: the built-in ones, then those of installed packages."""
        registered = (point.name for point in self._entry_points())
        return list(dict.fromkeys([*self._builtin, *sorted(registered)]))

    def knows(self, name: str) -> bool:
        """Whether there is such a short name."""
        return name in self._builtin or bool(self.registrations(name))

    def is_builtin(self, name: str) -> bool:
        """Whether a short name is built in; then it wins over a package's."""
        return name in self._builtin

    def registrations(self, name: str) -> "list[EntryPoint]":
        """The entry points by which installed packages register a short name; none is loaded."""
        return [point for point in self._entry_points() if point.name == name]

    def check(self, name: str, field: str = "") -> str:
        """Check a name that is used later. Nothing built in is imported.

        Returns:
            The name, with an absolute path if it names a file: it then means the same after a
            change of the working folder.

        Raises:
            UsageError: As `find` does, which says what else is raised.
        """
        if name not in self._builtin:
            self.find(name, field)
        scheme, path, defined = file_in(name)
        return f"{scheme}{os.path.abspath(os.path.expanduser(path))}{defined}" if path else name

    def _find(self, given: str | T) -> T:
        if not isinstance(given, str):
            return self._checked(given, repr(given)[:200])
        if given in self._builtin:
            target = self._builtin[given]
            return _builtin(target) if isinstance(target, str) else target
        scheme = self._scheme(given)
        if scheme is None and is_source(given):
            return self._checked(self._attribute(given.removeprefix(_MODULE)), repr(given))
        if given not in self._loaded:
            make = self._of_package if scheme is None else self._adapted
            self._loaded[given] = make(given)  # so that a name means one thing, however often
        return self._loaded[given]

    def _scheme(self, name: str) -> str | None:
        """The scheme that a name begins with; None: with none of this kind."""
        scheme, colon, _ = name.partition(":")
        return scheme if colon and scheme in self.schemes else None

    def _adapted(self, name: str) -> T:
        """What the adapter of a scheme makes of the rest of a name."""
        scheme, _, rest = name.partition(":")
        if not rest:
            raise _NotFound(f"{name!r} names nothing. Write what is meant after the colon.")
        return self._checked(_builtin(self.schemes[scheme])(rest), repr(name))

    def _no_such_scheme(self, source: str) -> str:
        """What to say of a module that is not there, whose name may have been meant as a scheme."""
        if not self.schemes or not source.isidentifier():
            return ""
        listed = ", ".join(f"{name}:" for name in self.schemes)
        return f"{did_you_mean(source, self.schemes)} The schemes are: {listed}."

    def _attribute(self, path: str) -> Any:
        source, _, name = path.rpartition(":") if ":" in path else (path, "", "")
        try:
            module = import_source(source)
        except _NoModule as error:
            raise _NotFound(f"{error}{self._no_such_scheme(source.partition(':')[0])}") from error
        if name and hasattr(module, name):
            return getattr(module, name)
        defined = [key for key, value in vars(module).items() if self._is_own(key, value, module)]
        problem = f"names no {self.kind} in it."
        if name:
            problem = f"has no {name!r}.{did_you_mean(name, defined)}"
        there = f": {_listed(defined)}" if defined else f" no {self._wanted}"
        raise _NotFound(f"{source!r} {problem} It defines{there}.")

    def _is_own(self, key: str, value: Any, module: ModuleType) -> bool:
        """Whether a module, or one below it, defines this, and it is of this kind."""
        home = str(getattr(value, "__module__", ""))
        return (
            not key.startswith("_")
            and f"{home}.".startswith(f"{module.__name__}.")
            and self._is_one(value)
        )

    def _of_package(self, name: str) -> T:
        """Load what an installed package registers under a short name."""
        points = self.registrations(name)
        if not points:
            home, dot, last = name.rpartition(".")
            meant = f" Did you mean '{home}:{last}'?" if home and dot and last else ""
            raise _NotFound(no_such(self.kind, name, self.known()) + meant)
        if len({point.value for point in points}) > 1:
            both = " and ".join(_package(point) for point in points)
            raise _NotFound(
                f"{self.kind} {name!r} is registered by {both}. Uninstall all but one, or name it "
                f"as {points[0].value!r}."
            )
        point = points[0]
        named = f"{self.kind} {name!r} of {_package(point)}"
        try:
            value = point.load()
        except (Exception, SystemExit) as error:
            raise _NotFound(
                f"{named} cannot be loaded: {type(error).__name__}: {first_line(error)}. Update "
                "the package, or uninstall it."
            ) from error
        return self._checked(value, named)

    def _entry_points(self) -> "list[EntryPoint]":
        from importlib.metadata import entry_points  # slow to import, and rarely needed

        return [*entry_points(group=self.group)]

    def _is_one(self, value: Any) -> bool:
        if self._base is None:
            return callable(value)
        return isinstance(value, type) and issubclass(value, self._base)

    def _checked(self, value: Any, named: str) -> T:
        if not self._is_one(value):
            raise _NotFound(f"{named} is {value!r:.200}, which is no {self._wanted}.")
        if missing := sorted(getattr(value, "__abstractmethods__", ())):
            raise _NotFound(f"{named} is abstract. It has to implement {', '.join(missing)}.")
        found: T = value
        return found


def import_source(source: str) -> ModuleType:
    """Import a module by its name, or by its path if that ends with ".py".

    Raises:
        UserCodeError: Importing it raised.
    """
    return _module_of_file(Path(source)) if source.endswith(".py") else _module(source)


def imported(name: str) -> Any:
    """What "module:name" or "path/to/file.py:name" is, whatever its kind.

    Raises:
        ConfigError: There is no such module, file or name in it.
        UserCodeError: Importing it raised.
    """
    try:
        return Names[Any]("object", "")._attribute(name)
    except _NotFound as error:
        raise ConfigError(str(error)) from error.__cause__


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """The message about an unknown short name: the nearest name, and all that there are."""
    names = list(known)
    there_are = f" There are: {_listed(names)}." if names else ""
    return (
        f"there is no {kind} {name!r}.{did_you_mean(name, names)}{there_are} One of your own is "
        "named 'module:name' or 'path/to/file.py:name'."
    )


class _NotFound(Exception):
    """Why a name means nothing; `Names.find` turns it into the error of its kind."""


class _NoModule(_NotFound):
    """There is no such module."""


def is_source(name: str) -> bool:
    """Whether a name is written as "module:name" or a file, rather than as a short name."""
    return ":" in name or name.endswith(".py")


def file_in(name: str) -> tuple[str, str, str]:
    """The scheme, the path and what is defined there of "scheme:path/to/file.py:name".

    The scheme is empty if there is none; all but the last are, if no file is named.
    """
    found = _FILE.fullmatch(name)
    return ("", "", name) if found is None else (found[1] or "", found[2], found[3])


def _listed(names: list[str]) -> str:
    more = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return ", ".join([*names[:_LISTED], *more])


def _package(point: "EntryPoint") -> str:
    name = point.dist.name if point.dist is not None else "?"
    return f"package {name!r} (entry point {f'{point.name} = {point.value}'!r} of {point.group})"


def _builtin(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _module(name: str) -> ModuleType:
    if not name or name.startswith("."):
        raise _NotFound(f"{name!r} is no module's name. Write 'module:name'.")
    folder = os.getcwd()
    if folder not in sys.path:  # as `python -m` does; a console script starts without it
        sys.path.append(folder)
    try:
        if "/" in name:  # finders of some packages raise something else
            raise ModuleNotFoundError(name=name)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_error(name, error) from error
        raise _NoModule(
            f"there is no module {name!r} to import (looked in {folder} and the installed "
            "packages). For a file, write its path: 'path/to/file.py:name'."
        ) from error
    except GymnastError:  # about a tool without a docstring, say: it says what to do
        raise
    except (Exception, SystemExit) as error:
        raise _import_error(name, error) from error


def _module_of_file(path: Path) -> ModuleType:
    try:
        path = path.expanduser().resolve()
    except (ValueError, RuntimeError) as error:  # NUL in it, or the home of an unknown user
        raise _NotFound(f"there is no file {str(path)!r}: {error}.") from error
    if not os.path.isfile(path):
        near = nearest_file(path)
        hint = f" Did you mean {near}?" if near else ""
        raise _NotFound(f"there is no file {path}.{hint}")
    name = f"gymnast_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:  # a file is executed once, however often it is named
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
        if isinstance(error, GymnastError) or not isinstance(error, Exception | SystemExit):
            raise
        raise _import_error(str(path), error) from error
    return module


def _import_error(name: str, error: BaseException) -> UserCodeError:
    return UserCodeError("import", None, f"importing {name} raised {type(error).__name__}: {error}")


# --- Did you mean

# A typo of one or two letters scores higher; words that merely share an ending score lower.
_ALIKE = 0.64
_SHORTEST_BEGINNING = 3


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that is most like an unknown one; None if none is close.

    A typo, another case and the beginning of a known name (`eval` for `evaluation`) are close. Of
    names that are equally close, it is the first in the order of the alphabet.
    """
    given = str(name).lower()
    likeness = {other: _likeness(given, other.lower()) for other in sorted(known)}
    best = max(likeness, key=likeness.__getitem__, default=None)
    return best if best is not None and likeness[best] >= _ALIKE else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """` Did you mean 'steps'?`, to follow a sentence; "" where no known name is close."""
    return f" Did you mean {near!r}?" if (near := nearest(name, known)) is not None else ""


def nearest_file(path: str | Path) -> Path | None:
    """The file or folder beside a missing path whose name is nearest to its name."""
    wanted = Path(path)
    try:
        near = nearest(wanted.name, [entry.name for entry in wanted.expanduser().parent.iterdir()])
    except OSError:
        return None
    return wanted.parent / near if near is not None else None


def _likeness(given: str, known: str) -> float:
    ratio = SequenceMatcher(None, given, known).ratio()
    swapped = (known[:i] + known[i + 1] + known[i] + known[i + 2 :] for i in range(len(known) - 1))
    if given in swapped:  # one slip of the fingers, as a letter too many is
        return max(ratio, 1 - 1 / (len(given) + len(known)))
    begins = len(given) >= _SHORTEST_BEGINNING and known.startswith(given)
    return max(ratio, _ALIKE) if begins else ratio
