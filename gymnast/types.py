"""The nouns: the small frozen records that travel between environments, agents and trainers.

How one episode of two turns lies in a `Trajectory` (P prompt, A sampled action, O observation):

    ids         = P P P P  A A A  O O O O  A A
    action_mask = 0 0 0 0  1 1 1  0 0 0 0  1 1
    logprobs    = 0 0 0 0  x x x  0 0 0 0  x x
    turns       =          (4, 7)          (11, 13)

`ids` only ever grows at its end, and sampled ids are kept as they were sampled. Where a program has
the loop, an episode may have further contexts, each with a prompt of its own: a `Branch` is laid
out likewise. This file holds data only; what makes and uses it lives in `envs`, `agents` and
`trainers`.
"""

import operator
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import chain
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Required,
    TypedDict,
    TypeVar,
    get_type_hints,
)

import numpy as np
from annotated_types import Ge, Gt, Le

from gymnast.errors import UsageError

T = TypeVar("T")


class Message(TypedDict, total=False):
    """One chat message in OpenAI's shape. Plain dicts are welcome wherever this is taken."""

    role: Required[str]
    content: Any
    reasoning_content: str
    tool_calls: list[Any]
    tool_call_id: str
    name: str
    tools: list[Any]  # offered from here on, where an environment changes them


