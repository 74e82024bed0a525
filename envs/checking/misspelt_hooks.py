"""Methods whose names are nearly those of hooks, which nothing calls: `set_up` for `setup`."""

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from gymnast.envs.composed import any_has_own, classes_of
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.tools.marks import mark_of, plain_function
from gymnast.lookup import nearest

HOOKS = (
    *(name for name, value in vars(Hooks).items() if inspect.isfunction(value) and name[0] != "_"),
    *("sandbox_spec_for", "prepare_sandbox"),
)


def misspelt_hooks(cls: type[Environment]) -> tuple[str, ...]:
    """What is odd about the methods of a class, or of those that it is composed of.

    A method is odd that is no tool, that no code of the class names, and whose name is close to
    that of a hook which the class does not have.

    Args:
        cls: Of an environment.

    Returns:
        A sentence for each.
    """
    return tuple(sentence for each in classes_of(cls) for sentence in _of_class(each, cls))


def _of_class(own: type[Environment], whole: type[Environment]) -> Iterator[str]:
    written = [base for base in own.__mro__ if base not in Environment.__mro__]
    called = {name for base in written for value in vars(base).values() for name in _names(value)}
    for base in written:
        for name, value in vars(base).items():
            own_method = inspect.isfunction(value) and mark_of(value) is None
            if not own_method or name[0] == "_" or name in called or hasattr(Environment, name):
                continue
            hook = nearest(name, HOOKS)
            if hook is not None and not any_has_own(whole, hook):
                yield (
                    f"{base.__name__}.{name} is no hook of Environment, and the class does not "
                    f"call it; did you mean {hook}?"
                )


def _names(value: Any) -> Iterator[str]:
    """The names that the code of a function uses."""
    code = getattr(plain_function(value), "__code__", None)
    return _names_in(code) if code is not None else iter(())


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
