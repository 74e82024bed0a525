"""What every class that `compose` makes has: objects of the further classes, and their hooks.

Where an episode calls a hook, those of all classes run, each as it is: a sync one on the episode's
thread, an async one on the event loop. The task's own methods stay what they are: one that calls
`self.cleanup()` calls its own.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.user_code import Blame, call_hook
from gymnast.envs.registry import setting_names
from gymnast.envs.tools.json_schema import tools_by_name
from gymnast.envs.tools.running import call_user_code
from gymnast.errors import ToolDefinitionError, shown
from gymnast.sandboxes.contract.base import Sandbox

# Settings of the whole that parts know too.
_SHARED = ("max_turns", "max_tokens", "context_length", "episode_timeout_s")


# Hooks that all classes run, and the methods that run them.
_ALL_RUN = {
    "setup": "_setup_all",
    "cleanup": "_clean_up_all",
    "prepare_sandbox": "_prepare_all",
    "metrics": "_metrics_of_all",
    "tools_for": "_tools_of_all",
    "call_tool": "_call_tool_of_owner",
}
_OF_TOOLS = ("tools_for", "call_tool")


def classes_of(cls: type[Environment]) -> tuple[type[Environment], ...]:
    """The classes that `compose` made a class of; of any other, the class itself."""
    found: tuple[type[Environment], ...] = vars(cls).get("_classes", (cls,))
    return found


def has_own(cls: type[Environment], hook: str) -> bool:
    """Whether a class has its own hook of a name; of composed classes, whether the task has."""
    return getattr(cls, hook) is not getattr(Hooks, hook)


def any_has_own(cls: type[Environment], hook: str) -> bool:
    """Whether a class, or one that it is composed of, has its own hook of a name."""
    composed: tuple[type[Environment], ...] = getattr(cls, "_classes", ())
    return any(has_own(each, hook) for each in (cls, *composed))


def has_own_box(cls: type[Environment]) -> bool:
    """Whether `compose` made a class with a `sandbox_spec` of its own."""
    return bool(vars(cls).get("_own_box"))


class Composed(Environment):
    """What every class that `compose` makes has."""

    _classes: tuple[type[Environment], ...] = ()
    _own_box = False  # whether `compose` was given a `sandbox_spec`
    _parts: tuple[Environment, ...] = ()  # objects of all classes but the first
    _owners: Mapping[str, int] = {}  # of the tools that an episode chose: the numbers of classes
    _begun: int | None = None  # of how many classes `setup` was called; None: they were not asked

    def _make_parts(self, settings: Mapping[str, Any]) -> None:
        """Make the objects of the further classes, which see the episodes of this one."""
        shared = {name: getattr(self, name) for name in _SHARED}
        for cls in self._classes[1:]:
            own = {name: settings[name] for name in own_settings(cls) if name in settings}
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

    def _hook(self, name: str) -> Callable[..., Any]:
        """What an episode calls as a hook: those of all where a further class has its own.

        Each class is asked for its own tools, also where only the task chooses them.
        """
        asked = (type(self), *self._classes) if name in _OF_TOOLS else self._classes[1:]
        of_all = name in _ALL_RUN and any(has_own(cls, name) for cls in asked)
        method: Callable[..., Any] = getattr(self, _ALL_RUN[name] if of_all else name)
        return method

    def _of(self, number: int) -> Environment:
        """The object of one of the classes."""
        return self._parts[number - 1] if number else self

    async def _call(self, number: int, hook: str, *arguments: Any) -> Any:
        """Call a hook of one of the classes: a sync one on the episode's thread."""
        whose = self._of(number)
        method = getattr(whose, hook)
        if not has_own(type(whose), hook):
            return method(*arguments)
        blame = Blame(self._classes[number].__name__, hook, self.row or None)
        return await call_hook(method, *arguments, thread=self._episode_runner.thread, blame=blame)

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
        begun, self._begun = self._begun, None
        if begun is None:
            begun = len(self._classes)
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
            self._of(number).prepare_sandbox(sandbox)

    async def _metrics_of_all(self, episode: Any) -> Any:
        """Further numbers about a finished episode; of one name, those of the first class."""
        found: dict[str, Any] = {}
        for number, cls in enumerate(self._classes):
            returned = await self._call(number, "metrics", episode)
            if not isinstance(returned, Mapping):
                blame = Blame(cls.__name__, "metrics", self.row or None)
                raise blame.error(f"returned {shown(returned)}; it must return a dict of numbers")
            found = {**returned, **found}
        return found

    async def _tools_of_all(self, row: Mapping[str, Any]) -> Any:
        """The tools of one episode, and whose they are."""
        tools, self._owners = [], dict[str, int]()
        of_parts = {name for cls in self._classes[1:] for name in cls._class_tools}
        for number, cls in enumerate(self._classes):
            returned = await self._call(number, "tools_for", row)
            for name, tool in tools_by_name(returned, f"{cls.__name__}.tools_for").items():
                if number == 0 and name in of_parts and tool is self._class_tools[name]:
                    continue  # the task has all methods of the whole; which hold, their class says
                if name in self._owners:
                    raise clash(self._classes[self._owners[name]], cls, name)
                self._owners[name] = number
                tools.append(tool)
        return tools

    async def _call_tool_of_owner(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run one tool call as the class of the tool does."""
        owner = self._of(self._owner_of(name))
        call = functools.partial(owner.call_tool, name, arguments)
        return await call_user_code(self._episode_runner.thread, call)

    def _owner_of(self, name: str) -> int:
        """Whose a tool is; one that no class listed was offered by the class that responds."""
        if name in self._owners:
            return self._owners[name]
        owned = (n for n, cls in enumerate(self._classes) if name in cls._class_tools)
        responds = (n for n, cls in enumerate(self._classes) if has_own(cls, "respond"))
        return next(owned, next(responds, 0))


def own_settings(cls: type[Environment]) -> list[str]:
    """The settings that a class takes and not every environment does."""
    common = setting_names(Environment) or ()
    return [name for name in setting_names(cls) or () if name not in common]


def clash(first: type, second: type, name: str) -> ToolDefinitionError:
    """The error where two classes have tools of one name."""
    return ToolDefinitionError(
        f"compose: {first.__name__} and {second.__name__} both have a tool {name!r}, and a call "
        "names its tool alone. Rename one of the two methods."
    )
