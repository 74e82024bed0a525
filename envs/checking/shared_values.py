"""Values that all episodes of a class share: attributes, globals, default arguments, generators.

Two looks at them, before and after an episode, tell which of them it changed.
"""

import functools
import random
import reprlib
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from gymnast.envs.composed import classes_of
from gymnast.envs.environment.construction import has_requests
from gymnast.envs.environment.environment import Environment
from gymnast.envs.tools.marks import plain_function

_GENERATOR = "the global generator of "
_CLOCKS = {"time", "time_ns", "now", "utcnow", "today", "ctime", "localtime", "gmtime", "strftime"}
_PLAIN = (str, bytes, int, float, bool, type(None))
_CONTAINERS = (list, dict, set, deque, bytearray)
_MOST_ENTRIES = 1000  # of a container whose values are looked at

_shortened = reprlib.Repr()
_shortened.maxlevel = 4
_shortened.maxlist = _shortened.maxdict = _shortened.maxset = _shortened.maxtuple = 100
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 200


def written_classes(cls: type) -> list[type]:
    """The classes of an environment's that are not Gymnast's, those it is composed of included."""
    bases = dict.fromkeys(base for each in (cls, *classes_of(cls)) for base in each.__mro__)
    return [
        base
        for base in bases
        if base not in Environment.__mro__ and not base.__module__.startswith("gymnast.")
    ]


def modules_of(cls: type) -> list[ModuleType]:
    """The modules in which these classes are defined."""
    names = dict.fromkeys(base.__module__ for base in written_classes(cls))
    return [sys.modules[name] for name in names if name in sys.modules]


def code_names(function: Any) -> Iterator[str]:
    """The names that the code of a function uses."""
    code = getattr(plain_function(function), "__code__", None)
    return _names_in(code) if code is not None else iter(())


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def shared_values(env: Environment) -> dict[str, Any]:
    """Return the state of what the episodes of a class share, by what it is called in messages."""
    cls = type(env)
    found: dict[str, Any] = {}
    for base in written_classes(cls):
        for name, value in vars(base).items():
            if name.startswith("__"):
                continue
            found |= _state(f"{base.__name__}.{name}", value)
            for default in getattr(plain_function(value), "__defaults__", None) or ():
                if isinstance(default, _CONTAINERS):
                    found |= _state(f"a default argument of {base.__name__}.{name}", default)
    for module in modules_of(cls):
        for name, value in vars(module).items():
            if not name.startswith("__"):
                found |= _state(f"the global {name}", value)
    if env._episode_runner.boxes.wanted or has_requests(cls):
        return found  # Gymnast draws the waits for sandboxes from `random`
    found[f"{_GENERATOR}`random`"] = hash(random.getstate())
    found[f"{_GENERATOR}`numpy.random`"] = repr(np.random.get_state(legacy=False)["state"])
    torch = sys.modules.get("torch")
    if torch is not None:
        found[f"{_GENERATOR}`torch`"] = hash(torch.random.get_rng_state().numpy().tobytes())
    return found


def changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of the values that are no longer what they were."""
    return [name for name in after if name not in before or before[name] != after[name]]


def drawn_from(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first global generator that random numbers were drawn from; None where none was."""
    changed = changed_values(before, after)
    return next((name for name in changed if name.startswith(_GENERATOR)), None)


def reads_clock(cls: type) -> bool:
    """Return True if the code of a class, or a function of its module, may ask for the time."""
    functions = [value for base in written_classes(cls) for value in vars(base).values()]
    for module in modules_of(cls):
        functions += [each for each in vars(module).values() if isinstance(each, FunctionType)]
    return any(not _CLOCKS.isdisjoint(code_names(function)) for function in functions)


def _state(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, functools._lru_cache_wrapper):
        return {f"the cache of {name}": value.cache_info()}
    if isinstance(value, _PLAIN):
        return {name: value}
    if not isinstance(value, _CONTAINERS):
        return {}
    if len(value) > _MOST_ENTRIES:
        return {name: len(value)}
    return {name: _shortened.repr(value)}
