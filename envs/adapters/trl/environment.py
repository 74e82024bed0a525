"""`trl:module:NAME`: Play an environment class, tools or reward functions written for TRL."""

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.adapters.made_classes import MadeClass, make_class
from gymnast.envs.adapters.trl import reading, rewards
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.rows import prompt_of
from gymnast.envs.records.episode import Episode
from gymnast.envs.records.score import Score
from gymnast.envs.tools.definition import Tool
from gymnast.envs.tools.results import shortened, written
from gymnast.envs.tools.running import within
from gymnast.errors import ConfigError, DataError, InfrastructureError, described
from gymnast.lookup import file_in
from gymnast.threads import Contained, EpisodeThread, Overrun
from gymnast.types import Message

PACKAGE = None  # what is written for TRL is read without it

_MAX_CHARACTERS = 1_000_000  # of what is told of a result
_EPISODE = "gymnast_episode"  # a column that only tells rows apart
_NO_PROMPT: list[Message] = [{"role": "user", "content": ""}]


class TrlEnvironment(Environment, metaclass=MadeClass):
    """An environment of TRL's `environment_factory`, or tools and reward functions alone.

    As in TRL, `reset(**row)` begins an episode, and the text that it returns ends the last message
    of the row's prompt. The tools are the public methods of the class, and the functions of
    `tools`. The reward is the sum of what `get_reward()` and the reward functions say; one that
    says None is left out of the sum, and an episode of which all say None is not trained on.

    An object of the class plays one episode after another; where a call of it is given up, or its
    `reset` or a reward raises, the next episode has a new one. All of its sync code runs on one
    thread.

    Attributes:
        trl_name: "module:name" or "path/to/file.py:name".

    Args:
        renderer: As for `Environment`.
        rows: As for `Environment`; by default, their prompt is empty, and `reset` says everything.
        tools: Further tools: functions, or their names ("module:name", or a name in the module of
            the environment); or the name of a list of them.
        reward_funcs: Further reward functions, given likewise. Each is called with the one episode.
        reward_weights: A weight of each of them, 1.0 by default.
        timeout_s: Seconds that `reset`, a tool or a reward may take each; None: no limit.
        **settings: As for `Environment`.
    """

    trl_name: ClassVar[str]

    def __init__(
        self,
        renderer: Any = None,
        rows: Any = None,
        *,
        tools: Any = (),
        reward_funcs: Any = (),
        reward_weights: Sequence[float] | None = None,
        timeout_s: float | None = 60.0,
        **settings: Any,
    ) -> None:
        super().__init__(renderer, rows, **settings)
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"trl:{self.trl_name}: timeout_s must be > 0, got {timeout_s!r}.")
        self.timeout_s = timeout_s
        self._given, self._weights = (tools, reward_funcs), reward_weights
        self._read()
        self._made: dict[str | None, Any] = {}  # by the row's environment
        self._object: Any = None  # of the episode
        self._thread = EpisodeThread(f"gymnast-trl:{self.trl_name}")

    def _read(self) -> None:
        """Find what the names mean.

        Raises:
            ConfigError: One means nothing, or the weights are not one for each reward function.
            ToolDefinitionError: A tool cannot be described.
        """
        tools, reward_funcs = (reading.functions(given, self.trl_name) for given in self._given)
        own = self._named = reading.named(self.trl_name)
        self._functions = reading.standalone([*own.tools, *tools], f"trl:{self.trl_name}")
        self._rewards = [*own.reward_funcs, *reward_funcs]
        if self._weights is None:
            self._weights = [1.0] * len(reward_funcs)
        if len(self._weights) != len(reward_funcs):
            raise ConfigError(
                f"trl:{self.trl_name}: reward_weights has {len(self._weights)} numbers, and "
                f"reward_funcs {len(reward_funcs)} functions; give one for each."
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes objects of its own, and imports what is named by a file anew."""
        left = {"_made", "_object", "_named", "_functions", "_rewards"}
        return {name: value for name, value in vars(self).items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _made={}, _object=None)
        self._read()

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else one with an empty prompt, as TRL makes them."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        return {"prompt": _NO_PROMPT, _EPISODE: int(rng.integers(2**31))}

    async def setup(self, row: Mapping[str, Any]) -> list[Message]:
        """Reset the object, and put what it says at the end of the prompt."""
        self._object, said = None, ""
        columns = {name: value for name, value in row.items() if name != _EPISODE}
        if self._named.factories:
            key = columns.pop("environment", None) if None not in self._named.factories else None
            if key not in self._made:
                self._made[key] = await self._new(key)
            self._object = self._made[key]
            said = await self._run("reset", partial(self._object.reset, **columns), _text)
        messages = prompt_of(row if row.get("prompt") is not None else {"prompt": _NO_PROMPT})
        *before, last = messages
        return [*before, {**last, "content": f"{last['content']}{said}"}]

    def tools_for(self, row: Mapping[str, Any]) -> list[Tool]:
        """The functions of `tools`, and the methods of the object."""
        tools = {**self._functions, **self._methods()}
        return [reading.limited(tool, self.timeout_s) for tool in tools.values()]

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a method of the object, or a function."""
        is_method = name in self._methods()
        function = getattr(self._object, name) if is_method else self._functions[name].function
        assert callable(function), name
        return _told(await self._called(function, **arguments))

    async def reward(self, episode: Episode) -> Score | None:
        """The weighted sum of what `get_reward` and the reward functions say."""
        log, parts = rewards.Log(), dict[str, float]()
        own = type(self._object).__name__
        if hasattr(self._object, "get_reward"):
            value = await self._run("get_reward", self._object.get_reward, rewards.finite)
            parts |= {} if value is None else {own: value}
        given = rewards.arguments_of(episode, self.renderer)
        given |= {"log_metric": log.metric, "log_extra": log.extra}
        given |= {} if self._object is None else {"environments": [self._object]}
        names = rewards.names(self._rewards, [own])
        weights = [*[1.0] * len(self._named.reward_funcs), *(self._weights or ())]
        for name, function, weight in zip(names, self._rewards, weights, strict=True):
            value = await self._run(name, partial(function, **given), rewards.number)
            parts |= {} if value is None else {name: weight * value}
        return Score(parts, log.means()) if parts else None

    def close(self) -> None:
        """End the episode, if one is running, and let the object go."""
        super().close()
        self._let_go()

    async def aclose(self) -> None:
        """Close without blocking."""
        await super().aclose()
        self._let_go()

    def _let_go(self) -> None:
        self._made, self._object = {}, None
        self._thread.stop()

    def _methods(self) -> Mapping[str, Tool]:
        """The tools of the object's class, by name."""
        cls: Any = type(self._object)
        return {} if self._object is None else reading.methods_of(cls)

    async def _new(self, key: str | None) -> Any:
        """An object of the class that a row names.

        Raises:
            DataError: There is none of this name.
            InfrastructureError: It cannot be made.
        """
        factories = self._named.factories
        if key not in factories:
            known = ", ".join(map(str, factories))
            raise DataError(
                f"trl:{self.trl_name}: the row's environment is {key!r}; there are: {known}."
            )
        made = await self._run("its constructor", factories[key])
        if not reading.is_environment(made):
            raise InfrastructureError(
                f"trl:{self.trl_name} made {made!r:.200}, which has no method reset."
            )
        return made

    async def _run(
        self, what: str, function: Callable[[], Any], read: Callable[[Any], Any] = lambda x: x
    ) -> Any:
        """Run code of the object's or a reward function, whose accidents are of this episode alone.

        Raises:
            InfrastructureError: It raised, took too long, or returned what cannot be read.
        """
        try:
            return read(await within(self._called(function), self.timeout_s))
        except Overrun as error:
            problem = f"it was given up after {self.timeout_s:g} s"
            raise InfrastructureError(f"trl:{self.trl_name}: {what}: {problem}") from error
        except Exception as error:
            self._made.clear()
            problem = described(error)
            raise InfrastructureError(f"trl:{self.trl_name}: {what}: {problem}") from error

    async def _called(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """Run a function on the object's thread; what it returns may be awaited here."""
        try:
            result = await self._thread.run(partial(function, **arguments))
            return await Contained(result) if inspect.isawaitable(result) else result
        except asyncio.CancelledError:  # it may still be in there
            self._made.clear()
            raise


def _text(said: Any) -> str:
    """What `reset` says, as a text.

    Raises:
        ValueError: It is neither None nor a text.
    """
    text = "" if said is None else _joined(said)
    if not isinstance(text, str):
        raise ValueError(f"it returned {said!r:.200}, which is neither a text nor None")
    return shortened(text, _MAX_CHARACTERS)


def _told(result: Any) -> Any:
    """A result; as `str` writes it if JSON cannot hold it, and without its middle if too long."""
    result = _joined(result)
    try:
        text = written(result).text
    except TypeError:
        if isinstance(result, list | dict | bytes):  # of pictures, say, which are refused
            return result
        result = text = str(result)
    return result if len(text) <= _MAX_CHARACTERS else shortened(text, _MAX_CHARACTERS)


def _joined(said: Any) -> Any:
    """Content parts that are all texts, as one text."""
    parts: list[Any] = said if isinstance(said, list) else []
    texts = [part for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if not texts or len(texts) < len(parts):
        return said
    return "".join(str(part.get("text", "")) for part in texts)


@cache
def environment(name: str) -> type[TrlEnvironment]:
    """The class of environments that play what a name of TRL's kinds means.

    Raises:
        ConfigError: There is no such thing, or it is of no kind of TRL's.
        ToolDefinitionError: A method that is a tool cannot be described.
    """
    _, path, defined = file_in(name)
    whole = f"{os.path.abspath(os.path.expanduser(path))}{defined}" if path else name
    reading.named(whole)
    about = f"Play {name}, which is written for TRL."
    return make_class(TrlEnvironment, "trl", whole, environment, trl_name=whole, __doc__=about)
