"""Mixture: several environments as one, of which each episode plays one.

    Mixture({Arithmetic: 3, "gymnast/Python-v0": 1})

A row says in its column `environment` which one plays it; without a row, `reset` chooses one by the
weights. `MixtureOrder` is the order in which training goes through them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.rows import COLUMN
from gymnast.envs.environment.tokens.spaces import TokenIds
from gymnast.envs.records.episode import Info, Outcome
from gymnast.envs.registry import find, make
from gymnast.envs.rendering.renderer import Renderer
from gymnast.errors import ConfigError, DataError, shown
from gymnast.lookup import did_you_mean
from gymnast.numbers import is_finite

COUNTED = "environments/"  # how the metrics of one of the environments begin
EPISODES = "episodes"
_DRAWN = 64  # positions whose environments are drawn together

MakeEnvironment = Callable[[], Environment]


class MixtureOrder:
    """Which environment comes when: a seeded order without end, with any place of it at hand.

        order = MixtureOrder({"arithmetic": 3.0, "python": 1.0}, seed=0)
        order[1000]  # ("python", 251): the 1001st group plays python's 252nd row

    Each group draws its environment by the weights. The draws are stratified: 64 at a time, one in
    each 64th of the unit interval, in a random order, so that shares stay close to the weights.
    It has no state: a run that is resumed asks for the places where it was.

    Args:
        weights: By name; each above 0. They need not add up to 1.
        seed: Of the draws.
    """

    def __init__(self, weights: Mapping[str, float], *, seed: int) -> None:
        self._names = list(weights)
        shares = np.array(list(weights.values()), dtype=np.float64)
        self._ends = np.cumsum(shares / shares.sum())
        self._seed = seed
        self._counts = [np.zeros(len(shares), dtype=np.int64)]  # before each block of draws

    def __getitem__(self, position: int) -> tuple[str, int]:
        """The environment at a position, and how often it came before."""
        block, within = divmod(position, _DRAWN)
        while len(self._counts) <= block:
            drawn = self._block(len(self._counts) - 1)
            counts = np.bincount(drawn, minlength=len(self._names))
            self._counts.append(self._counts[-1] + counts)
        drawn = self._block(block)
        chosen = int(drawn[within])
        before = int(self._counts[block][chosen]) + int((drawn[:within] == chosen).sum())
        return self._names[chosen], before

    def _block(self, block: int) -> np.ndarray:
        """[64]: the environments of a block, by number."""
        rng = np.random.default_rng([self._seed, block])
        draws = (rng.permutation(_DRAWN) + rng.random(_DRAWN)) / _DRAWN
        return np.minimum(np.searchsorted(self._ends, draws, side="right"), len(self._names) - 1)


class Mixture(Environment):
    """Several environments, of which each episode plays one; all share one renderer.

        from gymnast.envs import Mixture

        env = Mixture({Arithmetic: 3, "gymnast/Python-v0": 1}, renderer, max_turns=4)
        env.reset(seed=0)                                        # one of them, by the weights
        env.reset(options={"row": {"environment": "Python", "prompt": ..., "answer": ...}})

    During an episode the mixture is the environment that plays: `tools`, `messages`, `row` and the
    hooks are that one's. The last `info` counts it in `metrics`, as `environments/NAME/episodes`.

    Args:
        environments: Weights by environment: a class, or what `make` takes as its name.
        renderer: Of all of them.
        names: What rows and metrics call them, in the same order; by default the names of their
            classes.
        **settings: Go to each of them; a `sandbox`, to those that use boxes.

    Attributes:
        weights: By name.
        members: The environments by name.
        playing: The name of the one that plays, or played last.

    Raises:
        ConfigError: There is none, a weight is not above 0, two have one name, or one is a mixture.
    """

    def __init__(
        self,
        environments: Mapping[str | type[Environment], float],
        renderer: Renderer | str | None = None,
        *,
        names: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(environments, Mapping):
            raise ConfigError(
                f"Mixture: must be weights by environment, as in {{A: 3, B: 1}}, got "
                f"{environments!r:.200}."
            )
        classes = [find(each) for each in environments]
        if any(issubclass(cls, Mixture) for cls in classes):
            raise ConfigError("Mixture: one of its environments is a Mixture; list those of both.")
        named = [cls.__name__ for cls in classes] if names is None else list(names)
        if len(named) != len(classes):
            raise ConfigError(
                f"Mixture: names must be one for each of {len(classes)} environments, got {named}."
            )
        weights = check_weights(list(zip(named, environments.values(), strict=True)))
        super().__init__(renderer, render_mode=settings.get("render_mode"))
        boxed = [cls for cls in classes if cls.sandbox_spec is not None] or classes
        boxless = {name: value for name, value in settings.items() if name != "sandbox"}
        made = [
            make(cls, self.renderer, **(settings if cls in boxed else boxless)) for cls in classes
        ]
        self._start(weights, dict(zip(named, made, strict=True)))

    @classmethod
    def of(cls, weights: Mapping[str, float], makers: Mapping[str, MakeEnvironment]) -> "Mixture":
        """A mixture of environments that functions make, all with one renderer.

        Args:
            weights: By name.
            makers: By the same names.
        """
        members = {name: make_env() for name, make_env in makers.items()}
        made = cls.__new__(cls)
        first = next(iter(members.values()))
        Environment.__init__(made, first.renderer, render_mode=first.render_mode)
        made._start(check_weights(list(weights.items())), members)
        return made

    def _start(self, weights: Mapping[str, float], members: dict[str, Environment]) -> None:
        self.weights, self.members = dict(weights), members
        self.max_turns = max(member.max_turns for member in members.values())
        lengths = [member.context_length for member in members.values()]
        self.context_length = None if None in lengths else max(n for n in lengths if n)
        self._enter(next(iter(members)))

    def _enter(self, name: str) -> None:
        """Become one of the environments."""
        self.playing = name
        self._episode_runner = self.members[name]._episode_runner

    def another(self, renderer: Renderer, **settings: Any) -> "Mixture":
        """A mixture of the same environments, with a renderer and settings that this one lacks.

        Raises:
            ConfigError: This one was made by `of`.
        """
        arguments, given = self._construction
        own = {**settings, **given}
        environments = arguments[0] if arguments else own.pop("environments", None)
        if environments is None:
            raise ConfigError("Mixture: one made by Mixture.of knows no others; call it again.")
        own.pop("renderer", None)
        return Mixture(environments, self.renderer or renderer, **own)

    def order(self, seed: int) -> MixtureOrder:
        """The order in which training goes through the environments."""
        return MixtureOrder(self.weights, seed=seed)

    def member_for(self, row: Mapping[str, Any]) -> str:
        """The name of the environment that plays a row.

        Raises:
            DataError: The row names none, or one that the mixture does not have.
        """
        known = ", ".join(self.members)
        if COLUMN not in row:
            raise DataError(
                f"the row has no {COLUMN!r}, which says which environment of the mixture plays it "
                f"({known}); its columns: {', '.join(map(str, row)) or '(none)'}. Name the column "
                f"that does (data.columns: {{{COLUMN}: ...}} in a run's YAML)."
            )
        name = row[COLUMN]
        if not isinstance(name, str) or name not in self.members:
            raise DataError(
                f"the row's {COLUMN!r} is {name!r:.200}, and the mixture has no such environment."
                f"{did_you_mean(name, self.members)} It has: {known}."
            )
        return name

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        """Begin an episode of the environment that the row names, without blocking."""
        await self._end_unfinished()
        gymnasium.Env.reset(self, seed=seed)
        given = dict(options or {})
        if given.get("row") is None:
            given["row"] = await self.sample_row(self.np_random)
        if seed is None:  # what has not been played yet has no seed of its own
            seed = int(self.np_random.integers(2**31))
        row = given["row"]
        self._enter(self.member_for(row) if isinstance(row, Mapping) else self.playing)
        return await self.members[self.playing].areset(seed=seed, options=given)

    async def astep(self, action: Any) -> tuple[TokenIds, float, bool, bool, Info]:
        """Take one action without blocking; see `Environment.astep`."""
        taken = await self.members[self.playing].astep(action)
        self._count(*taken[2:])
        return taken

    async def act(self, message: Mapping[str, Any]) -> Outcome:
        """Take one turn in messages; see `Environment.act`."""
        outcome = await self.members[self.playing].act(message)
        self._count(outcome.terminated, outcome.truncated, outcome.info)
        return outcome

    async def aclose(self) -> None:
        """Close all environments without blocking."""
        for member in self.members.values():
            await member.aclose()

    def close(self) -> None:
        """End the episode, if one is running, and close all environments."""
        for member in self.members.values():
            member.close()

    @property
    def max_boxes(self) -> int | None:
        """How many episodes of this process may have a box at once, whichever environments play."""
        numbers = [member.max_boxes for member in self.members.values()]
        return min((number for number in numbers if number is not None), default=None)

    # ---- hooks that are asked for outside an episode ----

    async def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of one of the environments, chosen by the weights."""
        shares = np.array(list(self.weights.values()))
        chosen = int(rng.choice(len(shares), p=shares / shares.sum()))
        name = list(self.weights)[chosen]
        row = await self.members[name]._episode_runner.sample_row(rng)
        return named_row(name, row) if isinstance(row, Mapping) else row

    def solve(self, row: Mapping[str, Any]) -> Any:
        """How the environment that plays the row solves it."""
        return self.members[self.playing].solve(row)

    async def _end_unfinished(self) -> None:
        runner = self._episode_runner
        runner.running = False
        await runner.clean_up()

    def _count(self, terminated: bool, truncated: bool, info: Info) -> None:
        """Say in the last info whose episode it was."""
        if terminated or truncated:
            info["metrics"][f"{COUNTED}{self.playing}/{EPISODES}"] = 1.0


