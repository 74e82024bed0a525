"""Worked turns: episodes on other rows, played by `solve`, which a prompt shows before its own.

They are played once in a process for each class and its construction arguments, by an environment
made for that purpose: its box, its `np_random` and its metrics are not those of any real episode.
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.rows import checked_row, without_name
from gymnast.envs.environment.solution import solve_episode
from gymnast.errors import ConfigError, DataError, NoSolution, TemplateError, UserCodeError
from gymnast.types import Message
from gymnast.visible import visible_logger

AnEnvironment = Any  # an `Environment`, whose module imports this one
logger = visible_logger(__name__)

SEED = 0  # of the rows, and of their episodes
_PLAYS = 3  # episodes that are played for one that is kept, at most
_DRAWS = 50  # rows that are drawn for one that is played, at most
_MOST_KEPT = 32  # entries of the cache
_LEADING = ("system", "developer")


@dataclass(frozen=True)
class WorkedEpisode:
    """A solved episode as a prompt shows it.

    Attributes:
        row: What it was played on.
        messages: Its conversation, without the system messages in front.
        reward: What it earned.
    """

    row: Mapping[str, Any]
    messages: tuple[Message, ...]
    reward: float

    @property
    def called(self) -> set[str]:
        """The tools that it calls."""
        calls = (call for message in self.messages for call in message.get("tool_calls") or ())
        return {call["function"]["name"] for call in calls}


def with_worked_turns(messages: list[Message], worked: Sequence[Message]) -> list[Message]:
    """A prompt with worked turns after its leading system messages."""
    begin = _leading(messages)
    return [*messages[:begin], *worked, *messages[begin:]]


async def worked_turns(env: AnEnvironment, row: Any) -> list[Message]:
    """The messages that an episode of this row shows before its question.

    All episodes show the same, but for those whose own row is among them: they show a spare one in
    its place.

    Raises:
        DataError: Too few rows have a solution.
        UserCodeError: A solution is wrong, or its reward is not above 0.
    """
    episodes = await _episodes(env)
    own = _text(row)
    others = [episode for episode in episodes if _text(episode.row) != own]
    shown = [message for each in others[: env.worked_turns] for message in each.messages]
    return copy.deepcopy(shown)  # what an episode does to its messages does not reach the next one


async def _play(env: AnEnvironment) -> list[WorkedEpisode]:
    """Play the episodes that `env` shows, and one to spare; those with tools not yet shown first.

    Episodes that call the same tools as earlier ones are kept back while others may call more.
    """
    wanted, shown, offered = env.worked_turns + 1, set[str](), set[str]()
    first: list[WorkedEpisode] = []
    kept_back: list[WorkedEpisode] = []
    player = _player(env)
    try:
        rows = _rows(player, env.worked_rows)
        for _ in range(_PLAYS * wanted):
            if len(first) == wanted or (offered <= shown and len(first) + len(kept_back) >= wanted):
                break
            row = await anext(rows, None)
            if row is None:
                break
            try:
                episode = await _solved(player, row)
            except NoSolution:
                continue
            offered |= player.tool_definitions.keys()
            new = bool(episode.called - shown) or offered <= shown
            (first if new else kept_back).append(episode)
            shown |= episode.called
    finally:
        await player.aclose()
    episodes = [*first, *kept_back][:wanted]
    if len(episodes) < env.worked_turns:
        raise DataError(
            f"{type(env).__name__}: worked_turns is {env.worked_turns}, but the number of "
            f"different rows with a solution is {len(episodes)}. Lower worked_turns, or pass "
            "worked_rows=[...]."
        )
    _warn_of_low_rewards(type(env).__name__, episodes)
    return _numbered(episodes)


def _player(env: AnEnvironment) -> AnEnvironment:
    """An environment made as this one was, without limits on tokens."""
    arguments, settings = env._construction
    player = type(env)(*arguments, **settings)
    player.worked_turns, player.rows = 0, env.rows
    player.max_tokens = player.context_length = None
    return player


async def _rows(player: AnEnvironment, given: Sequence[Any] | None) -> AsyncIterator[Any]:
    """The rows to be played, all different: those given, else what the environment draws."""
    if given is None and player.rows is None and type(player).sample_row is Hooks.sample_row:
        raise DataError(
            f"{type(player).__name__}: worked_turns has no rows to be played on: the environment "
            "has neither rows nor a sample_row of its own. Pass worked_rows=[...]."
        )
    rng, seen = np.random.default_rng(SEED), set[str]()
    number = 0
    while number < _DRAWS if given is None else number < len(given):
        row = await player._episode_runner.sample_row(rng) if given is None else given[number]
        number += 1
        if (text := _text(row)) not in seen:
            seen.add(text)
            number = 0 if given is None else number
            yield row


async def _solved(player: AnEnvironment, row: Any) -> WorkedEpisode:
    """Play one row's solution."""
    kept = checked_row(row, type(player).__name__)
    await player.areset(seed=SEED, options={"row": row})
    outcomes = await solve_episode(player)
    reward = sum(outcome.reward for outcome in outcomes)
    _check_reward(player, kept, reward, outcomes[-1].info)
    messages = player.messages[_leading(player.messages) :]
    if any("tools" in message for message in messages):
        raise ConfigError(
            f"worked_turns: {type(player).__name__}.respond changes the tools within an episode, "
            "so the episode that a prompt goes on with would have others than it was told; set "
            "worked_turns to 0"
        )
    return WorkedEpisode(kept, tuple(_followed(messages, player)), reward)


