"""`mcp:NAME`: Call the tools of a server that speaks the Model Context Protocol."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal

from gymnast.envs.adapters.made_classes import MadeClass, make_class
from gymnast.envs.adapters.mcp import texts
from gymnast.envs.adapters.mcp.servers import Server, server_of
from gymnast.envs.adapters.packages import Package, import_package
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.episode import Episode
from gymnast.envs.tools.definition import Tool
from gymnast.envs.tools.results import shortened
from gymnast.errors import ConfigError, DataError, InfrastructureError
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.threads import run_blocking
from gymnast.types import Message
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

_INSTALL = "gymnast-rl[mcp]"
PACKAGE = Package("mcp", _INSTALL)
_MAX_CHARACTERS = 1_000_000  # of what is told of a result


class ToolFailed(Exception):
    """A call's answer is an error."""


class McpEnvironment(Environment, metaclass=MadeClass):
    """The tools of a server.

    A YAML names rewards for it, or a subclass has one:

        class Clock(McpEnvironment):
            name = "time"
            command = ("uvx", "mcp-server-time")

            def reward(self, episode):
                return float(self.row["answer"] in episode.answer)

    An answer that is an error is an observation, and so is a call that is given up. A server that
    cannot be started, ends or is lost ends the episode as infrastructure that broke does.

    With the setting `sandbox`, or a `sandbox_spec` of the class, the command runs in the episode's
    box. There the policy can bring about the end of its server, which is an observation as well.

    A row may have `mcp_prompt`, the name of a prompt of the server's or `{"name": ...,
    "arguments": {...}}`: its messages begin the episode.

    Attributes:
        name: The server's, for messages and in the file of `servers`.
        command: The default of `command`.
        url: The default of `url`.

    Args:
        renderer: As for `Environment`.
        rows: As for `Environment`.
        command: The program that starts the server, and its arguments.
        url: The address of a server that runs already, and speaks streamable HTTP.
        servers: A JSON file with `mcpServers`, in which the server is looked up by its name.
        env: Further variables of the server's process; in a box, all but those of the box.
        headers: Further headers of requests to the URL.
        cwd: The folder in which the server's process runs; in a box, within the working folder.
        session: "episode": each episode has a session, and so a process, of its own. "shared": all
            environments of this process with the same server share one.
        offer: The names of the server's tools that are offered; None: all.
        resources: Whether the server's resources can be listed and read, by two further tools.
        instructions: Whether the server's instructions end the system prompt.
        start_timeout_s: Seconds until a server has to have answered.
        call_timeout_s: Seconds after which a call is given up; None: no limit.
        **settings: As for `Environment`.
    """

    name: ClassVar[str]
    command: Sequence[str] | None = None
    url: str | None = None

    def __init__(
        self,
        renderer: Any = None,
        rows: Any = None,
        *,
        command: Sequence[str] | None = None,
        url: str | None = None,
        servers: str | None = None,
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        cwd: str | None = None,
        session: Literal["episode", "shared"] = "episode",
        offer: Sequence[str] | None = None,
        resources: bool = False,
        instructions: bool = True,
        start_timeout_s: float = 60.0,
        call_timeout_s: float | None = 60.0,
        **settings: Any,
    ) -> None:
        if session not in ("episode", "shared"):
            raise ConfigError(f"session must be 'episode' or 'shared', got {session!r}.")
        if not start_timeout_s > 0:
            raise ConfigError(f"start_timeout_s must be > 0, got {start_timeout_s!r}.")
        given = {
            "command": command if command is not None else self.command,
            "url": url if url is not None else self.url,
            "env": env,
            "headers": headers,
            "cwd": cwd,
        }
        boxed = settings.get("sandbox") is not None or self.sandbox_spec is not None
        self.server: Server = server_of(self.name, given, servers, start_timeout_s, boxed=boxed)
        self._in_box = boxed and bool(self.server.command)
        if self._in_box and session == "shared":
            raise ConfigError(
                f"mcp:{self.name}: session is 'shared', but with a sandbox each episode has a box, "
                "and so a server, of its own. Remove one of the two settings."
            )
        if self._in_box and self.sandbox_spec is None:
            self.sandbox_spec = SandboxSpec()  # type: ignore[misc]  # of this object alone
        super().__init__(renderer, rows, **settings)
        self.offer = None if offer is None else list(offer)
        self.resources, self.instructions = resources, instructions
        self.call_timeout_s = call_timeout_s
        self._is_shared = session == "shared"
        self._own_system_prompt = self.system_prompt
        self._session: Any = None  # of the episode, or shared
        self._joined: Any = None  # the class of sessions, once one is shared
        self._of_server: dict[str, tuple[str, Tool]] = {}
        self._resource_tools: dict[str, str] = {}
        self._sdk("mcp")

    async def setup(self, row: Mapping[str, Any]) -> list[Message] | None:
        """Begin a session, or join the shared one, and ask which tools there are."""
        session = self._sdk("gymnast.envs.adapters.mcp.session").Session
        if self._is_shared:
            self._joined = session
            self._session = await session.shared(self.server, self)
        else:
            self._session = session(self.server, self.sandbox if self._in_box else None)
            await self._session.open()
        said = self._session.instructions if self.instructions else None
        self.system_prompt = "\n\n".join(filter(None, [self._own_system_prompt, said])) or None
        listed = await self._session.listed("list_tools", "tools")
        self._of_server = self._offered(listed)
        prompt = texts.prompt_of(row)
        return None if prompt is None else await self.prompt(*prompt)

    def tools_for(self, row: Mapping[str, Any]) -> list[Any]:
        """The tools of the class, those of the server, and two for its resources."""
        own = [*super().tools_for(row), *(tool for _, tool in self._of_server.values())]
        names = {tool.name for tool in own}
        self._resource_tools = {}
        if self.resources:
            for described in texts.RESOURCE_TOOLS:
                name = texts.free_name(str(described["name"]), names)
                self._resource_tools[name] = str(described["name"])
                own.append({**described, "name": name, "timeout_s": self.call_timeout_s})
        return own

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool of the server's, or of the class.

        Raises:
            ToolFailed: The answer is an error, or the server has ended in its box.
            InfrastructureError: The server is gone.
        """
        try:
            return await self._called(name, arguments)
        except InfrastructureError as error:
            if self._in_box:  # where the policy may have ended it, so as to be sampled again
                raise ToolFailed(str(error)) from error
            raise

    async def _called(self, name: str, arguments: dict[str, Any]) -> Any:
        if self._resource_tools.get(name) == "read_resource":
            return await self.resource(arguments["uri"])
        if name in self._resource_tools:
            return await self._list_of_resources()
        if name not in self._of_server:
            return await super().call_tool(name, arguments)
        called = self._of_server[name][0]
        result = await self._asked(lambda client: client.call_tool(called, arguments))
        if result.is_error:
            raise ToolFailed(str(texts.text_of_result(result)))
        return _limited(texts.text_of_result(result))

    async def resource(self, uri: str) -> str:
        """The text of a resource of the server's; of what is no text, a note.

        Raises:
            ToolFailed: The answer is an error.
            InfrastructureError: The server is gone.
        """
        read = await self._asked(lambda client: client.read_resource(uri))
        return str(_limited("\n".join(map(texts.text_of_resource, read.contents))))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> list[Message]:
        """The messages of a prompt of the server's.

        Raises:
            DataError: There is no such prompt, or it takes other arguments.
            InfrastructureError: The server is gone.
        """
        try:
            made = await self._asked(lambda client: client.get_prompt(name, dict(arguments)))
        except ToolFailed as error:
            raise DataError(f"mcp:{self.name}: the prompt {name!r}: {error}") from error
        return texts.messages_of_prompt(made)

    def reward(self, episode: Episode) -> Any:
        """0.0: the reward functions of a run score the episodes, or a subclass does."""
        return 0.0

    async def cleanup(self) -> None:
        """End the session, and with it the process of the server, unless it is shared."""
        if self._session is not None and not self._is_shared:
            session, self._session = self._session, None
            await session.close()

    def close(self) -> None:
        """End the episode, if one is running, and leave a shared session."""
        super().close()
        if self._joined is not None:
            run_blocking(self._leave())

    async def aclose(self) -> None:
        """Close without blocking."""
        try:
            await super().aclose()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        joined, self._joined, self._session = self._joined, None, None
        if joined is not None:
            await joined.leave(self)

    async def _asked(self, request: Any) -> Any:
        try:
            return await self._session.ask(request)
        except InfrastructureError:
            raise
        except Exception as error:  # also an answer that breaks the protocol or its own schema
            raise ToolFailed(str(error)) from error

    async def _list_of_resources(self) -> str:
        if not self._session.has("resources"):
            return texts.text_of_list([], [])
        listed = await self._session.listed("list_resources", "resources")
        templates = await self._session.listed("list_resource_templates", "resource_templates")
        return str(_limited(texts.text_of_list(listed, templates)))

    def _offered(self, listed: list[Any]) -> dict[str, tuple[str, Tool]]:
        """The tools to offer; one that cannot be is left out, with a warning."""
        if self.offer is not None:
            names = [tool.name for tool in listed]
            if missing := [name for name in self.offer if name not in names]:
                raise ConfigError(
                    f"mcp:{self.name} has no tool {missing[0]!r}, which offer names. It has: "
                    f"{', '.join(names) or '(none)'}."
                )
            listed = [tool for tool in listed if tool.name in self.offer]
        own = [tool.name for tool in super().tools_for(self.row)]
        tools, problems = texts.offered(listed, own, self.call_timeout_s)
        for name, problem in problems.items():
            _warn_once(self.name, name, problem)
        return tools

    def _sdk(self, module: str) -> Any:
        """A module of the SDK, or one of ours that needs it."""
        return import_package(module, f"mcp:{self.name}", _INSTALL)


def _limited(told: Any) -> Any:
    """A result, as a text without its middle if it is too long."""
    text = told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)
    return told if len(text) <= _MAX_CHARACTERS else shortened(text, _MAX_CHARACTERS)


@cache
def _warn_once(server: str, tool: str, problem: str) -> None:
    logger.warning("mcp:%s: its tool %r is left out: %s", server, tool, problem)


@cache
def server(name: str) -> type[McpEnvironment]:
    """The class of environments whose tools are those of a server.

    Raises:
        ConfigError: The SDK is not installed.
    """
    import_package("mcp", f"mcp:{name}", _INSTALL)
    about = f"Call the tools of the server {name}, which speaks the Model Context Protocol."
    return make_class(McpEnvironment, "mcp", name, server, name=name, __doc__=about)
