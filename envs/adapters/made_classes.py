"""Classes that adapters make of a name. They are pickled by that name, as no module holds them."""

import copyreg
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


class MadeClass(type):
    """The metaclass of an adapter's environments."""

    _made_by: tuple[Callable[[str], type], str]


def make_class(
    base: C, scheme: str, name: str, adapter: Callable[[str], type], /, **members: Any
) -> C:
    """Make a subclass that a name stands for.

    Args:
        base: Its base class, whose metaclass is `MadeClass`.
        scheme: Of the name: "gymnasium".
        name: What follows the scheme.
        adapter: Makes the class of the name, in another process as well.
        **members: The class's attributes and docstring.
    """
    members |= {"__module__": base.__module__, "_made_by": (adapter, name)}
    made: Any = type(base)(f"{scheme}:{name}", (base,), members)
    return made


def _reduced(cls: MadeClass) -> Any:
    """How a class is pickled: as a call of its adapter, or by its module if it is written there."""
    if "_made_by" not in vars(cls):
        return cls.__qualname__
    adapter, name = cls._made_by
    return adapter, (name,)


copyreg.pickle(MadeClass, _reduced)
