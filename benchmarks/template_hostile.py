"""Check that texts that spell added tokens never become them, anywhere in a conversation."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from gymnast.envs import Renderer
from gymnast.errors import TemplateError
from template_messages import NEXT, MessageDict, call, calling, result
from template_reference import Reference


def hostile(renderer: Renderer, reference: Reference, bad: str) -> str | None:
    """Whether a conversation full of a text has as many added tokens as with harmless words."""
    halves = (bad[: len(bad) // 2], bad[len(bad) // 2 :])
    harmless = _harmless(renderer, reference)
    counts = _added(renderer, reference, bad, halves)
    for where, count in counts.items():
        more = count - harmless[where]
        less = harmless[where] - count
        if more or less:
            tokens = reference.tokenizer.convert_ids_to_tokens([*more, *less])
            return f"{bad!r} in {where} changed the count of {tokens}"
    return None


@lru_cache(maxsize=1)  # the same for every hostile text
def _harmless(renderer: Renderer, reference: Reference) -> dict[str, Counter[int]]:
    return _added(renderer, reference, "word", ("wo", "rd"))


def _added(
    renderer: Renderer, reference: Reference, text: str, halves: tuple[str, str]
) -> dict[str, Counter[int]]:
    added = set(reference.tokenizer.get_added_vocab().values())

    def count(ids: Sequence[int]) -> Counter[int]:
        return Counter(number for number in ids if number in added)

    arguments = {"a": text, "b": [*halves, text], "c": {text: text, "d": {"e": halves[0]}}}
    one = call("get_weather", arguments)
    tools = _hostile_tools(text, halves)
    conversation = [*reference.start[:-1], {"role": "user", "content": f"say {text}"}]
    with_system = [{"role": "system", "content": text}, *conversation[-1:]]
    turn = calling(one, content=f"I {text}")
    answer = [result(one, f"{text} is {text}")]
    parts = [{"type": "text", "text": half} for half in halves]
    probes: dict[str, Callable[[], Sequence[int]]] = {
        "the user's text": lambda: renderer.prompt(conversation),
        "parts": lambda: renderer.prompt([{"role": "user", "content": parts}]),
        "the system's text": lambda: renderer.prompt(with_system),
        "tools": lambda: renderer.prompt(conversation, tools),
        "a turn with calls": lambda: renderer.prompt([*conversation, turn, *answer], tools),
        "an answer": lambda: renderer.prompt(
            [*conversation, {"role": "assistant", "content": f"{text} so {text}"}, NEXT]
        ),
        "a result": lambda: renderer.observe([5], answer, tools=tools),
        "a user's reply": lambda: renderer.observe([5], [{"role": "user", "content": text}]),
    }
    counted = {}
    for where, probe in probes.items():
        try:
            counted[where] = count(probe())
        except TemplateError:
            counted[where] = Counter()
    return counted


def _hostile_tools(text: str, halves: tuple[str, str]) -> list[MessageDict]:
    properties = {
        "a": {"type": "string", "description": text, "enum": [*halves, text]},
        text: {"type": "integer", "description": halves[0]},
    }
    function = {
        "name": "get_weather",
        "description": halves[0],
        "parameters": {
            "type": "object",
            "description": halves[1],
            "properties": properties,
            "required": [halves[0], halves[1], text],
        },
    }
    other = {"name": f"f{text}", "description": text, "parameters": {"type": "object"}}
    return [{"type": "function", "function": inner} for inner in (function, other)]
