"""`Program`: an environment whose episodes are played by a program that owns its loop.

    setup          opens a line of the endpoint and starts the program
    next_request   answers its request, and waits for the next one or its end
    stop_program   ends it, where the episode ends first
    cleanup        removes what it has left behind

How it runs is in `running.py` and `commands.py`, how its requests become contexts in
`conversations.py`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, get_args

from gymnast.envs.environment.environment import Environment
from gymnast.envs.programs.answering import Answering
from gymnast.envs.programs.commands import BoxCommand, HostCommand
from gymnast.envs.programs.conversations import Reasoning
from gymnast.envs.programs.endings import has_failed, warn_of_failure, without_request
from gymnast.envs.programs.program_settings import (
    FUNCTIONS,
    check_arguments,
    check_one_program,
    checked_columns,
    checked_command,
    checked_function,
    checked_sandbox,
    checked_variables,
)
from gymnast.envs.programs.running import Access, ProgramResult, Running, RunningFunction
from gymnast.envs.programs.serving.endpoint import Endpoint
from gymnast.envs.records.episode import Episode
from gymnast.envs.records.next_request import NextRequest
from gymnast.envs.rendering.renderer import Renderer
from gymnast.errors import ConfigError, DataError, NoRequest, UsageError
from gymnast.lookup import did_you_mean
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.threads import in_background
from gymnast.types import Message


class Program(Environment):
    """A program plays the episode; the policy is what it takes for a model server.

    The program is a command, or a Python function or coroutine function. A command finds the
    environment variables OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY and
    GYMNAST_TASK, the path of a JSON file with the row's `prompt` and the columns that `shown`
    names. A function is called with `base_url`, `api_key` and `task`, which is the same. Nothing
    else of the row reaches the program.

    Each request is answered by one action. The episode ends when the program does: by then it may
    have written files or run on after the last answer. What it then is worth, `reward` says of
    `self.result`:

        class Sums(Program):
            function = staticmethod(ask)  # def ask(base_url, api_key, task): ...

            def reward(self, episode):
                return float(self.result.value == self.row["answer"])

    A program that fails is the policy's business, as is a wrong answer: it has another exit code
    than 0, and its episode is scored. One that ends before its first request has shown nothing of
    the policy; its episode is left out (`NoRequest`).

    Args:
        command: An argument vector, or a text for `/bin/sh -c`. It runs on this machine, in a
            temporary folder of its own, with your user and network; with `sandbox`, in a box that
            reaches nothing but the endpoint.
        function: Or a function or "module:name". It runs in this process.
        shown: Columns of the row that the program is told beside `prompt`.
        reasoning: What becomes of a request that leaves out earlier reasoning, as many programs do.
            "keep": it extends the context, in which the reasoning stays, as everywhere in Gymnast;
            a model that is served later may see less. "branch": it opens another context.
        variables: Further environment variables of a command.
        reward: A function or "module:name", sync or async, called with the episode and the
            `ProgramResult` if the class has no `reward` of its own. Without either, the reward is
            1.0 if the exit code is 0.
        sandbox: As for `Environment`; only for commands. Without it, they run on this machine. Its
            network is the endpoint; another one is refused.
        **settings: As for `Environment`.
    """

    sandbox_spec: SandboxSpec | None = None  # type: ignore[misc]  # `sandbox` brings one
    command: ClassVar[Sequence[str] | str | None] = None
    function: ClassVar[Callable[..., Any] | str | None] = None
    shown: ClassVar[Sequence[str]] = ()

    def __init__(
        self,
        renderer: Renderer | str | None = None,
        rows: Sequence[Mapping[str, Any]] | None = None,
        *,
        command: Sequence[str] | str | None = None,
        function: Callable[..., Any] | str | None = None,
        shown: Sequence[str] | None = None,
        reasoning: Reasoning = "keep",
        variables: Mapping[str, str] | None = None,
        reward: Callable[..., Any] | str | None = None,
        sandbox: str | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        if command is None and function is None:
            command, function = self.command, self.function
        owner = type(self).__name__
        self._command, self._function = checked_command(owner, command), function
        self._shown = checked_columns(owner, self.shown if shown is None else shown)
        self._variables = checked_variables(owner, variables or {})
        self._reasoning, self._reward = reasoning, reward
        self._check(sandbox)
        sandbox = checked_sandbox(owner, self.sandbox_spec, sandbox)
        if sandbox is not None and self.sandbox_spec is None:
            self.sandbox_spec = SandboxSpec()
        self._answering: Answering | None = None
        self._result: ProgramResult | None = None
        super().__init__(renderer, rows, sandbox=sandbox, **settings)

    def _check(self, sandbox: Any) -> None:
        owner = type(self).__name__
        boxed = sandbox is not None or self.sandbox_spec is not None
        check_one_program(owner, self._command, self._function, boxed=boxed)
        if self._reasoning not in get_args(Reasoning):
            raise ConfigError(
                f"{owner}: reasoning must be 'keep' or 'branch', got {self._reasoning!r:.100}."
            )
        checked_function(owner, "reward", self._reward)
        function = checked_function(owner, "function", self._function)
        if function is not None:
            check_arguments(owner, function)

    # ---- what a subclass may override beside the hooks of `Environment` ----

    def task(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What the program is told of a row: its prompt, and the columns of `shown`.

        Raises:
            DataError: The row lacks one of these columns.
        """
        for name in self._shown:
            if name not in row:
                raise DataError(
                    f"{type(self).__name__}: shown names the column {name!r}, which the row lacks."
                    f"{did_you_mean(name, list(row))} It has: {', '.join(map(str, row))}. Correct "
                    "shown, or override task(row), which says what the program is told."
                )
        return {name: row[name] for name in ("prompt", *self._shown) if name in row}

    @property
    def result(self) -> ProgramResult:
        """How the program of the episode ended.

        Raises:
            UsageError: It has not ended.
        """
        if self._result is None:
            raise UsageError(
                f"{type(self).__name__}.result: the program has not ended; reward may use it."
            )
        return self._result

    def reward(self, episode: Episode) -> Any:
        """The function `reward`, or whether the exit code is 0."""
        if self._reward is None:
            return float(self.result.exit_code == 0)
        return FUNCTIONS.find(self._reward)(episode, self.result)

    def metrics(self, episode: Episode) -> Any:
        """What the program did, as counts."""
        assert self._answering is not None
        counts = self._answering.metrics(len(episode.turns))
        return {**counts, "program/failed": float(has_failed(self.result))}

    # ---- the hooks ----

    def sandbox_spec_for(self, row: Mapping[str, Any], spec: SandboxSpec) -> SandboxSpec:
        """A box that reaches the endpoint of this process."""
        address = f"127.0.0.1:{Endpoint.shared().port}"
        return dataclasses.replace(spec, network="endpoint", endpoint=address)

    async def setup(self, row: Mapping[str, Any]) -> None:
        """Start the program."""
        self._answering, self._result = None, None
        endpoint, task = Endpoint.shared(), self.task(row)
        line = endpoint.open(parallel=self.parallel_requests)
        access = Access(endpoint.url, line.key)
        try:
            program = await in_background(lambda: self._started(access, task))
        except BaseException as error:
            line.close()
            if isinstance(error, ConfigError):
                raise ConfigError(f"{type(self).__name__}: {error}") from error
            raise
        self._answering = Answering(line, program, self._reasoning)

    async def next_request(self, message: Message | None, cut: bool) -> NextRequest | None:
        """Answer the program, and wait for what it asks next, or for its end."""
        answering = self._answering
        assert answering is not None
        if message is not None:
            answering.answer(self.episode.turns[-1], self.tokens_of_turn, cut=cut)
        request = await answering.next()
        if request is None:
            await self._end()
            owner, result = type(self).__name__, self.result
            if not self.episode.turns:
                problem = without_request(owner, self._command, result, answering.line.refusal)
                raise NoRequest("next_request", self.row, problem, f"{dict(self.row)!r:.500}")
            warn_of_failure(owner, self._command or self._function, result, self.row)
        return request

    async def stop_program(self) -> None:
        """End the program, whose requests fail from now on."""
        await self._end()

    async def cleanup(self) -> None:
        """Remove what the program has left behind."""
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.line.close()
            await in_background(answering.program.remove)

    # ---- private ----

    def _started(self, access: Access, task: Mapping[str, Any]) -> Running:
        if self._command is None:
            assert self._function is not None
            return RunningFunction(FUNCTIONS.find(self._function), access, task)
        if self.sandbox_spec is None:
            return HostCommand(self._command, access, task, self._variables)
        return BoxCommand(self._command, access, task, self._variables, self.sandbox)

    async def _end(self) -> None:
        answering = self._answering
        if answering is not None and self._result is None:
            answering.line.close()
            self._result = await in_background(answering.program.stop)
            self.note_unreceived(answering.unreceived(len(self.episode.turns)))

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no program and no result, which may be of any kind."""
        return vars(self) | {"_answering": None, "_result": None}
