"""Environment: a toolset as a `gymnasium.Env` over token ids.

    step(action ids) = parse -> act(assistant message) -> render

This file puts tokens around `toolset.py`, which knows messages alone. Left out: how an episode
ends (`records/ending.py`), chat templates (`rendering/renderer.py`).
"""

import functools
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, ClassVar

import gymnasium
import numpy as np

from gymnast.envs.boxes.box import BoxSettings
from gymnast.envs.boxes.fresh_box import run_grader
from gymnast.envs.environment.spaces import TokenIds, TokenSpace
from gymnast.envs.environment.toolset import Info, Toolset
from gymnast.envs.records.ending import TokenBudget, close_turn
from gymnast.envs.records.messages import conversation
from gymnast.envs.records.metrics import Timings
from gymnast.envs.rendering.renderer import Renderer
from gymnast.errors import ConfigError, PromptTooLong, UsageError
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import ExecResult
from gymnast.threads import run_blocking
from gymnast.types import Message
from gymnast.visible import visible


class Environment(Toolset, gymnasium.Env[TokenIds, TokenIds]):
    """A set of tools, a way to begin and a way to score.

        from gymnast.envs import Environment, Renderer, tool

        class Arithmetic(Environment):
            \"\"\"Answer a multiplication question, with a calculator at hand.\"\"\"

            @tool
            def multiply(self, a: int, b: int) -> int:
                \"\"\"Multiply two integers.\"\"\"
                return a * b

            def reward(self, episode) -> float:
                return float(str(self.row["answer"]) in episode.answer)

        env = Arithmetic(Renderer(tokenizer), max_turns=4)
        prompt_ids, info = env.reset(options={"row": {"prompt": "What is 3 x 4?", "answer": 12}})
        ids, reward, terminated, truncated, info = env.step(action_ids)

    Args:
        renderer: Messages <-> tokens. Without one, `act` works and `step` does not.
        rows: Where `reset` takes a row from when it is given none and the class has no
            `sample_row` of its own.
        max_turns: Actions an episode may have.
        max_tokens: Sampled and observed tokens after the prompt; None is no limit.
        context_length: All tokens; None is no limit.
        episode_timeout_s: Seconds from `reset` after which the episode ends; None is no limit.
        system_prompt: Put first where the row's (or `setup`'s) messages have no system message.
        stop_tools: Names of tools that end the episode, as `@tool(stop=True)` does.
        sandbox: Where the boxes of a class with a `sandbox_spec` come from: a backend's name, or
            `{"backend": "docker", "image": ..., "memory_bytes": ...}`, whose other fields replace
            those of the spec; None: the strongest backend that works here ("auto").
        render_mode: "ansi": `render()` returns the conversation as text. None: it returns None.

    `info` of `reset` and `step` has `stop_ids` (what an action may end with), `tokens_left` (how
    many tokens may be sampled next: always an int, counted from `2**31 - 1` where there is no
    limit, so `min(max_new_tokens, info["tokens_left"])` holds) and `timings` (seconds by kind);
    that of `step` also `tool_calls`, `errors` and `stop_reason`; that of the last step also
    `metrics`, `reward_parts` (where `reward` returned several), `no_reward` (True, where it
    returned None) and, for `StopReason.error`, `failure`.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["ansi"],
        "render_fps": 1,  # Gymnasium asks for it; nothing here moves
    }

    def __init__(
        self,
        renderer: Renderer | None = None,
        rows: Sequence[Mapping[str, Any]] | None = None,
        max_turns: int = 10,
        max_tokens: int | None = None,
        context_length: int | None = None,
        episode_timeout_s: float | None = None,
        system_prompt: str | None = None,
        stop_tools: Iterable[str] = (),
        sandbox: str | Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.renderer = renderer
        self.render_mode = render_mode
        self.rows = rows
        self.max_turns = max_turns
        self.max_tokens = max_tokens
        self.context_length = context_length
        self.episode_timeout_s = episode_timeout_s
        self.system_prompt = system_prompt
        _check_settings(self)
        Toolset.__init__(self, stop_tools, sandbox)
        self._stop_ids = tuple(renderer.stop_ids) if renderer else ()
        self.action_space = TokenSpace.of(renderer)
        self.observation_space = TokenSpace.of(renderer)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TokenIds, Info]:
        """Begin an episode.

        Args:
            seed: Of `np_random`, which `sample_row` gets.
            options: `{"row": {...}}` to begin with that row.

        Returns:
            The prompt's ids, of shape [P] (empty without a renderer), and the info.

        Raises:
            DataError: The row lacks what the environment needs, or there is none.
            PromptTooLong: The prompt leaves no token to sample.
            UserCodeError: A hook raised.
            InfrastructureError: What the episode runs on broke.
        """
        return run_blocking(self.areset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[TokenIds, float, bool, bool, Info]:
        """Take one action; see `astep`. Works inside a running event loop as well."""
        return run_blocking(self.astep(action))

    def close(self) -> None:
        """End the episode, if one is running, and let its thread go."""
        if self._needs_cleanup or self._boxes.any_open:
            run_blocking(self.aclose())
        else:
            self._thread.stop()

    @property
    def box_settings(self) -> BoxSettings:
        """Where the boxes of this environment come from: the backend, the image and the limits.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
        """
        return self._boxes.settings("box_settings", self._state.row or None)

    async def open_box(self) -> Sandbox:
        """Open a further box beside the episode's; for async hooks and tools.

        It is of the same image and limits, and empty: `prepare_sandbox` is not called with it. It
        is closed with the episode, or earlier by `async with await self.open_box() as box`.

        What the policy wrote belongs into `self.sandbox`, which tells who broke it. When this box
        breaks, that is taken for an accident (`SandboxDead`), and the episode is tried again.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
            SandboxError: There is none to be had.
        """
        return await self._boxes.open_further(self._state.row or None)

    @property
    def max_boxes(self) -> int | None:
        """How many episodes of this process may have a box at once; None: they have none."""
        return self.box_settings.max_boxes if self._boxes.wanted else None

    async def run_grader(
        self,
        command: str | Sequence[str],
        *,
        files: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> ExecResult | None:
        """Run a program on what the policy has left in its working folder; for an async `reward`.

        The program runs in a fresh box, to which the files of the folder are carried and nothing
        else of the policy's: no process, no variable, no file elsewhere, no link that leads out of
        the folder or to one of `files`. Its home is empty, and Python imports nothing from the
        folder. Only where it runs the policy's files itself can they answer for it. The Python
        session of the episode's own box ends, and with it what it has started.

        Args:
            command: An argument vector, or a text for `/bin/sh -c`.
            files: What the program needs, by path; the policy never sees it. A file of the
                policy's at such a path is replaced. Python imports modules from these files.
            stdin: What the program reads.

        Returns:
            How it ended; None where the policy left something that cannot be graded, such as more
            files than can be carried. Both are the policy's doing.

        Raises:
            UserCodeError: The class declares no `sandbox_spec`.
            UsageError: An argument is of another type, or one of `files` cannot be written.
            SandboxError: A box broke, or there is none to be had.
        """
        return await run_grader(
            self.sandbox,
            self.box_settings,
            command,
            begin=self.prepare_sandbox,
            files=files or {},
            stdin=stdin,
        )

    async def aclose(self) -> None:
        """Close without blocking."""
        self._running = False
        try:
            await self._clean_up()
        finally:
            self._thread.stop()

    def render(self) -> str | None:
        """The conversation so far as text, for people; None (and a warning) without `render_mode`.

        The tokens themselves are what `reset` and `step` returned; `messages` has the same as data.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(
                f"{type(self).__name__}.render() returns nothing without a render mode; make the "
                'environment with render_mode="ansi".'
            )
            return None
        return visible(conversation(self.messages))

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TokenIds, Info]:
        """Begin an episode without blocking; see `reset`."""
        self._require_construction()
        self._running = False
        await self._clean_up()
        gymnasium.Env.reset(self, seed=seed)
        self._forget_episode()
        row = (options or {}).get("row")
        if row is None:
            row = await self._hook("sample_row", self.np_random)
        try:
            messages = await self._begin(row, self.episode_timeout_s)
            state = self._state
            if self.renderer is not None:
                with state.timings.measure("render"):
                    state.ids = list(self.renderer.prompt(messages, self.tools or None))
                state.budget = self._budget_after(len(state.ids))
        except BaseException:
            await self._abort()
            raise
        self._running = True
        return np.array(state.ids, dtype=np.int64), self._info()

    async def astep(self, action: Any) -> tuple[TokenIds, float, bool, bool, Info]:
        """Take one action without blocking.

        Args:
            action: The sampled ids, of shape [A], their stop id included.

        Returns:
            The ids to append, of shape [O], which may be 0; this turn's reward, which on the last
            turn includes the episode's; whether the task is over; whether a limit was hit; info.

        Raises:
            ResetNeeded: No episode is running.
            UsageError: The action is something else than a flat sequence of ids.
            UserCodeError: A hook raised.
        """
        self._require_episode()
        renderer, state = self._require_renderer(), self._state
        state.timings = Timings()
        ids = _token_ids(action)
        try:
            with state.timings.measure("parse"):
                message = self._parse(renderer, ids)
            state.ids += ids
            cut = not ids or ids[-1] not in self._stop_ids
            turn, reward, holding = await self._take_turn(message, cut=cut)
            render = functools.partial(self._render, renderer, turn.results)
            with state.timings.measure("render"):
                observed, reason = close_turn(state.budget, len(state.ids), holding, render)
            state.ids += observed
            ending = await self._end_turn(turn, reward, reason)
            return np.array(observed, dtype=np.int64), *ending
        except BaseException:
            await self._abort()
            raise

    def _parse(self, renderer: Renderer, ids: list[int]) -> Message:
        message = renderer.parse(ids, context_ids=self._state.ids, tools=self.tools or None)
        if any(call.error is not None for call in message["tool_calls"]):
            # What could not be read is in neither content nor calls; a reader of rollouts wants it.
            known = [number for number in ids if 0 <= number < 2**31]
            return {**message, "raw": renderer.tokenizer.decode(known)}  # type: ignore[typeddict-unknown-key]
        return message

    def _render(
        self, renderer: Renderer, results: Sequence[Message], generation_prompt: bool
    ) -> list[int]:
        if not results:  # an answer, or nothing that could be answered
            return []
        tools = self.tools or None
        return renderer.observe(
            self._state.ids, results, tools=tools, generation_prompt=generation_prompt
        )

    def _budget_after(self, prompt_length: int) -> TokenBudget:
        budget = TokenBudget(prompt_length, self.max_tokens, self.context_length)
        if budget.reached(prompt_length):
            raise PromptTooLong(
                f"the prompt has {prompt_length} tokens, which leaves none to act within "
                f"context_length={self.context_length}. Shorten it, or raise context_length."
            )
        return budget

    def _require_renderer(self) -> Renderer:
        if self.renderer is None:
            raise ConfigError(
                f"{type(self).__name__} has no renderer, so it knows no token ids. Pass "
                "renderer=Renderer(tokenizer), or drive it by messages with `await act(message)`."
            )
        return self.renderer

    def _encode(self, text: str) -> Sized:
        if self.renderer is None:
            return super()._encode(text)
        ids: list[int] = self.renderer.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _info(self) -> Info:
        state = self._state
        left = state.budget.left(len(state.ids))
        return super()._info() | {"stop_ids": list(self._stop_ids), "tokens_left": left}


