"""Random and mutated completions: what a policy could sample, right and wrong, in any template.

The right ones are what the template itself writes for calls. The same seed gives the same
completions. The tests say what must hold of them.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from gymnast.envs import Renderer
from gymnast.errors import GymnastError

Calls = list[tuple[str, dict[str, Any]]]

_TEXTS = [
    "",
    "x",
    '"',
    "'",
    "\\",
    "\n",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "=",
    "(",
    ")",
    "<",
    ">",
    "</",
]
_TEXTS += [
    "null",
    "NaN",
    "1e999",
    "True",
    "\ufeff",
    "\u2028",
    "é",
    "漢",
    "😀",
    "\x00",
    "\ue000",
    "&lt;",
]
_TEXTS += [
    '{"name": "add", "arguments": {"a": 1}}',
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "```",
]


class Completions:
    """Draws completions for one renderer.

    Args:
        renderer: Its tokenizer and template are used.
        tools: The tools that are offered, as schemas.
        calls: Right calls of them; others are made of these.
        seed: Of the drawing.
    """

    def __init__(
        self, renderer: Renderer, tools: Sequence[Mapping[str, Any]], calls: Calls, seed: int
    ) -> None:
        self._renderer = renderer
        self._tokenizer = renderer.tokenizer
        self._tools = list(tools)
        self._calls = calls
        self._random = random.Random(seed)
        self._added = sorted(self._tokenizer.added_tokens_decoder)
        self._size = max(*self._added, len(self._tokenizer)) + 1
        self._right = [ids for ids in map(self._written, self._turns()) if ids] or [[0]]
        self._kinds: list[Callable[[], list[int]]] = [
            self._noise,
            self._answer,
            self._correct,
            self._changed,
            self._changed,
            self._rewritten,
            self._rewritten,
            self._joined,
            self._nested,
        ]

    def draw(self) -> list[int]:
        """One completion; most end with a stop id."""
        ids = self._random.choice(self._kinds)()
        if self._random.random() < 0.6 and not (ids and ids[-1] in self._renderer.stop_ids):
            ids = [*ids, self._random.choice(self._renderer.stop_ids)]
        return ids

    def _turns(self) -> list[Calls]:
        wrong: Calls = [
            ("unknown", {"a": 1}),
            (self._calls[0][0], {}),
            (self._calls[0][0], {"a": "x", "b": [1], "c": None}),
            (self._calls[0][0], {"a": {"b": {"c": [[], {}]}}}),
        ]
        single = [[call] for call in [*self._calls, *wrong]]
        return [*single, self._calls, [*wrong, *self._calls]]

    def _written(self, calls: Calls) -> list[int]:
        """What the template writes for a turn of calls; nothing where it refuses."""
        listed = [
            {
                "id": f"call{index:05d}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for index, (name, arguments) in enumerate(calls)
        ]
        user = {"role": "user", "content": "Go."}
        turn = {"role": "assistant", "content": "", "tool_calls": listed}
        try:
            before = self._renderer.prompt([user], self._tools)
            whole = self._renderer.prompt([user, turn], self._tools)
        except GymnastError:
            return []
        pairs = enumerate(zip(before, whole, strict=False))
        start = next((n for n, (a, b) in pairs if a != b), len(before))
        ends = (n for n in range(start, len(whole)) if whole[n] in self._renderer.stop_ids)
        return whole[start : next(ends, len(whole)) + 1]

    def _encoded(self, text: str) -> list[int]:
        text = text.encode("utf-8", "replace").decode()
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _noise(self) -> list[int]:
        """Any ids: none, too large and negative ones among them."""
        odd = [-1, self._size, self._size + 1000, 2**31, 2**40]
        pools: list[Callable[[], int]] = [
            lambda: self._random.randrange(self._size),
            lambda: self._random.choice(self._added),
            lambda: self._random.choice(odd),
        ]
        weights = self._random.choice([(1, 0, 0), (1, 1, 0), (0, 1, 0), (8, 2, 1)])
        chosen = self._random.choices(pools, weights, k=self._random.randrange(40))
        return [pool() for pool in chosen]

    def _answer(self) -> list[int]:
        texts = [self._random.choice(_TEXTS) for _ in range(self._random.randrange(5))]
        return self._encoded("The answer is " + " ".join(texts))

    def _correct(self) -> list[int]:
        return list(self._random.choice(self._right))

    def _changed(self) -> list[int]:
        """Token by token."""
        ids = self._correct()
        for _ in range(self._random.randint(1, 3)):
            at = self._random.randrange(len(ids) + 1)
            to = self._random.randint(at, min(len(ids), at + 8))
            change = self._random.randrange(6)
            if change == 0:
                ids[at:to] = []
            elif change == 1:
                ids[at:at] = ids[at:to]
            elif change == 2:
                ids[at:to] = reversed(ids[at:to])
            elif change == 3:
                ids = ids[:at]
            elif change == 4:
                ids[at:at] = [self._random.choice(self._added)]
            else:
                ids[at:at] = self._encoded(self._random.choice(_TEXTS))
        return ids

    def _rewritten(self) -> list[int]:
        """Character by character; other values, names twice."""
        text = str(self._tokenizer.decode(self._correct()))
        for _ in range(self._random.randint(1, 3)):
            at = self._random.randrange(len(text) + 1)
            to = self._random.randint(at, min(len(text), at + 12))
            put = [self._random.choice(_TEXTS), text[at:to] * 2, "", json.dumps(text[at:to])]
            text = text[:at] + self._random.choice(put) + text[to:]
            names = [name for call in self._calls for name in (call[0], *call[1])]
            one, other = self._random.choice(names), self._random.choice([*names, *_TEXTS])
            text = text.replace(one, other, self._random.randrange(3))
        return self._encoded(text)

    def _joined(self) -> list[int]:
        parts = [self._changed, self._correct, self._answer, self._noise]
        drawn = [self._random.choice(parts)() for _ in range(self._random.randint(2, 4))]
        if self._random.random() < 0.5:  # inside of one turn
            drawn = [[n for n in ids if n not in self._renderer.stop_ids] for ids in drawn]
        return list(chain(*drawn))

    def _nested(self) -> list[int]:
        """Deep brackets, or markup many times, somewhere in a call."""
        text = str(self._tokenizer.decode(self._correct()))
        depth = self._random.choice([5, 50, 500, 2000])
        pieces = ["[", '{"a":', "(", '["', "{", "</", "-", "9", '\\"', "'", '"""', "f(x="]
        pieces += [self._tokenizer.decode([number]) for number in self._added[:40]]
        piece = self._random.choice(pieces)
        closing = self._random.choice(["", "]" * depth, "}" * depth, ")" * depth])
        at = self._random.randrange(len(text) + 1)
        return self._encoded(text[:at] + (piece * depth)[:2000] + closing + text[at:])
