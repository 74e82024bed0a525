"""`gymnasium:ID`: Play a game of Gymnasium's, by calls of the tool `act`."""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator, registry

from gymnast.envs.adapters import spaces
from gymnast.envs.adapters.game_texts import instructions_of, section, without_escapes
from gymnast.envs.adapters.made_classes import MadeClass, make_class
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.episode import Turn
from gymnast.envs.tools.definition import Tool
from gymnast.envs.tools.json_schema import tool_of_schema
from gymnast.errors import ConfigError, InfrastructureError, UnknownEnvironment, first_line
from gymnast.lookup import did_you_mean
from gymnast.types import Message

_MAX_TURNS = 100  # of a game that has no limit of its own
_MAX_NUMBERS = 1000  # of an observation that is shown as numbers
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
        step_timeout_s: Seconds that a step of the game may take; None: no limit.
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
        step_timeout_s: float | None = None,
        max_turns: int | None = None,
        **settings: Any,
    ) -> None:
        self.make_keywords = dict(make or {})
        self.actions = None if actions is None else list(actions)
        self.step_timeout_s = step_timeout_s
        self.game = self._made()
        limit = self.game.spec.max_episode_steps if self.game.spec is not None else None
        if max_turns is None:
            max_turns = limit or _MAX_TURNS
        super().__init__(renderer, rows, max_turns=max_turns, **settings)
        self.instructions = instructions or instructions_of(self.game)
        self._check_spaces()
        self._observation: Any = None
        self._earned = 0.0  # in this turn
        self._over = self._stepping = False

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else a seed."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        return {"seed": int(rng.integers(_SEEDS))}

    def setup(self, row: Mapping[str, Any]) -> list[Message]:
        """Reset the game by the row's seed, or by the environment's where it has none."""
        if self._stepping:  # in a step that raised, or was given up and may never end
            self.game = self._made()
        seed = row.get("seed")
        if seed is None:
            seed = int(self.np_random.integers(_SEEDS))
        self._observation, _ = self.game.reset(seed=seed, options=row.get("options"))
        self._earned, self._over, self._stepping = 0.0, False, False
        parts = (
            self.instructions,
            self.describe(self._observation),
            "Act by calling the tool act.",
        )
        return [{"role": "user", "content": "\n\n".join(filter(None, parts))}]

    def describe(self, observation: Any) -> str:
        """Say what is observed: by default, the game's own text, or the observation's numbers."""
        if self.game.render_mode == "ansi":
            return without_escapes(str(self.game.render()))
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
        """The observation, exactly."""
        return repr(spaces.plain(self._observation))

    def close(self) -> None:
        """End the episode, if one is running, and close the game."""
        super().close()
        self.game.close()

    async def aclose(self) -> None:
        """Close without blocking."""
        await super().aclose()
        self.game.close()

    def _act(self, **arguments: Any) -> str:
        """Take one action: what the tool's calls run."""
        if self._over:
            return "The game is over; this action was not taken."
        action = self._action(arguments)
        if self._stepping:
            raise InfrastructureError(f"gymnasium:{self.id} is in a step that was given up")
        game, self._stepping = self.game, True
        try:
            observation, reward, terminated, truncated, _ = game.step(action)
        except Exception as error:
            raise InfrastructureError(
                f"gymnasium:{self.id}: step({action!r:.200}) raised {type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(reward):
            raise InfrastructureError(f"gymnasium:{self.id} gave the reward {reward!r}")
        if game is not self.game:  # the step was given up, and another episode has begun
            return ""
        self._observation = observation
        self._earned += float(reward)
        if terminated or truncated:
            self._over = True
            self.end_episode(truncated=not terminated)
        self._stepping = False
        return self.describe(observation)

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

    def _made(self) -> gymnasium.Env[Any, Any]:
        """The game, with its text for terminals where it has one."""
        try:
            point = _spec(self.id).entry_point
            creator = load_env_creator(point) if isinstance(point, str) else point
            modes = getattr(creator, "metadata", {}).get("render_modes", ())
            own = {"render_mode": "ansi"} if "ansi" in modes else {}
            keywords = {"disable_env_checker": True, **own, **self.make_keywords}
            made: gymnasium.Env[Any, Any] = gymnasium.make(self.id, **keywords)
        except UnknownEnvironment:
            raise
        except Exception as error:
            given = f" with {self.make_keywords!r:.300}" if self.make_keywords else ""
            raise ConfigError(
                f"gymnasium:{self.id} cannot be made{given}: {type(error).__name__}: "
                f"{first_line(error)}"
            ) from error
        if isinstance(made.unwrapped, Environment):
            raise ConfigError(f"gymnasium:{self.id} is one of Gymnast's own; write {self.id!r}.")
        return made

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


@cache
def game(id: str) -> type[GymnasiumEnvironment]:
    """The class of environments in which the game of an id is played.

    Raises:
        UnknownEnvironment: Gymnasium knows no such id.
    """
    _spec(id)
    about = f"Play {id}, a game of Gymnasium's."
    return make_class(GymnasiumEnvironment, "gymnasium", id, game, id=id, __doc__=about)


def _spec(id: str) -> EnvSpec:
    """What Gymnasium's registry says of an id, which may have a module in front."""
    module, _, name = id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        problem = first_line(error)
        problem += "" if problem.endswith((".", "?")) else "."
        meant = "" if "Did you mean" in problem else did_you_mean(name, registry)
        raise UnknownEnvironment(
            f"gymnasium:{id}: {problem}{meant} The module that registers an id stands before it: "
            "'gymnasium:ale_py:ALE/Pong-v5'."
        ) from error
