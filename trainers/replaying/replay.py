"""One saved episode played again: the same row, seed and actions, in its environment.

Where its tokens are saved and the run's tokenizer is the one that they are of, the actions are the
token ids; otherwise they are the messages. What depends on more than row, seed and actions differs:
clocks, unseeded randomness, services, programs whose requests come as they like. A hook that asks
the agent (`ask_agent`) cannot be answered, since what it was told is not saved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gymnast.envs import Environment
from gymnast.envs.mixture import members_of
from gymnast.errors import CannotReplay
from gymnast.trainers.conversations.play import play_messages
from gymnast.trainers.inspecting.index import Entry
from gymnast.trainers.replaying.difference import Difference, first_difference, goes_on
from gymnast.trainers.replaying.stage import Stage
from gymnast.trainers.reporting.shown_episodes import first_action
from gymnast.trainers.rollouts.one_episode import rollout
from gymnast.trainers.rollouts.rewards import add_rewards
from gymnast.types import Completion, Message, Sampling, Trajectory


class _OverError(Exception):
    """The environment asks for a turn more than was saved."""


@dataclass(frozen=True)
class Replayed:
    """An episode that was played again.

    Attributes:
        entry: The saved one.
        in_tokens: Whether its actions were token ids, not messages.
        note: What may make it differ, or why messages were taken; "" where there is nothing to say.
        difference: What differs first; None: it is the same.
        found: The episode as it was played now; None where it went on beyond the saved one.
    """

    entry: Entry
    in_tokens: bool
    note: str
    difference: Difference | None
    found: Trajectory | None


async def replay(entry: Entry, stage: Stage) -> Replayed:
    """Play a saved episode again and compare.

    Raises:
        CannotReplay: Not enough of it is saved.
        UserCodeError: A hook of the environment raised.
        InfrastructureError: What the environment runs on broke.
    """
    trajectory = entry.load()
    saved, note = trajectory.trajectory, ""
    _check(entry, saved)
    in_tokens = bool(saved.ids) and stage.tokenizer is not None
    if in_tokens and trajectory.tokenizer not in (None, stage.mark):
        in_tokens = False
        note = "in messages: its tokens are of another tokenizer than the run's model has now"
    elif not in_tokens:
        why = "no run says the tokenizer of its tokens" if saved.ids else "it has no tokens"
        note = f"in messages: {why}"
    env = stage.make_env(entry)
    note = "; ".join(filter(None, [note, _may_differ(env)]))
    script = _Tokens(saved) if in_tokens else _Messages(saved)
    try:
        found = await script.play(env, saved)
    except _OverError:
        return Replayed(entry, in_tokens, note, goes_on(saved, script.seen), None)
    finally:
        env.close()
    scored = await add_rewards(found, stage.rewards)
    found = replace(found, no_reward=True) if scored is None else scored
    decode = stage.tokenizer.decode if in_tokens else None
    return Replayed(entry, in_tokens, note, first_difference(saved, found, decode), found)


def _check(entry: Entry, saved: Trajectory) -> None:
    if not saved.steps:
        raise CannotReplay(f"{entry.id}: cannot be replayed: it has no actions")
    if lost := saved.metrics.get("program/unreceived"):
        raise CannotReplay(
            f"{entry.id}: cannot be replayed: its program never read {lost:g} of its turns, and "
            "which tokens these are is not saved"
        )


def _may_differ(env: Any) -> str:
    """Why an environment may not do the same again; "" where nothing is known."""
    inner = env.unwrapped
    members = members_of(inner) if isinstance(inner, Environment) else []
    if any(type(each).next_request is not Environment.next_request for each in members):
        return (
            "a program has the loop: what it asks may depend on time, chance or services, and "
            "then differs"
        )
    return ""


class _Tokens:
    """Says the saved actions in token ids, in order of time."""

    def __init__(self, saved: Trajectory) -> None:
        each = [[c.ids[turn.start : turn.end] for turn in c.turns] for c in saved.contexts]
        self._actions = saved.in_time(each)
        self.seen: list[Any] = []

    async def play(self, env: Any, saved: Trajectory) -> Trajectory:
        return await rollout(env, self, saved.row, seed=saved.seed)

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """The action of the next turn, whatever the context is."""
        self.seen.append(len(context_ids))
        if len(self.seen) > len(self._actions):
            raise _OverError
        ids = self._actions[len(self.seen) - 1]
        stopped = bool(ids) and ids[-1] in sampling.stop_ids
        return Completion(list(ids), [0.0] * len(ids), "stop" if stopped else "length")


class _Messages:
    """Says the saved assistant messages, in order of time."""

    def __init__(self, saved: Trajectory) -> None:
        each = [
            [m for m in c.messages[first_action(c) :] if m["role"] == "assistant"]
            for c in saved.contexts
        ]
        self._actions: Sequence[Message] = saved.in_time(each)
        self.seen: list[Any] = []

    async def play(self, env: Any, saved: Trajectory) -> Trajectory:
        return await play_messages(env.unwrapped, self.speak, saved.row, seed=saved.seed)

    async def speak(
        self, messages: list[Message], tools: list[dict[str, Any]]
    ) -> Mapping[str, Any]:
        """The message of the next turn, whatever was said before."""
        self.seen.append(len(messages))
        if len(self.seen) > len(self._actions):
            raise _OverError
        return self._actions[len(self.seen) - 1]
