"""compose: one environment class of several, the first of which is the task.

    compose(Arithmetic, Search)

    rows, prompt, reward, solve    those of Arithmetic
    tools                          those of both
    setup, cleanup                 both, each on an object of its own

The class that is made is a subclass of the first. Each further class is a part of it: an object of
its own, with its own attributes and its own `super()`, which sees the episode (`self.row`,
`self.sandbox`, `self.messages`) that the whole plays. So no attribute of one class reaches another,
and a method that calls another of its class calls that one, whatever else an episode runs.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gymnast.envs.composed import Composed, clash, has_own, own_settings
from gymnast.envs.environment.construction import has_requests
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.mixture import Mixture
from gymnast.envs.registry import find, setting_names
from gymnast.envs.tools.marks import mark_of, marked, plain_function
from gymnast.errors import ConfigError, ToolDefinitionError
from gymnast.sandboxes.contract.spec import SandboxSpec

# Of each of these, the first class that has its own says it for the whole.
FIRST_OWN = ("respond", "reward", "turn_reward", "text_rewards", "turn_state")


def compose(
    task: str | type[Environment],
    *further: str | type[Environment],
    sandbox_spec: SandboxSpec | None = None,
) -> type[Environment]:
    """Make one environment class of several.

        from gymnast.envs import compose

        Assisted = compose(Arithmetic, Search)

    The first class is the task: its rows, prompt, reward, `hint` and `solve` are those of the
    whole. Every further one brings its tools, with the state that its `setup`, `prepare_sandbox`
    and `cleanup` make and undo: each class runs its own, in order, and `cleanup` in reverse. The
    messages that the `setup` of a further class returns are not shown. Each class says by
    `tools_for` which of its tools there are, and runs their calls by its `call_tool`; the `metrics`
    of all hold. Of `respond` and the rewards, the first class that has its own says it.

    A setting that several classes take goes to each of them.

    Args:
        task: A class, or what `make` takes as its name.
        *further: The others.
        sandbox_spec: Of the box that all share; None: that of the class that has one.

    Raises:
        ToolDefinitionError: Two classes have tools of one name, or a tool has the name of something
            else in the task.
        ConfigError: No further class is named, one is named twice or cannot be composed, or two
            want different boxes.
        UnknownEnvironment: A name is not known.
    """
    classes = [find(each) for each in (task, *further)]
    _check_different(classes)
    members: dict[str, Any] = {
        "__doc__": f"{' with '.join(cls.__name__ for cls in classes)}, made by compose.",
        "__init__": _constructor(classes),
        "_classes": tuple(classes),
        "_own_box": sandbox_spec is not None,
        "sandbox_spec": sandbox_spec or _sandbox_spec(classes),
        **_tools(classes),
        **_hooks(classes),
    }
    name = "With".join(cls.__name__ for cls in classes)
    made: Any = type(classes[0])
    composed: type[Environment] = made(name, (Composed, classes[0]), members)
    return composed


def _hooks(classes: Sequence[type[Environment]]) -> dict[str, Any]:
    """The hooks that the task has not, and a further class has."""
    members: dict[str, Any] = {}
    for hook in FIRST_OWN:
        number = next((n for n, cls in enumerate(classes) if has_own(cls, hook)), 0)
        if number:
            members[hook] = _forwarded(number, hook)
    return members


def _forwarded(number: int, hook: str) -> Callable[..., Any]:
    def forwarded(self: Composed, *arguments: Any) -> Any:
        return getattr(self._of(number), hook)(*arguments)

    return functools.wraps(getattr(Hooks, hook))(forwarded)


def _tools(classes: Sequence[type[Environment]]) -> dict[str, Any]:
    """The tools of the further classes, as methods of the whole.

    Raises:
        ToolDefinitionError: A name is taken.
    """
    first = classes[0]
    owners = dict.fromkeys(first._class_tools, first)
    members: dict[str, Any] = {}
    for number, cls in enumerate(classes[1:], start=1):
        for name in cls._class_tools:
            if name in owners:
                raise clash(owners[name], cls, name)
            if hasattr(first, name):
                raise ToolDefinitionError(
                    f"compose: tool {name!r} of {cls.__name__} would replace "
                    f"{first.__name__}.{name}. Rename one of them."
                )
            owners[name] = cls
            members[name] = _routed(number, name, inspect.getattr_static(cls, name))
    return members


def _routed(number: int, name: str, attribute: Any) -> Any:
    """A method of the whole that calls a tool of a part; it is described as that tool is."""
    options = mark_of(attribute)
    if isinstance(attribute, staticmethod) or options is None:
        return attribute
    function = plain_function(attribute)
    if inspect.iscoroutinefunction(function):

        async def awaited(self: Composed, /, **arguments: Any) -> Any:
            return await getattr(self._of(number), name)(**arguments)

        return marked(functools.wraps(function)(awaited), options)

    def called(self: Composed, /, **arguments: Any) -> Any:
        return getattr(self._of(number), name)(**arguments)

    return marked(functools.wraps(function)(called), options)


def _constructor(classes: Sequence[type[Environment]]) -> Callable[..., None]:
    """The `__init__` of the whole, which takes the settings of all classes."""
    first = classes[0]
    of_first = setting_names(first) or ()
    of_parts = [name for cls in classes[1:] for name in own_settings(cls)]
    others = [name for name in dict.fromkeys(of_parts) if name not in of_first]

    def __init__(self: Composed, *arguments: Any, **settings: Any) -> None:
        given = {name: value for name, value in settings.items() if name not in others}
        first.__init__(self, *arguments, **given)
        self._make_parts(settings)

    kinds = inspect.Parameter
    parameters = [
        kinds("self", kinds.POSITIONAL_ONLY),
        kinds("arguments", kinds.VAR_POSITIONAL),
        *(kinds(name, kinds.KEYWORD_ONLY, default=None) for name in others),
        kinds("settings", kinds.VAR_KEYWORD),
    ]
    __init__.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return __init__


def _sandbox_spec(classes: Sequence[type[Environment]]) -> SandboxSpec | None:
    wanted = [cls for cls in classes if cls.sandbox_spec is not None]
    for cls in wanted[1:]:
        if cls.sandbox_spec != wanted[0].sandbox_spec:
            raise ConfigError(
                f"compose: {wanted[0].__name__} and {cls.__name__} have different sandbox_spec, "
                "and an episode has one box. Say which in compose(..., sandbox_spec=...)."
            )
    return wanted[0].sandbox_spec if wanted else None


def _check_different(classes: Sequence[type[Environment]]) -> None:
    if len(classes) < 2:
        raise ConfigError(
            f"compose: got {classes[0].__name__} alone; name at least one further class, whose "
            "tools it is to have."
        )
    for number, cls in enumerate(classes):
        if cls in classes[:number]:
            raise ConfigError(f"compose: names {cls.__name__} twice; name each class once.")
        if issubclass(cls, Mixture):
            raise ConfigError(
                f"compose: {cls.__name__} is no class to compose, since each of its episodes is "
                "one environment's; compose classes, and mix what is composed."
            )
        if has_requests(cls):
            raise ConfigError(
                f"compose: {cls.__name__} has the hook `next_request`: the program that it runs "
                "offers the tools, so none can be added; give them to the program."
            )
        if issubclass(cls, Composed):
            inner = ", ".join(each.__name__ for each in cls._classes)
            raise ConfigError(
                f"compose: {cls.__name__} is composed already, of {inner}; compose all classes at "
                "once."
            )
