"""Time of what is done with token ids, beside the model, by the length of the context.

    python benchmarks/long_context.py

CPU milliseconds, the median of several calls, at 2,048 to 65,536 tokens, and the exponent: the
slope of time against length, both in logarithms (0 is flat, 1 linear, 2 quadratic).
"""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gymnast.agents.engine.kv_cache import KVCache, Prefix, Row
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Renderer, tool
from gymnast.trainers.learner.policy.packing import pack

LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)
CALLS = 7

Work = Callable[[int], Callable[[], object]]


class Notes(Environment):
    """Has a tool that answers with a line."""

    @tool
    def note(self, text: str) -> str:
        """Write something down.

        Args:
            text: What.
        """
        return f"noted: {text}, and nothing else"


def parse(length: int) -> Callable[[], object]:
    """A turn's action is read after a context of this length."""
    renderer, action, schemas = _turn()
    context = _ids(length)
    return lambda: renderer.parse(action, context_ids=context, tools=schemas)


def observe(length: int) -> Callable[[], object]:
    """A turn's result is rendered after a context of this length."""
    renderer, action, schemas = _turn()
    context = [*_ids(length), *action]
    result: Any = {"role": "tool", "content": "5", "tool_call_id": "call00000", "name": "note"}
    return lambda: renderer.observe(context, [result], tools=schemas)


def step(length: int) -> Callable[[], object]:
    """A whole turn of an environment whose context has this length."""
    renderer, action, _ = _turn()
    environment = Notes(renderer, max_turns=10**6)
    environment.reset(options={"row": {"prompt": "Note the number 5. " * (length // 8)}})
    return lambda: environment.step(action)


def search(length: int) -> Callable[[], object]:
    """A context is sought among 16 that begin alike and 16 that do not."""
    cache, ids = KVCache(32, 32 * length), _ids(length)
    cache.tokens = np.stack([_ids(length) if i % 2 else _ids(length, i + 1) for i in range(32)])
    cache.tokens[1::4, length // 2 :] += 1
    cache.capacity = length
    cache.rows = [
        Row(index=i, prefix=Prefix(i, 0), length=length, computed=length) for i in range(32)
    ]
    return lambda: cache.longest_prefix(np.array(ids))


def pack_group(length: int) -> Callable[[], object]:
    """Eight trajectories are packed that share their first half."""
    half = _ids(length // 2)
    sequences = [[*half, *_ids(length // 2, member)] for member in range(8)]
    return lambda: pack(sequences)


def episode(length: int) -> Callable[[], object]:
    """All turns of an episode of this length, one after another; time is that of all."""
    renderer, action, _ = _turn()

    def play() -> None:
        environment = Notes(renderer, max_turns=10**6)
        environment.reset(options={"row": {"prompt": "Begin."}})
        tokens = 0
        while tokens < length // 4:  # a quarter, which is enough to see how it grows
            tokens += len(action) + len(environment.step(action)[0])

    return play


WORKS: dict[str, Work] = {
    "parse": parse,
    "observe": observe,
    "step of an environment": step,
    "prefix search": search,
    "pack a group": pack_group,
    "all turns of an episode": episode,
}


def _turn() -> tuple[Renderer, list[int], list[dict[str, Any]]]:
    """A renderer, an action with a call, and the tool's schema."""
    renderer = Renderer(tiny_tokenizer())
    environment = Notes(renderer)
    environment.reset(options={"row": {"prompt": "Note."}})
    function = {"name": "note", "arguments": {"text": "the number five, twice over"}}
    call = {"type": "function", "id": "call00000", "function": function}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    schemas: list[dict[str, Any]] = list(environment.tools)
    return renderer, renderer.encode(message, tools=schemas), schemas


def _ids(length: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(16, 1000, length).tolist()
    return found


def milliseconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """CPU time of a call, the median of several."""
    call()
    found = []
    for _ in range(calls):
        started = time.process_time()
        call()
        found.append(1000 * (time.process_time() - started))
    return statistics.median(found)


def exponent(lengths: list[int], times: list[float]) -> float:
    """The slope of time against length, both in logarithms."""
    logarithms = [math.log(max(each, 1e-3)) for each in times]
    return float(np.polyfit(np.log(lengths), logarithms, 1)[0])


def main() -> None:
    """Measure all works at all lengths."""
    print(
        "| CPU milliseconds at tokens | " + " | ".join(f"{n:,}" for n in LENGTHS) + " | exponent |"
    )
    print("| --- |" + " --- |" * (len(LENGTHS) + 1))
    for name, work in WORKS.items():
        times = [milliseconds(work(length)) for length in LENGTHS]
        shown = " | ".join(f"{each:.2f}" for each in times)
        print(f"| {name} | {shown} | {exponent(list(LENGTHS), times):.2f} |", flush=True)


if __name__ == "__main__":
    main()