@dataclass(frozen=True)
class ToolCall:
    """One call the policy wrote.

    Attributes:
        id: Names the call; its result carries the same id.
        name: The tool's name, "" where it could not be read.
        arguments: The arguments by name, decoded from JSON.
        error: Why the call could not be read, or None.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The call in OpenAI's shape, with its arguments as an object."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class StopReason(StrEnum):
    """Why an episode ended. The first three terminate it, the others truncate it."""

    answered = "answered"
    stop_tool = "stop_tool"
    environment = "environment"
    max_turns = "max_turns"
    max_tokens = "max_tokens"
    context = "context"
    timeout = "timeout"
    error = "error"

    @property
    def terminated(self) -> bool:
        """Whether the task is over, rather than cut off by a limit (Gymnasium's meaning)."""
        return self in (StopReason.answered, StopReason.stop_tool, StopReason.environment)


@dataclass(frozen=True)
class Sampling:
    """How to sample one completion. The defaults sample the model's own distribution.

    The repetition penalty comes first, then temperature, top_k, top_p and min_p, each on the
    probabilities that those before it left, as in Transformers' `generate`.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token, whose log-probability is
            that at temperature 1 without filters.
        top_p: Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        top_k: Keep this many most likely tokens; 0 keeps all.
        min_p: Drop tokens less likely than this share of the likeliest one's probability.
        repetition_penalty: Divides (or, below zero, multiplies) the logits of tokens seen before.
        max_new_tokens: Sample at most this many tokens.
        stop_ids: Sampling ends after any of these ids, which is kept.
        seed: Makes the completion repeatable for equal logits; None draws a fresh one.

    Raises:
        UsageError: A value is out of its range.
    """

    temperature: Annotated[float, Ge(0)] = 1.0
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    top_k: Annotated[int, Ge(0)] = 0
    min_p: Annotated[float, Ge(0), Le(1)] = 0.0
    repetition_penalty: Annotated[float, Gt(0)] = 1.0
    max_new_tokens: Annotated[int, Ge(1)] = 512
    stop_ids: Sequence[int] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, sign, bound in _sampling_bounds():
            if not _COMPARES[sign](value := getattr(self, name), bound):
                raise UsageError(f"Sampling.{name}: must be {sign} {bound}, got {value}")


_COMPARES = {">=": operator.ge, ">": operator.gt, "<=": operator.le}


@cache
def _sampling_bounds() -> list[tuple[str, str, Any]]:
    """The (name, sign, bound) of every range that the fields of `Sampling` declare."""
    bounds: list[tuple[str, str, Any]] = []
    for name, hint in get_type_hints(Sampling, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            match mark:
                case Ge(bound):
                    bounds.append((name, ">=", bound))
                case Gt(bound):
                    bounds.append((name, ">", bound))
                case Le(bound):
                    bounds.append((name, "<=", bound))
    return bounds


class VersionSpan(NamedTuple):
    """Tokens that one version of the weights sampled: `ids[start:end]`."""

    start: int
    end: int
    version: int


@dataclass(frozen=True)
class Completion:
    """What an agent sampled for one context.

    Attributes:
        ids: The sampled token ids, the stop token included.
        logprobs: The log-probability of each id under the distribution it was sampled from.
        stop: "stop" after a stop id, "length" when `max_new_tokens` was reached.
        waited_s: Seconds the request waited before the model first computed for it.
        versions: Which weights sampled which of `ids`, in order; empty where the agent does not
            say. Several spans where the weights changed meanwhile.
        experts: Which experts the model chose for each token of the context and of `ids` but the
            last, [tokens, layers, chosen], -1 where the agent does not know; None where it keeps
            none (`trainer.replay_routing`).
    """

    ids: list[int]
    logprobs: list[float]
    stop: Literal["stop", "length"]
    waited_s: float = 0.0
    versions: Sequence[VersionSpan] = ()
    experts: np.ndarray | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<Completion tokens={len(self.ids)} stop={self.stop}>"


class Span(NamedTuple):
    """Where one action lies in `Trajectory.ids`: `ids[start:end]`."""

    start: int
    end: int


@dataclass(frozen=True)
class Branch:
    """A further context of an episode, which begins with a prompt of its own.

    Each attribute is what `Trajectory` has under its name, of this context alone; `prompt_length`
    tokens began it.
    """

    ids: list[int]
    action_mask: list[int]
    logprobs: list[float]
    prompt_length: int
    turns: list[Span]
    turn_rewards: list[float]
    messages: list[Message] = field(default_factory=list)
    tools: Sequence[Mapping[str, Any]] = ()
    versions: Sequence[VersionSpan] = ()
    token_rewards: Sequence[float] = ()
    states: Sequence[Hashable] = ()
    experts: np.ndarray | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_alignment(self)

    def __repr__(self) -> str:
        return (
            f"<Branch turns={len(self.turns)} tokens={len(self.ids)} "
            f"sampled={sum(self.action_mask)}>"
        )


@dataclass(frozen=True)
class Trajectory:
    """The data of one finished episode; see the drawing at the top of this file.

    What is said of `ids`, turns and messages is that of the first context, which is the only one
    but where a program opened others.

    Attributes:
        ids: Prompt, actions and observations, in order.
        action_mask: 1 on every sampled token, 0 on every other; as long as `ids`.
        logprobs: The agent's log-probabilities, 0.0 where the mask is 0; as long as `ids`.
        prompt_length: How many of `ids` came from `reset`.
        turns: Where each action lies in `ids`, in order.
        turn_rewards: What each `step` returned; the last includes the episode's reward.
        stop_reason: Why the episode ended.
        terminated: Whether the task was over.
        truncated: Whether a limit cut it off.
        messages: The conversation in OpenAI's shape, JSON-serialisable.
        tools: The schemas of the tools that were offered at first, in OpenAI's shape; a message
            with `tools` changes them.
        versions: Which weights sampled which of `ids`, in order; each span lies within one turn.
            Empty where the agent does not say.
        token_rewards: How the reward of each turn is divided among its action tokens, 0.0 where
            the mask is 0; as long as `ids`, or empty where rewards are known by turn only.
        states: What each turn acted in, for estimators that compare turns with equal states; one
            a turn, None where it is not known, or empty. They can be hashed.
        reward_parts: The named parts of the reward, before they are weighted; empty where it has
            none.
        no_reward: Whether the environment's `reward` returned None: no number says how good the
            episode was, and it is left out of training and evaluations.
        metrics: Numbers about this episode: seconds by kind, calls, errors.
        row: The dataset row it began with.
        seed: The environment's seed.
        teacher_prompt_ids: The prompt as a teacher sees it, with the environment's hint; empty
            where a teacher sees what the policy sees, or where there is none.
        experts: Which experts the model chose for each of `ids` when it computed that token for the
            next action, [tokens, layers, chosen], -1 where it did not; or None. Not saved.
        branches: The further contexts, in the order in which they began.
        order: Of each action of the episode, in order of time, the context that it is in: 0, or 1
            for the first branch, and so on; empty where there are no branches.
    """

    ids: list[int]
    action_mask: list[int]
    logprobs: list[float]
    prompt_length: int
    turns: list[Span]
    turn_rewards: list[float]
    stop_reason: StopReason
    terminated: bool
    truncated: bool
    messages: list[Message] = field(default_factory=list)
    tools: Sequence[Mapping[str, Any]] = ()
    versions: Sequence[VersionSpan] = ()
    token_rewards: Sequence[float] = ()
    states: Sequence[Hashable] = ()
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    no_reward: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    teacher_prompt_ids: Sequence[int] = ()
    experts: np.ndarray | None = field(default=None, compare=False)

    branches: Sequence[Branch] = ()
    order: Sequence[int] = ()

    def __post_init__(self) -> None:
        _check_alignment(self)
        if self.branches or self.order:
            turns = {number: len(c.turns) for number, c in enumerate(self.contexts) if c.turns}
            assert Counter(self.order) == turns, "`order` names the context of every turn"

    @property
    def contexts(self) -> "Sequence[Trajectory | Branch]":
        """All of them: the trajectory itself, as the first one, and its branches."""
        return [self, *self.branches]

    @property
    def steps(self) -> int:
        """How many actions there are, in all contexts."""
        return sum(len(context.turns) for context in self.contexts)

    @property
    def tokens(self) -> int:
        """How many token ids there are, in all contexts."""
        return sum(len(context.ids) for context in self.contexts)

    @property
    def action_tokens(self) -> int:
        """How many tokens the policy sampled, in all contexts."""
        return sum(sum(context.action_mask) for context in self.contexts)

    @property
    def all_turn_rewards(self) -> list[float]:
        """What each `step` returned, in order of time."""
        return self.in_time([context.turn_rewards for context in self.contexts])

    @property
    def reward(self) -> float:
        """The sum of the rewards of all turns, in all contexts."""
        return float(sum(self.all_turn_rewards))

    def in_time(self, of_turns: Sequence[Sequence[T]]) -> list[T]:
        """What the contexts have for their turns, put into the order of time.

        Args:
            of_turns: For each context one value a turn.
        """
        if not self.order:
            return list(chain(*of_turns))  # those of one context
        left = [iter(values) for values in of_turns]
        return [next(left[context]) for context in self.order]

    def __repr__(self) -> str:
        contexts = f"contexts={1 + len(self.branches)} " if self.branches else ""
        return (
            f"<Trajectory reward={self.reward:g} stop_reason={self.stop_reason} {contexts}"
            f"turns={self.steps} tokens={self.tokens} sampled={self.action_tokens}>"
        )


def _check_alignment(context: Trajectory | Branch) -> None:
    ids, turns = len(context.ids), len(context.turns)
    lengths = (ids, len(context.action_mask), len(context.logprobs))
    assert len(set(lengths)) == 1, f"ids, action_mask, logprobs differ in length: {lengths}"
    assert turns == len(context.turn_rewards), "every turn has one reward"
    assert len(context.token_rewards) in (0, ids), "every token has one reward, or none"
    assert context.experts is None or len(context.experts) == ids, "every token has experts"
    assert len(context.states) in (0, turns), "every turn has one state, or none"
