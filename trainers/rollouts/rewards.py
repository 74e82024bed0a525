"""Reward functions besides the environment's own reward, from a config or from Python.

    rewards:
      - {function: my_rewards:brevity, weight: 0.5}
      - {function: my_rewards:judged, weight: 2.0}

    def brevity(trajectory):                  # sync: called on a thread of its own
        return -trajectory.action_tokens / 1000

    async def judged(trajectory):             # async: awaited
        if "answer" not in trajectory.row:
            return None                       # the episode is left out
        return await ask_a_judge(trajectory.messages, trajectory.row["answer"])

Keyword-only arguments are options, which stand beside the weight: `overlong`, for instance, has
`limit` and `buffer`. A rubric (`gymnast.envs.rubrics`) is named by its kind, with what it is made
with as options, `{function: exact, column: city}`, or by where it is: `my_rewards.py:polite`.

A function gets the whole `Trajectory`: messages, row, stop reason, token ids, turns, and further
contexts (`branches`) where there are any. All functions
run at once as soon as an episode ends, while other episodes go on; sync ones may run on several
threads at the same time. Their weighted sum is added to the reward of the last turn. Each value is
kept, unweighted, in `Trajectory.reward_parts` under the function's name, beside the environment's
parts ("environment", if it named none); a function that names parts of its own, by a mapping or a
`Score`, has one for each: "judged/polite". No function is called for an episode whose box the
policy broke: its reward is 0.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from gymnast.envs import Environment, Score, rubrics
from gymnast.envs.boxes.box import BROKEN
from gymnast.envs.environment.user_code import (
    Blame,
    call_hook,
    checked_number,
    checked_numbers,
    checked_sum,
)
from gymnast.errors import ConfigError
from gymnast.lookup import Names
from gymnast.threads import EpisodeThread
from gymnast.trainers.base.contexts import alone, together
from gymnast.trainers.base.key_hints import unknown_key
from gymnast.trainers.base.options import arguments_of, checked_options, options_of
from gymnast.trainers.base.settings import Positive
from gymnast.types import Trajectory

OWN = "environment"


def overlong(trajectory: Trajectory, *, limit: Positive, buffer: Positive) -> float:
    """A punishment that grows from 0 to -1 over the last tokens before a limit.

        0                                 up to limit - buffer action tokens
        (limit - buffer - tokens) / buffer      from there to the limit
        -1                                beyond

    The soft overlong punishment of DAPO (Yu et al. 2025, arXiv:2503.14476), eq. 13, of all action
    tokens of the episode.

    Args:
        trajectory: The episode.
        limit: From how many action tokens on the punishment is whole.
        buffer: Over how many before it the punishment grows; at most `limit`.

    Raises:
        ConfigError: The buffer is longer than the limit.
    """
    _check_overlong("overlong", limit, buffer)
    return max(-1.0, min(0.0, (limit - buffer - trajectory.action_tokens) / buffer))


def _check_overlong(section: str, limit: int, buffer: int) -> None:
    if buffer > limit:
        raise ConfigError(
            f"{section}.buffer: must be <= {limit}, the limit, got {buffer}: the punishment grows "
            "over the last `buffer` tokens before it"
        )


REWARDS: Names[Callable[..., Any]] = Names(
    "reward", "gymnast.rewards", {"overlong": overlong, **rubrics.KINDS}
)


@dataclass(frozen=True)
class Reward:
    """A reward function and its weight.

    Attributes:
        name: Names its part of the reward, and the function in errors.
        function: Maps a `Trajectory` to a finite number, to several by name, to a `Score`, or to
            None to leave the episode out; sync or async.
        weight: The number is multiplied by it.
    """

    name: str
    function: Callable[[Trajectory], Any]
    weight: float = 1.0


def load_rewards(named: Sequence[tuple[str, float, Mapping[str, Any]]]) -> list[Reward]:
    """Import reward functions.

    Args:
        named: A name, a weight and options each: ("module:function", 0.5, {}).

    Raises:
        ConfigError: One cannot be imported or does not take its options, or two have one name.
        UserCodeError: A module raised while it was imported.
    """
    rewards: dict[str, Reward] = {}
    for index, (path, weight, options) in enumerate(named):
        field = f"rewards.{index}.function"
        found, options = REWARDS.find(path, field), dict(options)
        named_here = "name" not in options_of(found) and options.pop("name", None)
        name = named_here or path.rpartition(":")[2]
        if name in rewards or name == OWN:
            raise ConfigError(
                f"{field}: another part of the reward is called {name!r} already; give this one a "
                "name of its own (`name: ...`), or leave one of them out"
            )
        function = _with_options(found, options, f"rewards.{index}")
        rewards[name] = Reward(name, function, weight)
    return list(rewards.values())


def _with_options(
    function: Callable[..., Any], options: Mapping[str, Any], section: str
) -> Callable[[Trajectory], Any]:
    """A function with its options bound.

    Raises:
        ConfigError: It cannot be called with a trajectory; it has no such option, one has another
            kind of value, one is missing, or two do not go together.
    """
    if isinstance(function, type) and issubclass(function, rubrics.Rubric):
        return _rubric(function, options, section)
    if isinstance(function, type) and issubclass(function, Environment):
        raise ConfigError(
            f"{section}.function: must be a function of the trajectory or a rubric, and "
            f"{function.__name__} is an environment; write `def brief(trajectory): return "
            "-trajectory.action_tokens`, for example"
        )
    fields = options_of(function)
    _check_takes_a_trajectory(function, fields, section)
    _check_known(options, fields, section)
    if not fields:
        return function
    checked = checked_options(fields, options, section)
    if function is overlong:
        _check_overlong(section, **checked)
    return partial(function, **checked)


def _rubric(kind: type[rubrics.Rubric], options: Mapping[str, Any], section: str) -> rubrics.Rubric:
    """A rubric that is made with options.

    Raises:
        ConfigError: As for `_with_options`.
    """
    fields = arguments_of(kind)
    _check_known(options, fields, section)
    try:
        return kind(**checked_options(fields, options, section))
    except ConfigError as error:
        raise ConfigError(f"{section}: {error}") from error


def _check_known(options: Mapping[str, Any], fields: Iterable[str], section: str) -> None:
    known = ["function", "weight", "name", *fields]
    lines = [
        f"{unknown_key(section, name, known)} (got {value!r:.100})"
        for name, value in options.items()
        if name not in fields
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def _check_takes_a_trajectory(
    function: Callable[..., Any], options: Iterable[str], section: str
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions that are written in C
        return
    try:
        signature.bind(None, **dict.fromkeys(options))
    except TypeError:
        raise ConfigError(
            f"{section}.function: must take one argument, the trajectory, and takes {signature}; "
            "options are keyword-only: (trajectory, *, scale: float = 1.0)"
        ) from None


async def add_rewards(trajectory: Trajectory, rewards: Sequence[Reward]) -> Trajectory | None:
    """Score an episode; None if a function, or the environment's `reward`, returned None.

    Args:
        trajectory: With the environment's own reward.
        rewards: All are called at once.

    Raises:
        ConfigError: Two parts of the reward have one name, one of which would be lost.
        UserCodeError: A function raised, or its result or the environment's reward is not a finite
            number. `hook` is the function's name, or "environment".
        InfrastructureError: A function raised one.
    """
    if trajectory.no_reward:
        return None
    own = trajectory.reward
    blame = Blame("rewards", OWN, trajectory.row)
    if not math.isfinite(own):
        raise blame.error(f"the environment's reward is {own!r}; it must be a finite number")
    for name, part in trajectory.reward_parts.items():
        if not math.isfinite(part):
            raise blame.error(f"the part {name!r} is {part!r}; it must be a finite number")
    if not rewards or trajectory.metrics.get(BROKEN):
        return trajectory
    _check_names(trajectory, rewards)
    added = await scored(trajectory, rewards)
    if added is None:
        return None
    parts = {**(trajectory.reward_parts or {OWN: own}), **added.parts}
    metrics = {**trajectory.metrics, **added.metrics}
    whole = _with_added(trajectory, added.reward)
    last = Blame("rewards", rewards[-1].name, trajectory.row)
    checked_sum(whole.all_turn_rewards, last, "the environment's reward and those of the functions")
    return replace(whole, reward_parts=parts, metrics=metrics)


class Scored(NamedTuple):
    """What reward functions say of an episode.

    Attributes:
        reward: The weighted sum.
        parts: What each returned, unweighted.
        metrics: What they report beside it.
    """

    reward: float
    parts: Mapping[str, float]
    metrics: Mapping[str, float]


async def scored(trajectory: Trajectory, rewards: Sequence[Reward]) -> Scored | None:
    """Call reward functions, all at once; None if one returned None.

    Raises:
        UserCodeError, InfrastructureError: As for `add_rewards`.
    """
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(_outcome(reward, trajectory)) for reward in rewards]
    outcomes = [call.result() for call in calls]
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    if any(score is None for score in outcomes):
        return None
    pairs = list(zip(rewards, outcomes, strict=True))
    total = 0.0
    for reward, score in pairs:
        blame = Blame("rewards", reward.name, trajectory.row)
        what = f"the rewards of the functions, each times its weight, here {reward.weight:g},"
        total = checked_sum([total, reward.weight * score.reward], blame, what)
    return Scored(
        total,
        {name: value for _, score in pairs for name, value in score.parts.items()},
        {name: value for _, score in pairs for name, value in score.metrics.items()},
    )


def _with_added(trajectory: Trajectory, added: float) -> Trajectory:
    """With another number added to the reward of the last turn, in whichever context it is."""
    contexts = alone(trajectory)
    last = trajectory.order[-1] if trajectory.order else 0
    context = contexts[last]
    turn_rewards = list(context.turn_rewards)
    turn_rewards[-1] += added
    token_rewards = list(context.token_rewards)
    start, end = context.turns[-1]
    if token_rewards and end > start:
        token_rewards[end - 1] += added
    contexts[last] = replace(context, turn_rewards=turn_rewards, token_rewards=token_rewards)
    return together(trajectory, contexts)


def _check_names(trajectory: Trajectory, rewards: Sequence[Reward]) -> None:
    """Check that no reward function has the name of another, or of a part by the environment."""
    taken = {name.partition("/")[0] for name in trajectory.reward_parts} or {OWN}
    for reward in rewards:
        if reward.name in taken:
            raise ConfigError(
                f"rewards: another part of the reward is called {reward.name!r} already; rename "
                "the function, or what the environment's `reward` returns"
            )
        taken.add(reward.name)


async def _outcome(reward: Reward, trajectory: Trajectory) -> Any:
    """The `Score`, None, or the exception, which is returned so that it cancels no others."""
    blame = Blame("rewards", reward.name, trajectory.row)
    thread = EpisodeThread(f"gymnast-reward-{reward.name}")
    function, named = reward.function, isinstance(reward.function, rubrics.Rubric)
    if isinstance(function, rubrics.Rubric):
        function = partial(function.scored, name=reward.name)
    try:
        value = await call_hook(function, trajectory, thread=thread, blame=blame)
        if value is None:
            return None
        return _score(value, "" if named else reward.name, blame)
    except Exception as error:
        return error
    finally:
        thread.stop()


def _score(value: Any, name: str, blame: Blame) -> Score:
    """What a function returned, with whole names.

    Raises:
        UserCodeError: It is no finite number, mapping of such or `Score`.
    """
    if not isinstance(value, Score | Mapping):
        return Score({name: checked_number(value, blame)})
    score = value if isinstance(value, Score) else Score(value)
    parts = checked_numbers(score.parts, blame)
    checked_sum(parts.values(), blame, "the parts of the reward")
    metrics = checked_numbers(score.metrics, blame)
    return Score({"/".join(filter(None, (name, part))): parts[part] for part in parts}, metrics)
