"""Environment: tools, hooks and a reward as a `gymnasium.Env` over token ids.

    step(action ids) = read -> act(assistant message) -> answer

`turn.py` says what one turn does; `requests.py`, where a program has the loop. Two parts do the
work: `TokenContext` (`tokens/context.py`) holds the ids, reads actions and appends results;
`EpisodeRunner` (`episode_runner.py`) runs the episode in messages and knows no ids. What a subclass
overrides is in `hooks.py`, what it finds on `self` in `episode_access.py`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np

from gymnast.envs.boxes.episode_boxes import EpisodeBoxes
from gymnast.envs.boxes.settings import box_settings
from gymnast.envs.environment import requests, turn
from gymnast.envs.environment.construction import (
    RemembersConstruction,
    check_hooks,
    check_settings,
    environment_class,
    require_construction,
)
from gymnast.envs.environment.episode_runner import EpisodeRunner
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.tokens.context import UNLIMITED, prompt_ids
from gymnast.envs.environment.tokens.contexts import TokenContexts
from gymnast.envs.environment.tokens.spaces import TokenIds, TokenSpace
from gymnast.envs.environment.worked_turns import worked_turns as messages_of_worked_turns
from gymnast.envs.records.episode import Episode, Info, Outcome
from gymnast.envs.records.messages import conversation
from gymnast.envs.rendering.renderer import Renderer, renderer_of
from gymnast.envs.tools.definition import tools_of_class
from gymnast.envs.tools.running import approximate_tokens
from gymnast.errors import ConfigError, UsageError
from gymnast.threads import run_blocking
from gymnast.types import Message
from gymnast.visible import visible


class Environment(Hooks, RemembersConstruction, gymnasium.Env[TokenIds, TokenIds]):
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
        renderer: Messages <-> tokens; or the name of a tokenizer (a hub id or a folder) to make one
            of. Without one, `act` works and `step` does not.
        rows: Where `reset` takes a row from if it is given none and the class has no `sample_row`
            of its own.
        max_turns: How many actions an episode may have.
        max_tokens: Limit on sampled and observed tokens after the prompt; None: no limit.
        context_length: Limit on all tokens; None: no limit.
        episode_timeout_s: Seconds from `reset` after which the episode ends; None: no limit.
        system_prompt: Put in front if the messages of the row or of `setup` have no system message.
        stop_tools: Names of tools that end the episode, as `@tool(stop=True)` does.
        sandbox: Where the boxes of a class with a `sandbox_spec` come from: a backend's name, or
            `{"backend": "docker", "image": ..., "memory_bytes": ...}`, whose other fields override
            those of the spec; None: the strongest backend that works here ("auto").
        render_mode: "ansi": `render()` returns the conversation as text. None: it returns None.
        worked_turns: How many episodes on other rows, played by `solve`, the prompt shows before
            its question (docs/demonstrations.md).
        worked_rows: The rows of these episodes, one more than `worked_turns` so that no episode
            shows its own; None: drawn as `reset` draws them.

    `info` of `reset` and `step` has `stop_ids` (the ids that may end an action), `tokens_left` (how
    many tokens may be sampled next: always an int, counted from `2**31 - 1` if there is no limit,
    so that `min(max_new_tokens, info["tokens_left"])` works) and `timings` (seconds by kind); of a
    class with `turn_state`, also `state`, which the next turn acts in; of one with `next_request`,
    also `branch`, the context that the returned ids extend and that the next action is sampled in,
    and where `step` opens that context, `prompt_ids`, which begin it. That of `step` also has
    `tool_calls`, `errors` and `stop_reason`, and where `text_rewards` paid something, its pairs and
    `token_rewards` (what is paid at each token of the action); that of the last step `metrics`,
    `unreceived` (turns whose message nobody has read, if any), `reward_parts` (if `reward` returned
    several), `no_reward` (True if it returned None) and, for
    `StopReason.error`, `failure`.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["ansi"],
        "render_fps": 1,  # Gymnasium asks for it; nothing here moves
    }

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._class_tools = tools_of_class(cls)
        check_hooks(cls)

    def __init__(
        self,
        renderer: Renderer | str | None = None,
        rows: Sequence[Mapping[str, Any]] | None = None,
        max_turns: int = 10,
        max_tokens: int | None = None,
        context_length: int | None = None,
        episode_timeout_s: float | None = None,
        system_prompt: str | None = None,
        stop_tools: Iterable[str] = (),
        sandbox: str | Mapping[str, Any] | None = None,
        render_mode: str | None = None,
        *,
        worked_turns: int = 0,
        worked_rows: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.renderer = renderer_of(renderer) if isinstance(renderer, str) else renderer
        self.render_mode = render_mode
        self.rows = rows
        self.max_turns = max_turns
        self.max_tokens = max_tokens
        self.context_length = context_length
        self.episode_timeout_s = episode_timeout_s
        self.system_prompt = system_prompt
        self.worked_turns = worked_turns
        self.worked_rows = worked_rows
        check_settings(self)
        owner = type(self).__name__
        boxes = EpisodeBoxes(owner, box_settings(owner, self.sandbox_spec, sandbox))
        self._episode_runner = EpisodeRunner(
            self, self._class_tools, stop_tools, boxes, self._encode
        )
        self._contexts: TokenContexts | None = None
        self.parallel_requests = True
        self.action_space = TokenSpace.of(self.renderer)
        self.observation_space = TokenSpace.of(self.renderer)

    @classmethod
    def from_tools(
        cls,
        functions: Iterable[Callable[..., Any]],
        *,
        reward: Callable[[Episode], Any] | None = None,
        stop_tools: Iterable[str] = (),
    ) -> type[Self]:
        """Make an environment class from plain functions.

        Args:
            functions: The tools, with type hints and docstrings, marked with `@tool` or not; and
                tools of LangChain, smolagents and the OpenAI Agents SDK.
            reward: Scores an episode, whose row is `episode.row`.
            stop_tools: Names of the tools that end the episode.

        Raises:
            ToolDefinitionError: A function lacks a docstring or a type hint.
            ConfigError: `stop_tools` names none of the functions.
        """
        return environment_class(cls, functions, reward, stop_tools)

    # ---- Gymnasium's methods, which block ----

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TokenIds, Info]:
        """Begin an episode.

        Args:
            seed: Seeds `np_random`, which `sample_row` gets.
            options: `{"row": {...}}`, to begin with that row; with `"hint": True`, the info has
                `teacher_prompt_ids`, the prompt with what `hint` returns, as ids (none where it
                returns None), if the class has that hook; with `"agent"`, whom `ask_agent` asks.
                Of a class with `next_request`: with `"branches": True`, whoever drives the episode
                follows it into further contexts, of which the first ends it otherwise; with
                `"parallel_requests": False`, none may be asked while another is unanswered.

        Returns:
            The prompt's ids, of shape [P] (empty without a renderer), and the info.

        Raises:
            DataError: There is no row, or it lacks something that the environment needs.
            PromptTooLong: The prompt leaves no token to sample.
            UserCodeError: A hook raised an exception.
            InfrastructureError: Something that the episode runs on broke.
        """
        return run_blocking(self.areset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[TokenIds, float, bool, bool, Info]:
        """Take one action; see `astep`. Works inside a running event loop as well."""
        return run_blocking(self.astep(action))

    def close(self) -> None:
        """End the episode, if one is running, and let the episode's thread go."""
        if self._episode_runner.is_idle:
            self._episode_runner.stop_thread()
        else:
            run_blocking(self.aclose())

    def render(self) -> str | None:
        """The conversation so far as text; None, with a warning, without a `render_mode`.

        `messages` has the same as data; `reset` and `step` return the tokens.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(
                f"{type(self).__name__}.render() returns nothing without a render mode; make the "
                'environment with render_mode="ansi".'
            )
            return None
        episode = self.episode
        if len(episode.branches) == 1:
            return visible(conversation(episode.messages))
        shown = (conversation(episode.messages_of(n)) for n in range(len(episode.branches)))
        return visible("\n\n".join(f"context {n}\n{text}" for n, text in enumerate(shown)))

    # ---- the same without blocking ----

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TokenIds, Info]:
        """Begin an episode without blocking; see `reset`."""
        require_construction(self)
        runner = self._episode_runner
        runner.running = False
        await runner.clean_up()
        gymnasium.Env.reset(self, seed=seed)
        runner.forget()
        self._contexts = None
        options = options or {}
        self.parallel_requests = bool(options.get("parallel_requests", True))
        runner.agent = options.get("agent")
        row = options.get("row")
        if row is None:
            row = await runner.sample_row(self.np_random)
        worked = await messages_of_worked_turns(self, row) if self.worked_turns else ()
        try:
            ids, placed = await self._begin(row, worked, options)
            following = await runner.next_state()
            hinted = await self._hinted_prompt() if options.get("hint") else {}
        except BaseException:
            await runner.abort()
            raise
        runner.running = True
        given = {**placed, **following, **hinted, **self._token_info()}
        info = {"timings": runner.state.timings, **given}
        return np.array(ids, dtype=np.int64), info

    async def astep(self, action: Any) -> tuple[TokenIds, float, bool, bool, Info]:
        """Take one action without blocking.

        Args:
            action: The sampled ids, of shape [A], their stop id included.

        Returns:
            The ids to append, of shape [O], where O may be 0; this turn's reward, which on the
            last turn includes the episode's; whether the task is over; whether a limit was hit;
            the info.

        Raises:
            ResetNeeded: No episode is running.
            UsageError: The action is not a flat sequence of ids.
            UserCodeError: A hook raised an exception.
        """
        require_construction(self)
        runner = self._episode_runner
        runner.require_episode()
        require_renderer(self)
        contexts = self._contexts
        assert contexts is not None
        ids = _token_ids(action)
        try:
            if runner.has_requests:
                observation, ending = await requests.step(runner, contexts, ids)
            else:
                observation, ending = await turn.step(runner, contexts.current, ids)
        except BaseException:
            await runner.abort()
            raise
        ending[-1].update(self._token_info())
        return np.array(observation, dtype=np.int64), *ending

    async def aclose(self) -> None:
        """Close without blocking."""
        runner = self._episode_runner
        runner.running = False
        try:
            await runner.clean_up()
        finally:
            runner.stop_thread()

    async def act(self, message: Mapping[str, Any]) -> Outcome:
        """Take one turn in messages: what `step` does between parsing and rendering.

        Token limits do not apply. An episode is driven either by `act` or by `step`, not by both.

        Args:
            message: An assistant message in OpenAI's shape, with or without `tool_calls`.

        Returns:
            `(messages, reward, terminated, truncated, info)`, where the messages are the
            environment's answer.

        Raises:
            ResetNeeded: No episode is running.
            UserCodeError: A hook raised an exception.
        """
        require_construction(self)
        runner = self._episode_runner
        runner.require_episode()
        try:
            act = requests.act if runner.has_requests else turn.act
            outcome = await act(runner, message)
        except BaseException:
            await runner.abort()
            raise
        outcome.info.update(self._token_info())
        return outcome

    async def _begin(
        self, row: Any, worked: Sequence[Message], options: Mapping[str, Any]
    ) -> tuple[Sequence[int], Info]:
        """Begin an episode; return the ids of its prompt, and what `info` says about requests."""
        runner = self._episode_runner
        messages = await runner.begin(row, worked)
        if self.renderer is not None:
            limits = runner.limit("max_tokens"), self.context_length
            self._contexts = TokenContexts(self.renderer, *limits)
        if runner.has_requests:
            runner.state.follows_branches = bool(options.get("branches", runner.follows_branches))
            placed = await requests.first(runner, self._contexts)
            return placed.ids, placed.info
        if self._contexts is None:
            return [], {}
        with runner.state.timings.measure("render"):
            return self._contexts.open(messages, self.tools), {}

    async def _hinted_prompt(self) -> Info:
        """What `info` says about the prompt of a teacher; nothing where there is no such hook."""
        with self._episode_runner.state.timings.measure("hint"):
            versions = await self._episode_runner.hinted()
            if versions is None or self.renderer is None:
                return {}
            return {"teacher_prompt_ids": prompt_ids(self.renderer, versions, self.tools)}

    def _encode(self, text: str) -> Sized:
        """Tokenize a text, to measure its length."""
        if self.renderer is None:
            return approximate_tokens(text)
        ids: list[int] = self.renderer.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _token_info(self) -> Info:
        """What every info says about tokens; new objects each time."""
        if self._contexts is None:
            return {"stop_ids": [], "tokens_left": UNLIMITED}
        renderer = self._contexts.current.renderer
        return {"stop_ids": list(renderer.stop_ids), "tokens_left": self._contexts.tokens_left}


def require_renderer(environment: Environment) -> Renderer:
    """The environment's renderer.

    Raises:
        ConfigError: It has none.
    """
    if environment.renderer is None:
        raise ConfigError(
            f"{type(environment).__name__} has no renderer, so it knows no token ids. Pass "
            "renderer=Renderer(tokenizer), or drive it by messages with `await act(message)`."
        )
    return environment.renderer


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
    flat: list[int] = ids.astype(np.int64).tolist()
    return flat
