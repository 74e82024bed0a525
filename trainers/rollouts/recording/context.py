"""The record of one context, which grows turn by turn.

Most episodes have one; `episode.py` keeps those of an episode together.
"""

from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from gymnast.errors import ConfigError, shown
from gymnast.trainers.base.token_ids import shared_ids
from gymnast.types import Completion, Span, VersionSpan

T = TypeVar("T")


@dataclass
class ContextRecord:
    """What grows. Mask, logprobs and rewards by token are written out at its end."""

    ids: list[int] = field(default_factory=list)
    prompt_length: int = 0
    turns: list[Span] = field(default_factory=list)
    turn_logprobs: list["array[float]"] = field(default_factory=list)
    turn_rewards: list[float] = field(default_factory=list)
    divided: dict[int, list[float]] = field(default_factory=dict)  # rewards by token, by turn
    states: list[Hashable] = field(default_factory=list)
    stated: bool = False  # whether an info says what a turn acts in
    versions: list[VersionSpan] = field(default_factory=list)
    experts: list[np.ndarray] = field(default_factory=list)  # as they were chosen first

    def begin(self, prompt_ids: np.ndarray | Sequence[int]) -> None:
        """Begin with a prompt."""
        self.append_given(prompt_ids)
        self.prompt_length = len(self.ids)

    def append_given(self, ids: np.ndarray | Sequence[int]) -> None:
        """Append tokens that the policy did not sample."""
        self.ids += shared_ids(ids)

    def append_action(self, action: Completion) -> None:
        """Append an action."""
        start = len(self.ids)
        self.turns.append(Span(start, start + len(action.ids)))
        self.versions += [VersionSpan(start + a, start + b, v) for a, b, v in action.versions]
        if action.experts is not None:
            self.experts.append(action.experts[sum(map(len, self.experts)) :])
        self.ids += shared_ids(action.ids)
        self.turn_logprobs.append(array("d", action.logprobs))

    def enter(self, info: Mapping[str, Any]) -> None:
        """Keep what the next turn acts in, where the info says it; see `Trajectory.states`.

        Raises:
            ConfigError: It cannot be hashed.
        """
        self.stated = self.stated or "state" in info
        state = info.get("state")
        try:
            hash(state)
        except Exception as error:
            raise ConfigError(
                f"environment: info['state'] is {shown(state, 100)}, which cannot be hashed, so it "
                "cannot be compared; give a string, a number or a tuple of these"
            ) from error
        self.states.append(state)

    def pay(self, reward: float, info: Mapping[str, Any]) -> None:
        """Keep the reward of the turn, and how it is divided among the tokens of its action.

        Raises:
            ConfigError: `info["token_rewards"]` does not have one finite number a token.
        """
        given = info.get("token_rewards")
        if given is not None:
            start, end = self.turns[-1]
            self.divided[len(self.turn_rewards)] = _numbers(given, end - start)
        self.turn_rewards.append(reward)

    def leave_out(self, turn: int) -> None:
        """Make a turn one without action tokens: what was sampled in it stays, as if it were given.

        Its reward stays, too, at no token.
        """
        start, end = self.turns[turn]
        self.turns[turn] = Span(end, end)
        self.turn_logprobs[turn] = array("d")
        self.versions = [span for span in self.versions if not start <= span.start < end]
        if turn in self.divided:
            self.divided[turn] = []

    def fields(self) -> dict[str, Any]:
        """What `Trajectory` and `Branch` have of it, by name, but messages and tools."""
        return {
            "ids": self.ids,
            "action_mask": self._by_token([[1] * (end - start) for start, end in self.turns], 0),
            "logprobs": self._by_token(self.turn_logprobs, 0.0),
            "prompt_length": self.prompt_length,
            "turns": self.turns,
            "turn_rewards": self.turn_rewards,
            "versions": self.versions,
            "token_rewards": self._token_rewards(),
            "states": self.states if self.stated else (),
            "experts": self._all_experts(),
        }

    def _by_token(self, turns: Sequence[Sequence[T]], otherwise: T) -> list[T]:
        """What each turn has for its tokens, by token; the others get one value."""
        whole = [otherwise] * len(self.ids)
        for (start, end), values in zip(self.turns, turns, strict=True):
            whole[start:end] = values
        return whole

    def _token_rewards(self) -> list[float]:
        """How rewards are divided among tokens; [] where no info says so.

        What an info leaves of the reward of its turn is the last token's.
        """
        if not self.divided:
            return []
        turns = []
        for turn, ((start, end), reward) in enumerate(
            zip(self.turns, self.turn_rewards, strict=True)
        ):
            values = self.divided.get(turn, [0.0] * (end - start))
            if values:
                values[-1] += reward - sum(values)
            turns.append(values)
        return self._by_token(turns, 0.0)

    def _all_experts(self) -> np.ndarray | None:
        """Of every token, -1 for those that no action was sampled after; None where none are kept.

        Those of a token are those of the turn that computed it first: they made the keys and values
        that later turns go on with.
        """
        if not self.experts:
            return None
        known = np.concatenate(self.experts)
        rest = np.full((len(self.ids) - len(known), *known.shape[1:]), -1, dtype=known.dtype)
        return np.concatenate([known, rest])


def _numbers(given: Any, tokens: int) -> list[float]:
    """The rewards of the tokens of an action, from the info of an environment.

    Raises:
        ConfigError: It does not have one finite number a token.
    """
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        values = np.full(0, np.nan)
    if values.shape != (tokens,) or not np.isfinite(values).all():
        raise ConfigError(
            f"environment: info['token_rewards'] must have one finite number for each of the "
            f"{tokens} tokens of the action, got {shown(given, 100)}"
        )
    numbers: list[float] = values.tolist()
    return numbers
