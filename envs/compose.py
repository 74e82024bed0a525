"""compose: one environment class of several, the first of which is the task.

    compose(Arithmetic, Search)

    rows, prompt, reward, solve    those of Arithmetic
    tools                          those of both
    setup, cleanup                 both, each on an object of its own

The class that is made is a subclass of the first. Each further class is a part of it: an object of
its own, with its own attributes and its own `super()`, which sees the episode (`self.row`,
`self.sandbox`, `self.messages`) that the whole plays. So no attribute of one class reaches another.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.user_code import Blame, call_hook
from gymnast.envs.registry import find, setting_names
from gymnast.envs.tools.json_schema import tools_by_name
from gymnast.envs.tools.marks import mark_of, marked, plain_function
from gymnast.envs.tools.running import call_user_code
from gymnast.errors import ConfigError, ToolDefinitionError
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import SandboxSpec

# Of each of these, the first class that has its own says it for the whole.
FIRST_OWN = (
    *("sample_row", "hint", "solve", "respond"),
    *("reward", "turn_reward", "text_rewards", "turn_state"),
)
# Settings of the whole that parts know too.
_SHARED = ("max_turns", "max_tokens", "context_length", "episode_timeout_s")


def compose(
    task: str | type[Environment],
    *further: str | type[Environment],
    sandbox_spec: SandboxSpec | None = None,
) -> type[Environment]:
    """Make one environment class of several.

        from gymnast.envs import compose

        Assisted = compose(Arithmetic, Search)

    The first class is the task: its rows, prompt, reward and `solve` are those of the whole. Every
    further one brings its tools, with the state that its `setup`, `prepare_sandbox` and `cleanup`
    make and undo: each class runs its own, in order, and `cleanup` in reverse. The messages that
    the `setup` of a further class returns are not shown. The `tools_for`, `call_tool` and `metrics`
    of all of them hold. Of every other hook, the first class that has its own says it.

    A setting that several classes take goes to each of them.

    Args:
        task: A class, or what `make` takes as its name.
        *further: The others.
        sandbox_spec: Of the box that all share; None: that of the class that has one.

    Raises:
        ToolDefinitionError: Two classes have tools of one name, or a tool has the name of something
            else in the task.
        ConfigError: No further class is named, one is named twice, or several want different boxes.
        UnknownEnvironment: A name is not known.
    """
    classes = [find(each) for each in (task, *further)]
    _check_different(classes)
    members: dict[str, Any] = {
        "__doc__": f"{' with '.join(cls.__name__ for cls in classes)}, made by compose.",
        "__init__": _constructor(classes),
        "_classes": tuple(classes),
        "sandbox_spec": sandbox_spec or _sandbox_spec(classes),
        **_tools(classes),
        **_hooks(classes),
    }
    name = "With".join(cls.__name__ for cls in classes)
    made: Any = type(classes[0])
    composed: type[Environment] = made(name, (_Composed, classes[0]), members)
    return composed


def classes_of(cls: type[Environment]) -> tuple[type[Environment], ...]:
    """The classes that `compose` made a class of; of any other, the class itself."""
    found: tuple[type[Environment], ...] = vars(cls).get("_classes", (cls,))
    return found


class _Composed(Environment):
    """What every class that `compose` makes has."""

    _classes: tuple[type[Environment], ...] = ()
    _parts: tuple[Environment, ...] = ()  # objects of all classes but the first
    _begun = 0  # the `setup` of how many classes has run in this episode

    def _make_parts(self, settings: Mapping[str, Any]) -> None:
        """Make the objects of the further classes, which see the episodes of this one."""
        shared = {name: getattr(self, name) for name in _SHARED}
        for cls in self._classes[1:]:
            own = {name: settings[name] for name in _own_settings(cls) if name in settings}
            known = setting_names(cls) or ()
            given = {name: value for name, value in shared.items() if name in known}
            part = cls(renderer=self.renderer, **given, **own)
            part._episode_runner = self._episode_runner
            self._parts += (part,)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        """Begin an episode without blocking; see `Environment.reset`."""
        for number, part in enumerate(self._parts, start=1):
            words = None if seed is None else np.random.SeedSequence([seed, number])
            own_seed = None if words is None else int(words.generate_state(1)[0])
            gymnasium.Env.reset(part, seed=own_seed)
        return await super().areset(seed=seed, options=options)

    async def aclose(self) -> None:
        """Close without blocking."""
        await super().aclose()
        for part in self._parts:
            await part.aclose()

    def close(self) -> None:
        """End the episode, if one is running, and close what the parts have opened."""
        super().close()
        for part in self._parts:
            part.close()

    def _of(self, number: int, hook: str) -> Callable[..., Any]:
        """A hook of one of the classes, bound to its object."""
        whose = self._parts[number - 1] if number else super()
        function: Callable[..., Any] = getattr(whose, hook)
        return function

    async def _call(self, number: int, hook: str, *arguments: Any) -> Any:
        """Call a hook of one of the classes: a sync one on the episode's thread."""
        owner = self._classes[number]
        if getattr(owner, hook) is getattr(Hooks, hook):
            return self._of(number, hook)(*arguments)
        blame = Blame(owner.__name__, hook, self.row or None)
        thread = self._episode_runner.thread
        return await call_hook(self._of(number, hook), *arguments, thread=thread, blame=blame)

    async def _setup_all(self, row: Mapping[str, Any]) -> Any:
        """Prepare an episode: the task first; its messages are the prompt."""
        messages = None
        for number in range(len(self._classes)):
            self._begun = number + 1
            returned = await self._call(number, "setup", row)
            messages = messages if number else returned
        return messages

    async def _clean_up_all(self) -> None:
        """Clean up after an episode: what was prepared last, first."""
        own_setup = any(cls.setup is not Hooks.setup for cls in self._classes)
        begun, self._begun = self._begun if own_setup else len(self._classes), 0
        raised: Exception | None = None
        for number in reversed(range(begun)):
            try:
                await self._call(number, "cleanup")
            except Exception as error:
                raised = raised or error
        if raised is not None:
            raise raised

    def _prepare_all(self, sandbox: Sandbox) -> None:
        """Prepare a fresh box for an episode."""
        for number in range(len(self._classes)):
            self._of(number, "prepare_sandbox")(sandbox)

    async def _metrics_of_all(self, episode: Any) -> Any:
        """Further numbers about a finished episode; of one name, those of the first class."""
        found: dict[str, Any] = {}
        for number, cls in enumerate(self._classes):
            returned = await self._call(number, "metrics", episode)
            if not isinstance(returned, Mapping):
                blame = Blame(cls.__name__, "metrics", self.row or None)
                raise blame.error(f"returned {returned!r}; it must return a dict of numbers")
            found = {**returned, **found}
        return found

    async def _tools_of_all(self, row: Mapping[str, Any]) -> Any:
        """The tools of one episode, and whose they are."""
        tools, self._owners = [], dict[str, int]()
        for number, cls in enumerate(self._classes):
            returned = await self._call(number, "tools_for", row)
            for name, tool in tools_by_name(returned, f"{cls.__name__}.tools_for").items():
                if name in self._owners:
                    other = self._classes[self._owners[name]]
                    raise _clash(other, cls, name)
                self._owners[name] = number
                tools.append(tool)
        return tools

    async def _call_tool_of_owner(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run one tool call as the class of the tool does."""
        owners = getattr(self, "_owners", {})
        number = owners.get(name)
        if number is None:
            number = next(n for n, cls in enumerate(self._classes) if name in cls._class_tools)
        call = functools.partial(self._of(number, "call_tool"), name, arguments)
        return await call_user_code(self._episode_runner.thread, call)


# Hooks that all classes run, and what runs them.
_ALL_RUN = {
    "setup": _Composed._setup_all,
    "cleanup": _Composed._clean_up_all,
    "prepare_sandbox": _Composed._prepare_all,
    "metrics": _Composed._metrics_of_all,
    "tools_for": _Composed._tools_of_all,
    "call_tool": _Composed._call_tool_of_owner,
}


def _hooks(classes: Sequence[type[Environment]]) -> dict[str, Any]:
    """The hooks of the whole that a further class has a part in."""
    further = classes[1:]
    members: dict[str, Any] = {}
    for hook, run in _ALL_RUN.items():
        if any(_has_own(cls, hook) for cls in further):
            members[hook] = run
    for hook in FIRST_OWN:
        number = next((n for n, cls in enumerate(classes) if _has_own(cls, hook)), 0)
        if number:
            members[hook] = _forwarded(number, hook)
            if hook == "solve":
                members["solve_timeout_s"] = classes[number].solve_timeout_s
    return members


def _has_own(cls: type[Environment], hook: str) -> bool:
    return getattr(cls, hook) is not getattr(Environment, hook)


def _forwarded(number: int, hook: str) -> Callable[..., Any]:
    def forwarded(self: _Composed, *arguments: Any) -> Any:
        return self._of(number, hook)(*arguments)

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
                raise _clash(owners[name], cls, name)
            if hasattr(first, name):
                raise ToolDefinitionError(
                    f"compose: tool {name!r} of {cls.__name__} would replace "
                    f"{first.__name__}.{name}. Rename one of them."
                )
            owners[name] = cls
            members[name] = _routed(number, name, inspect.getattr_static(cls, name))
    return members


def _clash(first: type, second: type, name: str) -> ToolDefinitionError:
    return ToolDefinitionError(
        f"compose: {first.__name__} and {second.__name__} both have a tool {name!r}, and a call "
        "names its tool alone. Rename one of the two methods."
    )


def _routed(number: int, name: str, attribute: Any) -> Any:
    """A method of the whole that calls a tool of a part; it is described as that tool is."""
    options = mark_of(attribute)
    if isinstance(attribute, staticmethod) or options is None:
        return attribute
    function = plain_function(attribute)
    if inspect.iscoroutinefunction(function):

        async def awaited(self: _Composed, /, **arguments: Any) -> Any:
            return await self._of(number, name)(**arguments)

        return marked(functools.wraps(function)(awaited), options)

    def called(self: _Composed, /, **arguments: Any) -> Any:
        return self._of(number, name)(**arguments)

    return marked(functools.wraps(function)(called), options)


def _constructor(classes: Sequence[type[Environment]]) -> Callable[..., None]:
    """The `__init__` of the whole, which takes the settings of all classes."""
    first = classes[0]
    of_first = setting_names(first) or ()
    of_parts = [name for cls in classes[1:] for name in _own_settings(cls)]
    others = [name for name in dict.fromkeys(of_parts) if name not in of_first]

    def __init__(self: _Composed, *arguments: Any, **settings: Any) -> None:
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


def _own_settings(cls: type[Environment]) -> list[str]:
    """The settings that a class takes and not every environment does."""
    common = setting_names(Environment) or ()
    return [name for name in setting_names(cls) or () if name not in common]


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
        if issubclass(cls, _Composed):
            inner = ", ".join(each.__name__ for each in cls._classes)
            raise ConfigError(
                f"compose: {cls.__name__} is composed already, of {inner}; compose all classes at "
                "once."
            )