def members_of(env: Environment) -> list[Environment]:
    """The environments that play an environment's episodes: those of a mixture, or itself."""
    return [*env.members.values()] if isinstance(env, Mixture) else [env]


def named_row(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of one of the environments of a mixture, which says whose it is.

    Raises:
        DataError: It has a column of that name already.
    """
    if row.get(COLUMN, name) != name:
        raise DataError(
            f"a row of {name} has a column {COLUMN!r} already, {row[COLUMN]!r:.100}, and in a "
            "mixture that column names the environment. Call it otherwise."
        )
    return {COLUMN: name, **row}


def check_weights(weights: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The weights of a mixture by name.

    Raises:
        ConfigError: There are none, one is not above 0, a name is none or comes twice.
    """
    if not weights:
        raise ConfigError("Mixture: is empty; name at least one environment.")
    checked: dict[str, float] = {}
    for name, weight in weights:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ConfigError(
                f"Mixture: a name must consist of letters, digits and _ . -, got {name!r:.100}."
            )
        if name in checked:
            raise ConfigError(
                f"Mixture: two environments have the name {name!r}; give each its own (names=...)."
            )
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not is_finite(weight) or weight <= 0:
            raise ConfigError(
                f"Mixture: the weight of {name} must be a number > 0, got {shown(weight, 100)}."
            )
        checked[name] = float(weight)
    if not is_finite(sum(checked.values())):
        raise ConfigError(
            "Mixture: the weights add up to more than a float holds; scale them down."
        )
    return checked