def _token_ids(action: Any) -> list[int]:
    try:
        ids = np.asarray(action)
    except (TypeError, ValueError):  # ragged, say
        ids = np.asarray(None)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise UsageError(
            f"an action is a flat sequence of token ids, got {action!r:.100}. A message goes to "
            "`await act(message)`."
        )
    found: list[int] = ids.tolist()
    return found


def _check_settings(environment: Environment) -> None:
    """Check the settings that every environment has.

    Raises:
        ConfigError: One is out of its range or of the wrong type.
    """
    owner = type(environment).__name__
    for name in ("max_turns", "max_tokens", "context_length"):
        value = getattr(environment, name)
        if value is None and name != "max_turns":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{owner}: {name} must be a whole number >= 1, got {value!r}.")
    timeout_s = environment.episode_timeout_s
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigError(f"{owner}: episode_timeout_s must be > 0 or None, got {timeout_s!r}.")
    prompt = environment.system_prompt
    if prompt is not None and not isinstance(prompt, str):
        raise ConfigError(f"{owner}: system_prompt must be a string or None, got {prompt!r:.100}.")
    if environment.render_mode not in (None, "ansi"):
        raise ConfigError(
            f'{owner}: render_mode must be "ansi" or None, got {environment.render_mode!r:.100}.'
        )
    renderer = environment.renderer
    if renderer is not None and not all(
        hasattr(renderer, name) for name in ("prompt", "parse", "observe", "stop_ids")
    ):
        raise ConfigError(
            f"{owner}: renderer is a {type(renderer).__name__}, not a Renderer. Wrap a tokenizer: "
            "Renderer(tokenizer), or use gymnast.envs.make, which does."
        )
    rows = environment.rows
    if rows is not None and not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise ConfigError(
            f"{owner}: rows has type {type(rows).__name__}; use a list of dicts or a dataset."
        )
