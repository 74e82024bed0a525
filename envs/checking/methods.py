"""Methods that nothing calls, and that look as if Gymnast should: misspelt hooks, forgotten tools.

`set_up` is nearly `setup`. A public method with types and a docstring is what a tool is, but for
its `@tool`.
"""

import ast
import inspect
import sysconfig
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from gymnast.envs.checking.shared_values import code_names, modules_of, written_classes
from gymnast.envs.composed import any_has_own, classes_of
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.tools.definition import define_tool
from gymnast.envs.tools.marks import ToolOptions, mark_of, plain_function
from gymnast.errors import ToolDefinitionError
from gymnast.lookup import nearest

HOOKS = (
    *(name for name, value in vars(Hooks).items() if inspect.isfunction(value) and name[0] != "_"),
    *("sandbox_spec_for", "prepare_sandbox"),
)
# Names in code that may call any method, by a name that is not in the code.
_ANY_NAME = {"getattr", "getmembers", "__getattribute__", "attrgetter", "methodcaller", "dir"}


def misspelt_hooks(cls: type[Environment]) -> tuple[str, ...]:
    """Describe what is odd about the methods of a class, or of those that it is composed of.

    A method is odd that is no tool, that no code of the class names, and whose name is close to
    that of a hook which the class does not have.

    Args:
        cls: Of an environment.

    Returns:
        A sentence for each.
    """
    return tuple(
        f"{base.__name__}.{name} is no hook of Environment, and the class does not call it; did "
        f"you mean {hook}?"
        for own in classes_of(cls)
        for base, name, _ in _uncalled(own)
        if (hook := _misspelt(name, cls)) is not None
    )


def forgotten_tools(cls: type[Environment], offered: Collection[str] = ()) -> list[str]:
    """Find the methods that lack nothing but `@tool`, and that nothing calls.

    Such a method is public, has a docstring and types that can be described to a policy, and no
    other code of the class or its module names it. Methods of other packages' classes are theirs.

    Args:
        cls: Of an environment.
        offered: Names of the tools that an episode of it offers.

    Returns:
        The names, as "Shop.price".
    """
    names = dict[str, None]()
    for own in classes_of(cls):
        for base, name, method in _uncalled(own):
            if name in offered or not _is_of_author(base, own) or _misspelt(name, cls):
                continue
            if _could_be_tool(name, method) and not _is_mentioned(name, own):
                names[f"{base.__name__}.{name}"] = None
    return list(names)


def calls_any_method(cls: type[Environment]) -> bool:
    """Return True if the code of a class may call methods whose names are not in it."""
    functions = [value for base in written_classes(cls) for value in vars(base).values()]
    return any(not _ANY_NAME.isdisjoint(code_names(function)) for function in functions)


def _uncalled(own: type[Environment]) -> Iterator[tuple[type, str, Any]]:
    """The public methods of a class that are neither hooks nor tools, and that its code names not.

    Yields:
        The class that has it, its name, and it.
    """
    written = [base for base in own.__mro__ if base not in Environment.__mro__]
    known = {name for base in own.__mro__ if _is_gymnasts(base) for name in vars(base)}
    attributes = [(name, value) for base in written for name, value in vars(base).items()]
    for base in written:
        for name, value in vars(base).items():
            method = plain_function(value) if isinstance(value, staticmethod) else value
            if not inspect.isfunction(method) or mark_of(value) is not None or name[0] == "_":
                continue
            if hasattr(Environment, name) or name in own._class_tools:
                continue
            if name in known and not _is_gymnasts(base):
                continue
            if not any(name in code_names(each) for other, each in attributes if other != name):
                yield base, name, value


def _is_gymnasts(base: type) -> bool:
    return base.__module__.startswith("gymnast.")


def _misspelt(name: str, cls: type[Environment]) -> str | None:
    """The hook that a name is nearly that of, and that the class does not have."""
    hook = nearest(name, HOOKS)
    return None if hook is None or any_has_own(cls, hook) else hook


def _is_of_author(base: type, own: type) -> bool:
    """Return True if a class comes from whoever wrote the environment, and not from a library."""
    if _is_gymnasts(base):
        return False
    package = base.__module__.partition(".")[0]
    if package == own.__module__.partition(".")[0]:
        return True
    try:
        file = Path(inspect.getfile(base)).resolve()
    except (OSError, TypeError):  # it is built in, or was typed at a prompt
        return base.__module__ == own.__module__
    return not any(file.is_relative_to(folder) for folder in _library_folders())


@cache
def _library_folders() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in names)


def _could_be_tool(name: str, attribute: Any) -> bool:
    """Return True if a method would be a tool with `@tool`, and perhaps a further type."""
    function = plain_function(attribute)
    typed = set(getattr(function, "__annotations__", ()))
    if not typed or not (function.__doc__ or "").strip():
        return False
    method = not isinstance(attribute, staticmethod)
    parameters = list(inspect.signature(function).parameters)[1 if method else 0 :]
    if not all(parameter in typed for parameter in parameters):
        return True  # `@tool` says which type is missing
    try:
        define_tool(function, name=name, options=ToolOptions(), method=method)
    except ToolDefinitionError:
        return False
    return True


def _is_mentioned(name: str, own: type[Environment]) -> bool:
    """Tell if the code of the modules of a class names a method, outside of other environments."""
    modules = modules_of(own)
    written = {base.__name__ for base in written_classes(own)}
    for module in modules:
        names = _names_of_source(module, name, written)
        if name in (_names_of_code(module) if names is None else names):
            return True
    return False


def _names_of_code(module: ModuleType) -> set[str]:
    """The names that the functions of a module and of its classes use, but for environments."""
    values = [each for each in vars(module).values() if _is_of(module, each)]
    others = [each for each in values if isinstance(each, type) and not _plays(each)]
    functions = [*values, *(each for cls in others for each in vars(cls).values())]
    return {name for each in functions if inspect.isfunction(each) for name in code_names(each)}


def _is_of(module: ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def _plays(cls: type) -> bool:
    return issubclass(cls, Environment)


def _names_of_source(module: ModuleType, name: str, written: Collection[str]) -> set[str] | None:
    """The names that a module's file uses outside of functions of one name; None without a file.

    Classes that are environments but not among those `written`, and local ones, have methods of
    their own, and are left out.
    """
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return None
    found: set[str] = set()
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]  # with whether it is in a function
    while waiting:
        node, local = waiting.pop()
        if isinstance(node, ast.ClassDef) and node.name not in written:
            known = getattr(module, node.name, None)
            if local or (isinstance(known, type) and _plays(known)):
                continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            local = True
            if node.name == name:
                continue
        waiting += [(child, local) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Call) and _named(node.func) in _ANY_NAME:
            found |= {str(each.value) for each in node.args if isinstance(each, ast.Constant)}
    return found


def _named(node: ast.AST) -> str:
    return getattr(node, "id", getattr(node, "attr", ""))
