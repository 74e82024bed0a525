"""The cost of one turn in the renderer: reading the policy's call, writing the tool's result.

    python benchmarks/renderer.py                         the tables below
    python benchmarks/renderer.py --templates trl/qwen3   one template
    python benchmarks/renderer.py --tokenizer PATH        with a real tokenizer's vocabulary

Gymnast's `parse` and `observe` beside TRL's `parse_response` and `_get_tool_suffix_ids`, on the
same ids, taking turns in one process: milliseconds, median and 95th percentile. TRL is in the
`bench` extra; where it is not installed, or does not take a template, its columns say so. Calls
that are read wrongly are pointed out; `template_report.py` checks the rest.
"""

import argparse
import importlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import transformers
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gymnast.envs.rendering.renderer import Renderer
from gymnast.errors import TemplateError
from template_corpus import Template, load, tokenizer_for

TEMPLATES = (
    *("trl/qwen3", "trl/qwen2_5", "trl/qwen3_5_think", "trl/llama3_1", "trl/gptoss"),
    *("trl/glm4moe", "trl/gemma4", "trl/nemotron_3_nano", "trl/deepseekv3"),
)
TURN_TOKENS, RESULT_TOKENS = 200, 80
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the notes.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "What to look for."},
                    "limit": {"type": "integer", "description": "How many notes at most."},
                },
                "required": ["text"],
            },
        },
    }
]
TALK = [
    {"role": "system", "content": "You answer from the notes."},
    {"role": "user", "content": "What was decided about the garden wall?"},
]
PROSE = "the wall by the old garden was to be {n} metres long, and no higher than a gate; "


@dataclass(frozen=True)
class Turn:
    """One turn to measure on.

    Attributes:
        context_ids: What came before it.
        completion_ids: What the policy sampled, the stop token included.
        ids: Both.
        arguments: The arguments of the call in it.
        results: What tools answered, one text for each repetition: no two are the same.
    """

    context_ids: list[int]
    completion_ids: list[int]
    ids: list[int]
    arguments: dict[str, Any]
    results: list[str]


@dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Attributes:
        parse: Reads a turn's completion; gives the arguments of its call.
        observe: Gives the ids of a result after a turn.
    """

    parse: Callable[[Turn], Any]
    observe: Callable[[Turn, str], list[int]]


@dataclass(frozen=True)
class Times:
    """Milliseconds of every repetition."""

    parse: list[float]
    observe: list[float]

    @property
    def both(self) -> list[float]:
        """Of a whole turn."""
        return [a + b for a, b in zip(self.parse, self.observe, strict=True)]


def prose(tokenizer: Any, tokens: int, number: int = 0) -> str:
    """Text of about so many tokens; another number gives another text."""
    count = 1 + tokens // 32
    while True:
        text = "".join(PROSE.format(n=number + i) for i in range(count))
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) >= tokens:
            return str(tokenizer.decode(ids[:tokens])).strip()
        count *= 2


def call(text: str) -> dict[str, Any]:
    """An assistant's message with one call."""
    function = {"name": "search", "arguments": {"text": text, "limit": 5}}
    calls = [{"id": "call00001", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def answer(text: str) -> dict[str, Any]:
    """A tool's result."""
    return {"role": "tool", "name": "search", "tool_call_id": "call00001", "content": text}


def turn_of(
    renderer: Renderer, repetitions: int, *, context: int = 0, result: int = RESULT_TOKENS
) -> Turn:
    """A turn of `TURN_TOKENS` as the template itself writes it.

    Args:
        renderer: What writes it.
        repetitions: How many results it needs.
        context: At least so many tokens come before it.
        result: So many tokens has a result, about.
    """
    tokenizer = renderer.tokenizer
    talk = list(TALK)
    if context:
        talk[1] = {"role": "user", "content": prose(tokenizer, context)}
    before = renderer.prompt(talk, TOOLS)
    size = TURN_TOKENS
    while True:
        message = call(prose(tokenizer, size))
        shared, completion = _written(renderer, before, [*talk, message, answer("5")])
        if len(completion) <= TURN_TOKENS:
            break
        size -= len(completion) - TURN_TOKENS
    return Turn(
        shared,
        completion,
        shared + completion,
        message["tool_calls"][0]["function"]["arguments"],
        [prose(tokenizer, result, number) for number in range(1, repetitions + 1)],
    )


def _written(
    renderer: Renderer, before: list[int], talk: list[dict[str, Any]]
) -> tuple[list[int], list[int]]:
    """The context and the completion of the turn that comes after `before` in a conversation."""
    after = renderer.prompt(talk, TOOLS)
    shared = 0
    while shared < len(before) and before[shared] == after[shared]:
        shared += 1
    ends = (i for i in range(shared, len(after)) if after[i] in renderer.stop_ids)
    end = next(ends, len(after) - 1) + 1
    return before[:shared], after[shared:end]


def gymnast_side(renderer: Renderer) -> Side:
    """Gymnast's renderer."""

    def parse(turn: Turn) -> Any:
        message = renderer.parse(turn.completion_ids, context_ids=turn.context_ids, tools=TOOLS)
        return [one.arguments for one in message["tool_calls"]]

    def observe(turn: Turn, text: str) -> list[int]:
        return renderer.observe(turn.ids, [answer(text)], tools=TOOLS)

    return Side(parse, observe)


def trl_side(tokenizer: Any) -> Side | str:
    """What TRL's trainer does for a turn, or why it does not."""
    try:
        utils = importlib.import_module("trl.chat_template_utils")
        trainer = importlib.import_module("trl.trainer.grpo_trainer").GRPOTrainer
    except ImportError:
        return "not installed"
    try:
        utils.add_response_schema(tokenizer)
        keeps = utils.is_chat_template_prefix_preserving(tokenizer)
        chat_template = None if keeps else utils.get_training_chat_template(tokenizer)
    except ValueError:
        return "refused"
    itself = SimpleNamespace(
        _is_vlm=False,
        _tokenizer=tokenizer,
        processing_class=tokenizer,
        chat_template=chat_template,
        chat_template_kwargs={},
    )

    def parse(turn: Turn) -> Any:
        message = utils.parse_response(
            tokenizer, turn.completion_ids, prefix=turn.context_ids, tools=TOOLS
        )
        return [one["function"]["arguments"] for one in message.get("tool_calls", [])]

    def observe(turn: Turn, text: str) -> list[int]:
        return list(trainer._get_tool_suffix_ids(itself, [answer(text)]))

    return Side(parse, observe)


def measure(turn: Turn, sides: Sequence[Side]) -> list[Times]:
    """Time the sides in turn on every repetition, so that they meet the same noise."""
    times = [Times([], []) for _ in sides]
    for side in sides:  # the first call fills caches
        side.parse(turn)
        side.observe(turn, turn.results[0])
    for result in turn.results:
        for side, spent in zip(sides, times, strict=True):
            start = time.perf_counter()
            side.parse(turn)
            middle = time.perf_counter()
            side.observe(turn, result)
            end = time.perf_counter()
            spent.parse.append((middle - start) * 1e3)
            spent.observe.append((end - middle) * 1e3)
    return times


def quantiles(values: Sequence[float]) -> str:
    """Median and 95th percentile."""
    p95 = statistics.quantiles(values, n=20, method="inclusive")[-1]
    return f"{statistics.median(values):7.2f} {p95:6.2f}"


def milliseconds(function: Callable[[], Any], repetitions: int) -> float:
    """The median time of a call."""
    spent = []
    for _ in range(repetitions):
        start = time.perf_counter()
        function()
        spent.append((time.perf_counter() - start) * 1e3)
    return statistics.median(spent)


def tokenizer_of(template: Template, vocabulary: str | None) -> Any:
    """A tokenizer for a template: the corpus's small one, or with the vocabulary of a real one."""
    small = tokenizer_for(template)
    if vocabulary is None:
        return small
    real = AutoTokenizer.from_pretrained(vocabulary)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(real.backend_tokenizer.to_str()),
        bos_token=small.bos_token,
        eos_token=small.eos_token,
        clean_up_tokenization_spaces=False,
        name_or_path=template.name,
    )
    tokenizer.add_tokens(sorted(small.get_added_vocab()))
    tokenizer.chat_template = template.text
    return tokenizer


def compare(
    templates: Sequence[Template], repetitions: int, vocabulary: str | None
) -> Iterator[str]:
    """A line for every template."""
    head = "parse    p95 observe    p95"
    yield f"{'p50 and p95, in ms':20} | {'Gymnast':^30} | {'TRL':^30} | TRL /"
    yield f"{'template':20} |   {head:28} |   {head:28} | Gymnast"
    for template in templates:
        try:
            renderer = Renderer(tokenizer_of(template, vocabulary))
            turn = turn_of(renderer, repetitions)
        except TemplateError as error:
            yield f"{template.name:20} | refused: {str(error)[:60]}"
            continue
        ours, theirs = gymnast_side(renderer), trl_side(tokenizer_of(template, vocabulary))
        try:
            times = measure(turn, [ours] if isinstance(theirs, str) else [ours, theirs])
        except ValueError:
            theirs, times = "refused", measure(turn, [ours])
        line = f"{template.name:20} | {quantiles(times[0].parse)}  {quantiles(times[0].observe)}"
        if isinstance(theirs, str):
            yield f"{line} | {theirs:^30} |"
            continue
        ratio = statistics.median(times[1].both) / statistics.median(times[0].both)
        line += f" | {quantiles(times[1].parse)}  {quantiles(times[1].observe)} | {ratio:4.1f}"
        wrong = [
            name
            for name, side in (("Gymnast", ours), ("TRL", theirs))
            if side.parse(turn) != [turn.arguments]
        ]
        yield line + (f"  read wrongly by {', '.join(wrong)}" if wrong else "")


def once(templates: Sequence[Template], vocabulary: str | None) -> Iterator[str]:
    """What is done once a template, and once an episode."""
    yield "template             | Renderer(...), ms | prompt, ms (tokens)"
    for template in templates:
        tokenizer = tokenizer_of(template, vocabulary)
        start = time.perf_counter()
        try:
            renderer = Renderer(tokenizer)
            size = len(renderer.prompt(TALK, TOOLS))
        except TemplateError:
            continue
        built = (time.perf_counter() - start) * 1e3
        spent = milliseconds(lambda r=renderer: r.prompt(TALK, TOOLS), 20)  # type: ignore[misc]
        yield f"{template.name:20} | {built:17.0f} | {spent:10.2f} ({size})"


def scaling(template: Template, repetitions: int, vocabulary: str | None) -> Iterator[str]:
    """How a turn's cost grows with the context, and with the result."""
    renderer = Renderer(tokenizer_of(template, vocabulary))
    sides = [gymnast_side(renderer)]
    theirs = trl_side(tokenizer_of(template, vocabulary))
    sides += [] if isinstance(theirs, str) else [theirs]
    yield f"{template.name}: p50 in ms     | Gymnast parse, observe | TRL parse, observe"
    for context, result in [(1_000, 80), (32_000, 80), (1_000, 800), (1_000, 8_000)]:
        turn = turn_of(renderer, repetitions, context=context, result=result)
        columns = [
            f"{statistics.median(spent.parse):9.2f} {statistics.median(spent.observe):9.2f}"
            for spent in measure(turn, sides)
        ]
        yield f"context {context:6}, result {result:5} | " + "    | ".join(columns)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--templates", nargs="+", default=TEMPLATES, help="names in the corpus")
    options.add_argument("--repetitions", type=int, default=300)
    options.add_argument("--tokenizer", help="take the vocabulary of this tokenizer: folder or hub")
    chosen = options.parse_args(arguments)
    corpus = {template.name: template for template in load()}
    templates = [corpus[name] for name in chosen.templates]
    print(
        f"A turn of {TURN_TOKENS} tokens with one call, a result of {RESULT_TOKENS} tokens; "
        f"{chosen.repetitions} repetitions; Python {platform.python_version()}, "
        f"transformers {transformers.__version__}; "
        f"vocabulary: {chosen.tokenizer or 'a small byte-level BPE'}"
    )
    lines = (
        compare(templates, chosen.repetitions, chosen.tokenizer),
        once(templates, chosen.tokenizer),
        scaling(templates[0], max(2, chosen.repetitions // 10), chosen.tokenizer),
    )
    for table in lines:
        print()
        for line in table:
            print(line, flush=True)


if __name__ == "__main__":
    main()
