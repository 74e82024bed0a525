"""`gymnasium:ID`: Play a game of Gymnasium's, by calls of the tool `act`."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import gymnasium
import numpy as np

from gymnast.envs.adapters import spaces
from gymnast.envs.adapters.game_texts import instructions_of, section, without_escapes
from gymnast.envs.adapters.games import closed, made, spec_of
from gymnast.envs.adapters.made_classes import MadeClass, make_class
from gymnast.envs.adapters.packages import Package
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.episode import Turn
from gymnast.envs.tools.definition import Tool
from gymnast.envs.tools.json_schema import tool_of_schema
from gymnast.envs.tools.results import shortened
from gymnast.errors import ConfigError, InfrastructureError, described
from gymnast.numbers import finite_number, finite_sum
from gymnast.threads import call_contained
from gymnast.types import Message
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

PACKAGE = Package("gymnasium", "gymnasium")

_MAX_TURNS = 100  # of a game that has no limit of its own
_MAX_NUMBERS = 1000  # of an observation that is shown as numbers
_MAX_CHARACTERS = 1_000_000  # of what is told of an observation
_SEEDS = 2**31


class GymnasiumEnvironment(Environment, metaclass=MadeClass):
    """An environment of Gymnasium's; its reward of each turn is that of the actions in it.

    The policy takes an action by calling the tool `act`, whose parameters come from the action
    space, and is told what it then observes. Its row has the `seed` of the game, and may have the
    `options` of its reset. The game's end is the episode's: `StopReason.environment` where it is
    terminated, `max_turns` where it is truncated.

    A subclass names its game and may say what is observed in words of its own:

        class Pole(GymnasiumEnvironment):
            id = "CartPole-v1"

            def describe(self, observation):
                return "It leans right." if observation[2] > 0 else "It leans left."

    Attributes:
        id: The game's in Gymnasium's registry.
        game: What `gymnasium.make` made.

    Args:
        renderer: As for `Environment`.
        rows: As for `Environment`; by default, seeds are drawn.
        make: Keywords of `gymnasium.make`. Where the game has it, `render_mode` is "ansi".
        actions: The names of the actions of a discrete space, in order; by default, numbers.
        instructions: What the policy is told of the game; by default, what its docstring says.
        step_timeout_s: Seconds that a step of the game may take before it is given up; None: no
            limit.
        max_turns: By default, as many as the game has steps at most, or 100.
        **settings: As for `Environment`.
    """

    id: ClassVar[str]

    def __init__(
        self,
        renderer: Any = None,
        rows: Any = None,
        *,
        make: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        instructions: str | None = None,
        step_timeout_s: float | None = 60.0,
        max_turns: int | None = None,
        **settings: Any,
    ) -> None:
        self.make_keywords = dict(make or {})
        self.actions = None if actions is None else list(actions)
        self.step_timeout_s = step_timeout_s
        self.game = made(self.id, self.make_keywords)
        if max_turns is None:
            spec = self.game.spec
            max_turns = (spec.max_episode_steps if spec is not None else None) or _MAX_TURNS
        try:
            self._check_spaces()
            super().__init__(renderer, rows, max_turns=max_turns, **settings)
        except Exception:
            closed(self.game)
            raise
        self.instructions = instructions_of(self.game) if instructions is None else instructions
        self._observation: Any = None
        self._earned = 0.0  # in this turn
        self._over = False
        self._stepping = self._broken = self._closed = False  # of the game

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else a seed."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        return {"seed": int(rng.integers(_SEEDS))}

    def setup(self, row: Mapping[str, Any]) -> list[Message]:
        """Reset the game by the row's seed, or by the environment's where it has none."""
        if self._broken:
            closed(self.game)
        if self._broken or self._closed or self._stepping:  # a step closes its game when it ends
            self.game = made(self.id, self.make_keywords)
        seed = row.get("seed")
        if seed is None:
            seed = int(self.np_random.integers(_SEEDS))
        self._earned = 0.0
        self._over = self._stepping = self._broken = self._closed = False
        with self._blamed(f"reset(seed={seed})"):
            options = row.get("options")
            begun = call_contained(lambda: self.game.reset(seed=seed, options=options))
            self._observation, _ = begun
        parts = (self.instructions, self._told(), "Act by calling the tool act.")
        return [{"role": "user", "content": "\n\n".join(filter(None, parts))}]

    def describe(self, observation: Any) -> str:
        """Say what is observed: by default, the game's own text, or the observation's numbers."""
        with self._blamed("its observation"):
            if self.game.render_mode == "ansi":
                return without_escapes(str(self.game.render()))
            if (size := spaces.size(observation)) > _MAX_NUMBERS:
                raise ValueError(f"there are {size} numbers, and its space has fewer")
            return spaces.text(observation)

    def tools_for(self, row: Mapping[str, Any]) -> list[Tool]:
        """The tool `act`."""
        what = "Take an action in the game. Returns what is then observed."
        if isinstance(self.game.action_space, gymnasium.spaces.Dict):  # others say it of `action`
            what = f"{what}\n\n{section(self.game, 'action space')}".strip()
        described: dict[str, Any] = {
            "name": "act",
            "description": what,
            "parameters": self._parameters(),
            "timeout_s": self.step_timeout_s,
        }
        return [replace(tool_of_schema(described), function=self._act)]

    def turn_reward(self, turn: Turn) -> float:
        """What the game gave for the actions of the turn."""
        earned, self._earned = self._earned, 0.0
        return earned

    def turn_state(self) -> str:
        """The observation, exactly; of a long one, a digest."""
        state = repr(spaces.plain(self._observation))
        if len(state) <= _MAX_NUMBERS:
            return state
        return hashlib.blake2b(state.encode(errors="replace")).hexdigest()

    def close(self) -> None:
        """End the episode, if one is running, and close the game."""
        super().close()
        self._close_game()

    async def aclose(self) -> None:
        """Close without blocking."""
        await super().aclose()
        self._close_game()

    def _close_game(self) -> None:
        self._closed = True
        if not self._stepping:  # else the step does it, when it comes back
            closed(self.game)

    def _act(self, **arguments: Any) -> str:
        """Take one action: what the tool's calls run."""
        if self._over:
            return "The game is over; this action was not taken."
        action = self._action(arguments)
        if self._stepping:
            raise InfrastructureError(f"gymnasium:{self.id} is in a step that was given up")
        game, self._stepping = self.game, True
        try:
            with self._blamed(f"step({action!r:.200})", game):
                taken = call_contained(lambda: game.step(action))
                observation, reward, terminated, truncated, _ = taken
                earned = finite_sum([self._earned, _reward(reward)])
                over, cut_off = bool(terminated), bool(truncated)
        finally:
            late = game is not self.game or self._closed  # the step was given up
            self._stepping = self._stepping and late
            if late:
                closed(game)
        if late:
            return ""
        self._observation = observation
        self._earned = earned
        if over or cut_off:
            self._over = True
            self.end_episode(truncated=not over)
        return self._told()

    def _told(self) -> str:
        """What the policy is told of the observation."""
        return shortened(self.describe(self._observation), _MAX_CHARACTERS)

    @contextmanager
    def _blamed(self, what: str, game: Any = None) -> Iterator[None]:
        """Run code of the game's; what goes wrong there is of this episode alone.

        Raises:
            InfrastructureError: It raised; the next episode has a new game.
        """
        try:
            yield
        except Exception as error:
            self._broken = self._broken or game in (None, self.game)
            raise InfrastructureError(f"gymnasium:{self.id}: {what}: {described(error)}") from error

    def _action(self, arguments: Mapping[str, Any]) -> Any:
        space = self.game.action_space
        if isinstance(space, gymnasium.spaces.Dict):
            return spaces.value(space, arguments)
        given = arguments["action"]
        if self.actions is not None:
            assert isinstance(space, gymnasium.spaces.Discrete)
            given = int(space.start) + self.actions.index(given)
        return spaces.value(space, given)

    def _parameters(self) -> dict[str, Any]:
        """The JSON schema of the tool's arguments."""
        space = self.game.action_space
        if isinstance(space, gymnasium.spaces.Dict):
            return spaces.schema(space)
        action = spaces.schema(space)
        if self.actions is not None:
            action = {"type": "string", "enum": self.actions}
        elif said := section(self.game, "action space"):
            action["description"] = said
        return {"type": "object", "properties": {"action": action}, "required": ["action"]}

    def _check_spaces(self) -> None:
        actions, observations = self.game.action_space, self.game.observation_space
        if not spaces.is_supported(actions):
            raise ConfigError(
                f"gymnasium:{self.id} has the action space {actions!r:.200}; a call can give an "
                "action of Discrete, MultiDiscrete, MultiBinary, Box, Text, Dict and Tuple. Wrap "
                "the game in one whose actions are of these."
            )
        if self.actions is not None and not (
            isinstance(actions, gymnasium.spaces.Discrete) and len(self.actions) == actions.n
        ):
            raise ConfigError(
                f"gymnasium:{self.id}: actions names {len(self.actions)} actions, and the action "
                f"space is {actions}; name each action of a Discrete space, in order, or none."
            )
        shown = type(self).describe is GymnasiumEnvironment.describe
        if (
            shown
            and self.game.render_mode != "ansi"
            and spaces.numbers(observations) > _MAX_NUMBERS
        ):
            raise ConfigError(
                f"gymnasium:{self.id}: an observation is {spaces.numbers(observations)} numbers "
                f"({observations!r:.200}), which no text can show; subclass "
                "gymnast.envs.adapters.gymnasium.GymnasiumEnvironment and override describe."
            )


def _reward(value: Any) -> float:
    """The reward of a step.

    Raises:
        ValueError: It is not a finite number.
    """
    try:
        return finite_number(value)
    except ValueError as error:
        raise ValueError(f"the reward is {error}") from error


@cache
def game(id: str) -> type[GymnasiumEnvironment]:
    """The class of environments in which the game of an id is played.

    Raises:
        UnknownEnvironment: Gymnasium knows no such id.
    """
    spec_of(id)
    about = f"Play {id}, a game of Gymnasium's."
    return make_class(GymnasiumEnvironment, "gymnasium", id, game, id=id, __doc__=about)