def _followed(messages: list[Message], player: AnEnvironment) -> list[Message]:
    """An episode after which a user may speak.

    Where roles have to alternate, some chat templates allow no user after what the environment said
    last, such as the result of a stop tool; for these, a last word of the assistant follows it.
    """
    if player.renderer is None or messages[-1]["role"] == "assistant":
        return messages
    try:
        player.renderer.prompt([*messages, {"role": "user", "content": "Go."}], player.tools)
    except TemplateError:
        return [*messages, {"role": "assistant", "content": "Done."}]
    return messages


def _check_reward(player: AnEnvironment, row: Any, reward: float, info: Mapping[str, Any]) -> None:
    """Refuse an episode that shows nothing good."""
    if info.get("no_reward") or reward <= 0:
        earned = "no reward (None)" if info.get("no_reward") else f"a reward of {reward:g}"
        raise UserCodeError(
            "solve",
            row,
            f"{type(player).__name__}.solve earned {earned}, and the episode ended "
            f"{info['stop_reason']}: worked turns show episodes with a reward above 0; mend solve "
            "or reward, or set worked_turns to 0",
            f"{row!r:.500}",
        )


def _warn_of_low_rewards(owner: str, episodes: Sequence[WorkedEpisode]) -> None:
    """Warn, once for all, of episodes that may not show the best."""
    if low := [episode for episode in episodes if episode.reward < 1]:
        logger.warning(
            "%s.solve earned a reward of %g; %d of %d worked turns earned less than 1: if an "
            "episode can earn more, solve must play that one (row: %.300r)",
            *(owner, low[0].reward, len(low), len(episodes), low[0].row),
        )


def _numbered(episodes: Sequence[WorkedEpisode]) -> list[WorkedEpisode]:
    """The same episodes with ids of nine letters and digits, none of them twice."""
    numbered, count = [], 0
    for episode in episodes:
        ids: dict[str, str] = {}
        messages = []
        for message in episode.messages:
            for call in message.get("tool_calls") or ():
                ids[call["id"]] = f"worked{count:03}"
                count += 1
            messages.append(_with_ids(message, ids))
        numbered.append(replace(episode, messages=tuple(messages)))
    return numbered


def _with_ids(message: Message, ids: Mapping[str, str]) -> Message:
    if message.get("tool_calls"):
        calls = [{**call, "id": ids[call["id"]]} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    if message.get("tool_call_id") in ids:
        return {**message, "tool_call_id": ids[message["tool_call_id"]]}
    return message


def _leading(messages: Sequence[Message]) -> int:
    """How many system messages are in front."""
    others = (i for i, message in enumerate(messages) if message["role"] not in _LEADING)
    return next(others, len(messages))


def _text(row: Any) -> str:
    """A text that equal rows share, whatever the order of their keys, in a mixture or not."""
    plain = without_name(row) if isinstance(row, Mapping) else row
    return json.dumps(plain, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON does not know: numbers and arrays of numpy as Python's."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else repr(value)


# ---- once in a process ----


@dataclass(frozen=True)
class _Entry:
    """Episodes that are played or being played, and for which environments."""

    key: tuple[Any, ...]
    episodes: "Future[list[WorkedEpisode]]"


_cache: list[_Entry] = []  # for environments to come; the oldest is dropped first
_own: WeakKeyDictionary[AnEnvironment, _Entry] = WeakKeyDictionary()  # of those there are


async def _episodes(env: AnEnvironment) -> list[WorkedEpisode]:
    """The episodes of an environment; the first that asks plays them, others wait for it."""
    key = (type(env), env.worked_turns, env.worked_rows, env.rows, *env._construction)
    while True:
        known = [_own[env], *_cache] if env in _own else _cache
        entry = next((entry for entry in known if _same(entry.key, key)), None)
        if entry is None:
            entry = _Entry(key, Future())
            _cache.append(entry)
            await _fill(entry, env)
        try:
            episodes = await asyncio.shield(asyncio.wrap_future(entry.episodes))
        except asyncio.CancelledError:
            if not entry.episodes.cancelled():  # it is this episode that is cancelled
                raise
        else:
            _own[env] = entry
            return episodes


async def _fill(entry: _Entry, env: AnEnvironment) -> None:
    """Play the episodes of an entry of the cache; one that fails is taken out again."""
    try:
        episodes = await _play(env)
    except BaseException as error:
        _cache[:] = [each for each in _cache if each is not entry]
        if isinstance(error, Exception):
            entry.episodes.set_exception(error)
        else:
            entry.episodes.cancel()
        raise
    entry.episodes.set_result(episodes)
    done = [each for each in _cache if each.episodes.done()]
    for old in done[: max(0, len(_cache) - _MOST_KEPT)]:
        _cache[:] = [each for each in _cache if each is not old]


def _same(one: Any, other: Any) -> bool:
    """Whether two construction arguments are the same, or equal values."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return bool(one == other)
    except Exception:  # arrays, say
        return False
