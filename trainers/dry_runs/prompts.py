"""The prompts of a run's rows: one with its tokens, and how long they all are."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from gymnast.envs import Environment, Mixture
from gymnast.errors import PromptTooLong, TemplateError
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.data.rows import DatasetRows, RowSource
from gymnast.trainers.dry_runs.lost import difference, lost_of_messages, lost_of_tools
from gymnast.trainers.records.token_text import token_text
from gymnast.types import Message

MOST_ROWS = 256  # whose prompts are made
MOST_S = 20.0  # seconds in which they are made: an environment may start a box for each


@dataclass(frozen=True)
class PromptToken:
    """A token of a prompt.

    Attributes:
        id: Of the tokenizer.
        text: What it stands for, "" where it completes no character.
        special: Whether it is an added token, such as one that begins a turn.
    """

    id: int
    text: str
    special: bool


@dataclass(frozen=True)
class Prompt:
    """The prompt of a row, as the policy reads it.

    Attributes:
        row: The row's place in the order of training, from 0.
        environment: The name of the environment's class.
        tokens: All of them.
        left: How many tokens may follow.
        limits: The environment's, in tokens, by the names of its settings.
        messages: What it is made of.
        tools: The names of the tools that are offered.
        tools_text: What the chat template makes of their schemas; "" without tools.
        lost: What of tools and messages is not in it, in words.
        stop_ids: The tokens that end a turn.
    """

    row: int
    environment: str
    tokens: Sequence[PromptToken]
    left: int
    limits: Mapping[str, int]
    messages: Sequence[Message]
    tools: Sequence[str]
    tools_text: str
    lost: Sequence[str]
    stop_ids: Mapping[int, str]


@dataclass
class PromptScan:
    """The prompts of some rows.

    Attributes:
        rows: How many were made.
        of: How many rows there are; None where there is no end of them.
        first: That of the first row that fits; None where none does.
        longest: How many tokens the longest has.
        shortest: How many the shortest has.
        too_long: The places of rows whose prompts leave no token to act, with their lengths, None
            where it is not known.
        left: The fewest tokens that a prompt which fits leaves.
        lost: What prompts do not say of tools and messages, with the first row and how many.
    """

    rows: int = 0
    of: int | None = None
    first: Prompt | None = None
    longest: int = 0
    shortest: int = 0
    too_long: dict[int, int | None] = field(default_factory=dict)
    left: int | None = None
    lost: dict[str, tuple[int, int]] = field(default_factory=dict)

    def fits(self, row: int, tokens: int, left: int) -> None:
        """Count a prompt that leaves room to act."""
        self.shortest = min(self.shortest or tokens, tokens)
        self.longest = max(self.longest, tokens)
        self.left = left if self.left is None else min(self.left, left)

    def loses(self, row: int, lost: Sequence[str]) -> None:
        """Count what a prompt does not say."""
        for part in lost:
            first, count = self.lost.get(part, (row, 0))
            self.lost[part] = first, count + 1


def scan_prompts(
    env: gymnasium.Env[Any, Any], rows: RowSource, seed: int, *, most_s: float = MOST_S
) -> PromptScan:
    """Make the prompts of the first rows in the order of training, which is a random one.

    Args:
        env: One of the run's environments.
        rows: Of training.
        seed: Of the first step; the prompts are those of its episodes.
        most_s: No prompt is begun after so many seconds.

    Raises:
        UserCodeError: The environment's own code raised.
    """
    size = len(rows) if isinstance(rows, DatasetRows) else None
    found, started = PromptScan(of=size), time.monotonic()
    for place in range(MOST_ROWS if size is None else min(size, MOST_ROWS)):
        if place and time.monotonic() - started > most_s:
            break
        found.rows += 1
        options = {"row": rows.row(place), "branches": True}
        try:
            ids, info = env.reset(seed=derive(seed, "row", place), options=options)
        except PromptTooLong as error:
            found.too_long[place] = error.tokens
            found.longest = max(found.longest, error.tokens or 0)
            continue
        prompt = read_prompt(env, place, ids.tolist(), info)
        found.first = found.first or prompt
        found.fits(place, len(prompt.tokens), prompt.left)
        found.loses(place, prompt.lost)
    return found


def read_prompt(
    env: gymnasium.Env[Any, Any], row: int, ids: list[int], info: Mapping[str, Any]
) -> Prompt:
    """What an environment that was reset has begun with.

    Args:
        env: With wrappers or without.
        row: The row's place.
        ids: What `reset` returned.
        info: Likewise.
    """
    played = env.unwrapped
    assert isinstance(played, Environment), "a run's environments are no others"
    name, own = type(played).__name__, played
    if isinstance(played, Mixture):
        name, own = played.playing, played.members[played.playing]
    limits = {each: getattr(own, each) for each in ("context_length", "max_tokens")}
    renderer = played.renderer
    assert renderer is not None, "a run's environments have one"
    messages, tools = played.messages_of(0), played.tools_of(0)
    text = renderer.decode(ids)
    tools_text = ""
    if tools:
        try:
            tools_text = difference(text, renderer.decode(renderer.prompt(messages)))
        except TemplateError:  # it wants tools
            tools_text = text
    return Prompt(
        row,
        name,
        list(_tokens(renderer.tokenizer, ids)),
        int(info["tokens_left"]),
        {each: limit for each, limit in limits.items() if limit is not None},
        [*messages],
        [str(tool.get("function", tool).get("name")) for tool in tools],
        tools_text,
        [*lost_of_tools(tools_text, tools), *lost_of_messages(text, messages)],
        {number: renderer.decode([number]) for number in info["stop_ids"]},
    )


def _tokens(tokenizer: Any, ids: list[int]) -> Iterator[PromptToken]:
    read = token_text(tokenizer, ids)
    added = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    written, starts = read.text.encode(), [0, *read.ends]
    for number, start, end in zip(ids, starts, read.ends, strict=False):
        yield PromptToken(number, written[start:end].decode(), number in added)
