"""What both sides play: the rows, the tool, and every token that the policy will sample.

The model is random, so its turns are fixed beforehand: a `Script` names the next turn's tokens as a
function of the context (its row, its member, the turns it holds). Both sides force these tokens
where they sample, at the price of sampling, so that they play the same conversations.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from template_corpus import load, tokenizer_for

TEMPLATE = "trl/qwen3"
PROMPT_TOKENS, TURN_TOKENS, OBSERVED_TOKENS = 474, 64, 77
GROUPS, GROUP_SIZE = 2, 8
WORD = " the"  # one token, however often it is repeated
CALL_TEXT = '<tool_call>\n{"name": "lookup", "arguments": {"query": "'


def lookup(query: str, wait_ms: int):  # type: ignore[no-untyped-def]
    """Look a note up.

    Args:
        query: What to look for.
        wait_ms: How long the answer may take.
    """
    # No return annotation: Transformers would show it to the model, and Gymnast does not, so the
    # two prompts would differ.
    time.sleep(wait_ms / 1000)
    name = " ".join(query.split()[:3])
    return f"{name}:{WORD * _RESULT_WORDS[0]}"


_RESULT_WORDS = [0]  # set by `tokenizer()`: as many as make an observation of OBSERVED_TOKENS


@dataclass(frozen=True)
class Turn:
    """One call that the policy makes.

    Attributes:
        tokens: How many tokens it samples, the stop token included.
        wait_ms: How long the tool takes.
    """

    tokens: int = TURN_TOKENS
    wait_ms: int = 0


@dataclass(frozen=True)
class Play:
    """One episode: calls, then an answer.

    Attributes:
        calls: The turns that call the tool.
        answer_tokens: How many tokens the last turn has, its stop token included.
    """

    calls: tuple[Turn, ...]
    answer_tokens: int = TURN_TOKENS


@dataclass(frozen=True)
class Workload:
    """All episodes, by row and member.

    Attributes:
        tokenizer: Used by both sides.
        prompts: The user's message of each row; the rows differ.
        prompt_ids: The same messages as token ids.
        turns: The ids of every turn: `turns[row][member][turn]`.
    """

    tokenizer: Any
    prompts: list[str]
    prompt_ids: list[list[int]]
    turns: list[list[list[list[int]]]]

    @property
    def episodes(self) -> int:
        """How many there are."""
        return sum(map(len, self.turns))


def tokenizer() -> Any:
    """A small byte-level BPE with the tokens and the template of Qwen3."""
    made = tokenizer_for(next(found for found in load() if found.name == TEMPLATE))
    made.add_special_tokens({"pad_token": "<|endoftext|>"})
    wrapper = "\n<|im_start|>user\n<tool_response>\nrow 0 member0:\n</tool_response><|im_end|>\n"
    wrapper += "<|im_start|>assistant\n"
    _RESULT_WORDS[0] = OBSERVED_TOKENS - len(_encode(made, wrapper))
    return made


def equal_plays(turns: int, wait_ms: int = 0) -> list[list[Play]]:
    """Two groups of eight episodes with the same number of equal turns."""
    play = Play((Turn(wait_ms=wait_ms),) * turns)
    return [[play] * GROUP_SIZE for _ in range(GROUPS)]


def mixed_plays(seed: int = 0) -> list[list[Play]]:
    """Two groups of eight: turns geometric, 1 to 8; lengths log-normal; tools 20 to 500 ms."""
    draw = random.Random(seed)

    def turns() -> int:
        count = 1
        while count < 8 and draw.random() > 0.3:
            count += 1
        return count

    def tokens(least: int) -> int:
        return max(least, min(256, round(draw.lognormvariate(4.0, 0.6))))  # median 55

    def play() -> Play:
        calls = tuple(
            Turn(tokens(48), round(20 * 25 ** draw.random())) for _ in range(turns())
        )  # log-uniform waits
        return Play(calls, tokens(8))

    return [[play() for _ in range(GROUP_SIZE)] for _ in range(GROUPS)]


def workload(plays: Sequence[Sequence[Play]]) -> Workload:
    """Write the episodes' tokens."""
    made = tokenizer()
    prompts = [_prompt(made, row) for row in range(len(plays))]
    turns = [
        [_turns(made, play, row, member) for member, play in enumerate(group)]
        for row, group in enumerate(plays)
    ]
    return Workload(made, prompts, [prompt_ids(made, prompt) for prompt in prompts], turns)


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """A row as the template renders it."""
    ids: list[int] = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        tools=[lookup],
        add_generation_prompt=True,
        return_dict=False,
    )
    return ids


def _prompt(tokenizer: Any, row: int) -> str:
    start = f"Row {row}:"
    return start + WORD * (PROMPT_TOKENS - len(prompt_ids(tokenizer, start)))


def _turns(tokenizer: Any, play: Play, row: int, member: int) -> list[list[int]]:
    stop = tokenizer.eos_token_id
    word = _encode(tokenizer, WORD)
    turns = []
    for number, turn in enumerate(play.calls):
        head = _encode(tokenizer, f"{CALL_TEXT}row {row} member{member} turn {number}")
        tail = _encode(tokenizer, f'", "wait_ms": {turn.wait_ms}}}}}\n</tool_call>')
        filler = word * (turn.tokens - len(head) - len(tail) - 1)
        turns.append([*head, *filler, *tail, stop])
    turns.append([*(word * (play.answer_tokens - 1)), stop])
    return turns


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


class Script:
    """The next turn of every context; made anew for every run.

    Members of a group begin with one prompt: the first to ask becomes member 0, and so on. From its
    second turn on, an episode is recognised by the first turn in its context.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._rows = {tuple(ids): row for row, ids in enumerate(workload.prompt_ids)}
        self._begun: Counter[int] = Counter()
        self._stop = workload.tokenizer.eos_token_id

    def next_turn(self, context: Sequence[int]) -> list[int]:
        """The ids to sample after a context.

        Raises:
            LookupError: No episode has this context.
        """
        prompt, rest = tuple(context[:PROMPT_TOKENS]), list(context[PROMPT_TOKENS:])
        row = self._rows[prompt]
        if not rest:
            member = self._begun[row]
            self._begun[row] += 1
            return self._workload.turns[row][member][0]
        for turns in self._workload.turns[row]:
            if rest[: len(turns[0])] == turns[0]:
                return turns[rest.count(self._stop) // 2]  # an observation has a stop token too
        raise LookupError(f"no episode of row {row} has a context of {len(context)} tokens")
