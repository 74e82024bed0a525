"""The parts of an algorithm by name: decorated functions, and others as `gymnast/lookup.py` says.

A `Registry` holds one kind of part: advantage estimators, losses or aggregations. The keyword-only
arguments of a decorated function are its options, which a config may set; their annotations say
which values they take.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from gymnast.lookup import Names
from gymnast.trainers.base.options import options_of

R = TypeVar("R")


@dataclass(frozen=True)
class Part(Generic[R]):
    """A function that a config can name.

    Attributes:
        function: As it was written.
        call: The same with the arguments that all parts of its kind take.
    """

    function: Callable[..., Any]
    call: Callable[..., R]

    def __call__(self, *arguments: Any, **options: Any) -> R:
        """The result of `call`."""
        return self.call(*arguments, **options)

    @property
    def options(self) -> dict[str, tuple[Any, Any]]:
        """Its keyword-only arguments: (annotation, default) each, `...` for a missing default."""
        return options_of(self.function)

    def says(self, mark: str) -> bool:
        """Whether the function carries a mark, such as `compares_members`."""
        return bool(self.mark(mark))

    def mark(self, name: str) -> Any:
        """The value of one of the function's marks; None where it has no such mark."""
        return mark_of(self, name)

    def bind(self, options: Mapping[str, Any]) -> "Part[R]":
        """The same part with those of the options bound that it takes."""
        taken = {name: value for name, value in options.items() if name in self.options}
        return replace(self, call=partial(self.call, **taken))


class Registry(dict[str, Part[R]]):
    """Parts of one kind: those that decorators have added, by name, and a way to find others.

    Args:
        kind: What they are called in a config.
        group: The entry-point group by which packages register further ones.
    """

    def __init__(self, kind: str, group: str) -> None:
        super().__init__()
        self.kind = kind
        self._names: Names[Callable[..., Any]] = Names(kind, group, self)
        self._by_function: dict[Callable[..., Any], Part[R]] = {}

    def add(self, function: Callable[..., Any], call: Callable[..., R]) -> None:
        """Register a function by its name, unless another module has registered that name.

        "module:function" still finds it.
        """
        part = self._by_function[function] = Part(function, call)
        known = self.setdefault(function.__name__, part)
        if known.function.__module__ == function.__module__:
            self[function.__name__] = part

    def find(self, given: str | Callable[..., Any]) -> Part[R]:
        """Return the part of a name; a part or a function is returned as a part.

        Raises:
            ConfigError: There is none of this name.
            UserCodeError: Importing its module raised.
        """
        function = self._names.find(given, f"algorithm.{self.kind}")
        return function if isinstance(function, Part) else self._part(function)

    def known(self) -> list[str]:
        """The short names, those of installed packages included."""
        return self._names.known()

    def knows(self, name: str) -> bool:
        """Whether there is a part of this short name."""
        return self._names.knows(name)

    def _part(self, function: Callable[..., Any]) -> Part[R]:
        """A function as a part: the one its decorator made, if it has one."""
        return self._by_function.get(function, Part(function, function))


def name_of(function: Callable[..., Any]) -> str:
    """The name of a part, or of a function, for errors."""
    given = function.function if isinstance(function, Part) else function
    return getattr(given, "__name__", None) or repr(given)


def mark_of(function: Callable[..., Any], name: str) -> Any:
    """The value of a mark that a decorator left on a function, or on that of a part; else None."""
    given = function.function if isinstance(function, Part) else function
    return getattr(given, name, None)
