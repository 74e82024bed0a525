"""Calling reward functions on saved episodes; writing these with their new rewards.

A function is given and called as in `rewards` of a YAML (`trainers/rollouts/rewards.py`), with the
whole saved `Trajectory`. What is not saved it cannot ask for: the environment and its box, the
`Episode` with what tools returned, and `Trajectory.experts`. As in a run, no function is called for
an episode whose box the policy broke: its reward is 0.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gymnast.errors import ConfigError, UserCodeError, shown
from gymnast.numbers import is_finite
from gymnast.trainers.base.contexts import alone, together
from gymnast.trainers.inspecting.cause import BROKEN
from gymnast.trainers.inspecting.index import Entry, load_all
from gymnast.trainers.rollouts.rewards import Reward, Scored, load_rewards, scored
from gymnast.trainers.saving.rollout_files import SavedTrajectory, write_as_saved
from gymnast.types import Trajectory

NOT_SAVED = (
    "a reward function gets a Trajectory (messages, row, turns, tokens): of an episode nothing "
    "else is saved, no Episode with what tools returned, no environment and no box; `gymnast "
    "replay` plays it again in its environment"
)
AT_ONCE = 64  # episodes whose functions are called at the same time


@dataclass(frozen=True)
class Rescored:
    """A saved episode with its reward before and after.

    Attributes:
        entry: The episode.
        old: The saved reward; None where it has none.
        new: The new one; None where a function returned None, or raised.
        scored: What the functions said, where all gave a number.
        failure: Why one raised; "" where none did.
        has_tokens: Whether token ids are saved of it.
    """

    entry: Entry
    old: float | None
    new: float | None
    scored: Scored | None
    failure: str = ""
    has_tokens: bool = True


def named_rewards(given: Sequence[str]) -> list[Reward]:
    """Reward functions as a command line names them.

    Args:
        given: "file.py:function", or in YAML as in `rewards`: "{function: exact, column: city}".

    Raises:
        ConfigError: One cannot be read, imported, or called with an episode.
        UserCodeError: A module raised while it was imported.
    """
    named: list[tuple[str, float, dict[str, Any]]] = []
    for index, text in enumerate(given):
        options = _options(text)
        function, weight = options.pop("function", None), options.pop("weight", 1.0)
        if not isinstance(function, str):
            raise ConfigError(
                f"reward: must be file.py:function, or {{function: file.py:function, weight: 0.5}},"
                f" got {text!r}"
            )
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not is_finite(weight):
            raise ConfigError(
                f"rewards.{index}.weight: must be a finite number, such as 0.5, got {shown(weight)}"
            )
        named.append((function, float(weight), options))
    return load_rewards(named)


def _options(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"function": text}
    try:
        read = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # an int of 5,000 digits, say
        raise ConfigError(f"reward: {text!r} is no YAML: {' '.join(str(error).split())}") from error
    return dict(read) if isinstance(read, dict) else {}


async def rescore(
    entries: Iterable[Entry],
    rewards: Sequence[Reward],
    *,
    add: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> list[Rescored]:
    """Grade saved episodes anew.

    Args:
        entries: In the order of their index.
        rewards: The functions.
        add: Whether their weighted sum is added to the saved reward, and does not replace it; an
            episode without a saved reward then has no new one.
        on_progress: Called with how many are graded.

    Returns:
        One for each entry, in order.

    Raises:
        DataError: A file cannot be read.
        UserCodeError: The first one, if a function raised in every episode.
    """
    results: list[Rescored] = []
    errors: list[UserCodeError] = []

    async def grade(entry: Entry, saved: SavedTrajectory) -> Rescored:
        has_tokens = bool(saved.trajectory.ids)
        broken = saved.trajectory.metrics.get(BROKEN)
        try:
            played = _as_played(saved.trajectory)
            found = Scored(0.0, {}, {}) if broken else await scored(played, rewards)
        except UserCodeError as error:
            errors.append(error)
            return Rescored(entry, entry.reward, None, None, _said(error), has_tokens)
        if found is None or (add and entry.reward is None):
            return Rescored(entry, entry.reward, None, None, "", has_tokens)
        base = (entry.reward or 0.0) if add else 0.0
        new = base + found.reward
        if math.isinf(new) and math.isfinite(base):
            errors.append(_too_large(rewards[-1].name, found.reward, played.row))
            return Rescored(entry, entry.reward, None, None, _said(errors[-1]), has_tokens)
        return Rescored(entry, entry.reward, new, found, "", has_tokens)

    loaded = load_all(entries)
    while some := [pair for _, pair in zip(range(AT_ONCE), loaded, strict=False)]:
        results += await asyncio.gather(*(grade(entry, saved) for entry, saved in some))
        if on_progress is not None:
            on_progress(len(results))
    if errors and len(errors) == len(results):
        if "'Trajectory' object has no attribute" in str(errors[0]):
            errors[0].add_note(NOT_SAVED)
        raise errors[0]
    return results


def _as_played(trajectory: Trajectory) -> Trajectory:
    """As reward functions get it: without what other functions said of it."""
    return replace(trajectory, no_reward=False, reward_parts={})


def _too_large(name: str, added: float, row: Mapping[str, Any]) -> UserCodeError:
    problem = f"rewards.{name}: {added:g} and the saved reward add up to more than a float holds"
    return UserCodeError(name, row, problem, shown(row, 500))


def _said(error: UserCodeError) -> str:
    """What a function raised."""
    return (str(error).splitlines() or [""])[0]


def write_rescored(path: str | Path, rescored: Sequence[Rescored], *, add: bool = False) -> int:
    """Write the episodes with their new rewards, as a file of rollouts.

    The new reward is that of the last turn, and others are 0; with `add`, it is added there. Groups
    are numbered anew; advantages, which were made of other rewards, are left out, and so are
    episodes in which a function raised.

    Args:
        path: The file, ending in .parquet; one that is there is replaced.
        rescored: As `rescore` returned them.
        add: As it was for `rescore`.

    Returns:
        How many were written.

    Raises:
        ConfigError: The ids are of different tokenizers, or there is nothing to write.
        DiskFull: There is no room for it; what was there before is untouched.
    """
    graded = {each.entry: each for each in rescored if not each.failure}
    if not graded:
        raise ConfigError(f"{path}: is not written: there is no episode with a new reward")
    tokenizers = {entry.load().tokenizer for entry in _firsts(graded)}
    if len(tokenizers) > 1:
        raise ConfigError(
            f"{path}: is not written: a file holds the ids of one tokenizer, and these episodes "
            f"have those of {len(tokenizers)}; take fewer files (--step)"
        )
    write_as_saved(path, _regraded(graded, add), tokenizers.pop(), tokens=0)
    return len(graded)


def _firsts(graded: Iterable[Entry]) -> list[Entry]:
    """The first episode of each file."""
    return list({entry.file.name: entry for entry in reversed(list(graded))}.values())


def _regraded(graded: dict[Entry, Rescored], add: bool) -> Iterator[SavedTrajectory]:
    groups: dict[tuple[str, int], int] = {}
    members: dict[int, int] = {}
    for entry, saved in load_all(graded):
        group = groups.setdefault((entry.file.name, saved.group), len(groups))
        member = members[group] = members.get(group, -1) + 1
        branches = [replace(branch, advantages=None) for branch in saved.branches]
        yield replace(
            saved,
            trajectory=_with_reward(saved.trajectory, graded[entry], add),
            advantages=None,
            group=group,
            member=member,
            branches=branches,
        )


def _with_reward(trajectory: Trajectory, graded: Rescored, add: bool) -> Trajectory:
    contexts = alone(trajectory)
    last = trajectory.order[-1] if trajectory.order else 0
    for number, context in enumerate(contexts):
        turn_rewards = list(context.turn_rewards) if add else [0.0] * len(context.turn_rewards)
        if number == last and turn_rewards and graded.scored is not None:
            turn_rewards[-1] += graded.scored.reward
        contexts[number] = replace(context, turn_rewards=turn_rewards, token_rewards=())
    found = graded.scored
    kept = trajectory.reward_parts if add else {}
    return replace(
        together(trajectory, contexts),
        no_reward=graded.new is None,
        reward_parts={**kept, **(found.parts if found else {})},
        metrics={**trajectory.metrics, **(found.metrics if found else {})},
    )
