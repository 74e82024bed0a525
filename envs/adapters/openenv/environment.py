"""`openenv:URL`: Play an environment that OpenEnv serves, by calls of `act` or of its tools."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from gymnast.envs.adapters.made_classes import MadeClass, make_class
from gymnast.envs.adapters.openenv import texts
from gymnast.envs.adapters.packages import Package, import_package
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.rows import prompt_of
from gymnast.envs.records.episode import Turn
from gymnast.envs.tools.definition import Tool
from gymnast.envs.tools.json_schema import tool_of_schema
from gymnast.envs.tools.results import shortened
from gymnast.errors import ConfigError, InfrastructureError, UnknownEnvironment, described
from gymnast.numbers import finite_sum
from gymnast.types import Message

_INSTALL = "gymnast-rl[openenv]"
PACKAGE = Package("websockets", _INSTALL)
_MAX_CHARACTERS = 1_000_000  # of what is told of an observation
_SEEDS = 2**31


class OpenEnvEnvironment(Environment, metaclass=MadeClass):
    """An environment in a server of OpenEnv's; each episode has a session of its own.

    The policy takes an action by calling the tool `act`, whose parameters come from the server's
    schema of actions, and is told what it then observes. Where the server's actions are calls of
    tools, those are the tools. The reward of a turn is that of its actions, and the server says
    when the episode is over.

    A row may have a `seed` and further parameters of the server's reset in `reset`; and a `prompt`,
    which stands before the first observation.

    A subclass names its server and may say what is observed in words of its own:

        class Maze(OpenEnvEnvironment):
            url = "http://localhost:8000"

            def describe(self, observation):
                return "You see: " + observation["view"]

    Attributes:
        url: The server's.

    Args:
        renderer: As for `Environment`.
        rows: As for `Environment`; by default, seeds are drawn.
        instructions: What the policy is told first; by default, what the server says of itself.
        api_key_env: The variable whose value is sent as a bearer token; None: none is.
        start_timeout_s: Seconds until the server has to have begun an episode.
        step_timeout_s: Seconds that a step may take before it is given up; None: no limit.
        **settings: As for `Environment`.
    """

    url: ClassVar[str]

    def __init__(
        self,
        renderer: Any = None,
        rows: Any = None,
        *,
        instructions: str | None = None,
        api_key_env: str | None = None,
        start_timeout_s: float = 60.0,
        step_timeout_s: float | None = 60.0,
        **settings: Any,
    ) -> None:
        super().__init__(renderer, rows, **settings)
        if not start_timeout_s > 0:
            raise ConfigError(f"start_timeout_s must be > 0, got {start_timeout_s!r}.")
        if api_key_env is not None and api_key_env not in os.environ:
            raise ConfigError(f"{self._name}: there is no variable {api_key_env} (api_key_env).")
        self.instructions = instructions
        self.start_timeout_s, self.step_timeout_s = start_timeout_s, step_timeout_s
        self.api_key_env = api_key_env
        self._session: Any = None
        self._about: tuple[str, Mapping[str, Any]] | None = None  # its description and schema
        self._described: list[Tool] = []
        self._earned = 0.0  # in this turn
        self._over = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no session."""
        return vars(self) | {"_session": None, "_described": []}

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else a seed."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        return {"seed": int(rng.integers(_SEEDS))}

    def setup(self, row: Mapping[str, Any]) -> list[Message]:
        """Begin a session, reset its environment, and ask which tools there are."""
        self._earned, self._over = 0.0, False
        session = import_package("gymnast.envs.adapters.openenv.session", self._name, _INSTALL)
        with self._blamed():
            said, schema = self._about or self._asked(session.ask_about)
            self._about = said, schema
            self._session = session.Session(self.url, self._headers())
            parameters = dict(row.get("reset") or {})
            if row.get("seed") is not None:
                parameters["seed"] = row["seed"]
            answer = self._session.begin(parameters, self.start_timeout_s)
            observation, _, over = texts.outcome(answer)
            if over:
                raise ValueError("the episode is over where it begins")
            self._described = self._tools(schema)
            observed = shortened(self.describe(observation), _MAX_CHARACTERS)
        instructions = said if self.instructions is None else self.instructions
        if row.get("prompt") is None:
            return [{"role": "user", "content": _paragraphs(instructions, observed)}]
        *before, last = prompt_of(row)
        return [*before, {**last, "content": _paragraphs(str(last["content"]), observed)}]

    def describe(self, observation: Mapping[str, Any]) -> str:
        """Say what is observed: by default, a single text as it is, anything else as JSON."""
        return texts.text_of(observation)

    def tools_for(self, row: Mapping[str, Any]) -> list[Any]:
        """The tools of the class, and `act` or the server's tools."""
        return [*super().tools_for(row), *self._described]

    def turn_reward(self, turn: Turn) -> float:
        """What the server gave for the actions of the turn."""
        earned, self._earned = self._earned, 0.0
        return earned

    def cleanup(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def _name(self) -> str:
        return f"openenv:{self.url}"

    def _headers(self) -> dict[str, str]:
        key = self.api_key_env
        return {} if key is None else {"Authorization": f"Bearer {os.environ[key]}"}

    def _asked(self, ask_about: Any) -> tuple[str, Mapping[str, Any]]:
        """What the server says of itself, and the schema of its actions."""
        metadata, schemas = (
            ask_about(f"{self.url}/{page}", self._headers(), self.start_timeout_s)
            for page in ("metadata", "schema")
        )
        said = shortened(texts.description_of(metadata), _MAX_CHARACTERS)
        return said, texts.schema_of(schemas)

    def _tools(self, schema: Mapping[str, Any]) -> list[Tool]:
        """The tools that the server has."""
        if texts.calls_tools(schema):
            answer = self._session.ask("step", {"type": "list_tools"}, self.start_timeout_s)
            described = texts.tools(answer.get("observation"))
        else:
            described = [texts.act(schema)]
        return [
            replace(
                tool_of_schema({**tool, "timeout_s": self.step_timeout_s}),
                function=partial(self._act, action_of),
            )
            for tool, action_of in described
        ]

    def _act(self, action_of: Callable[[dict[str, Any]], Any], /, **arguments: Any) -> str:
        """Take one action: what the tools' calls run."""
        if self._over:
            return "The episode is over; this action was not taken."
        session = self._session
        answer = session.ask("step", action_of(arguments))
        if session is not self._session:  # the step was given up, and the episode has ended
            return ""
        with self._blamed():
            observation, earned, over = texts.outcome(answer)
            self._earned = finite_sum([self._earned, earned])
        if over:
            self._over = True
            self.end_episode()
        return shortened(self.describe(observation), _MAX_CHARACTERS)

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Read what the server says; what is wrong with it is of this episode alone.

        Raises:
            InfrastructureError: Something is.
        """
        try:
            yield
        except InfrastructureError:
            raise
        except Exception as error:
            raise InfrastructureError(f"{self._name}: {described(error)}") from error


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))


@cache
def server(url: str) -> type[OpenEnvEnvironment]:
    """The class of environments that a server of OpenEnv's serves.

    Raises:
        ConfigError: The package of the connection is not installed.
        UnknownEnvironment: It is no URL.
    """
    whole = (url if "://" in url else f"http://{url}").rstrip("/")
    if urlsplit(whole).scheme not in ("http", "https") or not urlsplit(whole).hostname:
        raise UnknownEnvironment(
            f"openenv:{url}: {url!r} is no URL of a server. Write, for example, "
            "'openenv:http://localhost:8000'."
        )
    import_package("websockets.sync.client", f"openenv:{url}", _INSTALL)
    about = f"Play what OpenEnv serves at {whole}."
    return make_class(OpenEnvEnvironment, "openenv", url, server, url=whole, __doc__=about)
