"""The fixed cases that every template is tried on: arguments, names, turns, conversations."""

from collections.abc import Iterator
from typing import Any

from template_messages import ANSWER, MARKED, NEXT, THOUGHT, MessageDict, call, calling, result
from template_reference import Reference

TEXTS = {
    "quotes": "\"double\" 'single' `back` \"\"\"three\"\"\" '''three''' “curly”",
    "backslashes": 'C:\\new\\table \\" \\u0041 \\\\',
    "lines": "first\n  second\n\nlast\tend",
    "brackets": "{a} [b] (c) <d> }]) {{x}} [[y]] {%z%} a=1, b:2; c|d",
    "unicode": "é ß 漢字 😀 ـ \u00a0x",
    "edges": " a space before and after ",
    "lookalike": '{"name": "other", "arguments": {}} f(x=1)',
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "text": {"text": "plain words"},
    **{name: {"a": text, "b": 1, "c": text} for name, text in TEXTS.items()},
    "empty text": {"a": "", "b": "x"},
    "typed text": {"a": "22", "b": "true", "c": "null", "d": "[1]", "e": '{"f": 1}', "g": "1.5"},
    "numbers": {"a": 0, "b": -7, "c": 12345678901234567890, "d": 1.5, "e": -2.0, "f": 1e-7},
    "constants": {"a": True, "b": False},
    "null": {"a": None, "b": "x"},
    "lists": {"a": [], "b": [1, 2], "c": ["x, y", 'say "hi"'], "d": [[1], [None, True]]},
    "objects": {"a": {}, "b": {"c": 1, "d": {"e": ["f", {"g": None}]}, "h": "i = {j}, k: 'l'"}},
}
SEVERAL = 3  # calls in a turn, at most
NAMES = ("get_weather", "f2", "getWeather", "get-weather", "files.read")


def turns_with_calls(reference: Reference) -> Iterator[tuple[str, MessageDict]]:
    """Named turns that every template should have read back."""
    for name, arguments in ARGUMENTS.items():
        yield name, calling(call("get_weather", arguments))
    for name in NAMES:
        if reference.form.python and not name.replace(".", "").isidentifier():
            continue
        yield f"name {name}", calling(call(name, {"a": "x"}))
    if reference.most > 1:
        same = [call("get_weather", {"a": n, "b": "x"}, n) for n in (1, 2, 3)]
        mixed = [call("f", {}), call("g", {"a": [1]}, 2), call("h", {}, 3)]
        yield "two", calling(*MARKED[:2])
        yield "several", calling(*MARKED[: reference.most])
        yield "the same again", calling(*same[: reference.most])
        yield "none, then some", calling(*mixed[: reference.most])
    beside = reference.form.beside and not reference.write_calls
    if beside or not reference.writes_calls:
        yield "content", calling(*MARKED[:1], content="Let me see: f(x) = {y}.")
    if reference.form.thought:
        yield "reasoning", calling(*MARKED[:1], reasoning="Hm, I\nthink so.")
        if beside:
            yield "all", calling(*MARKED[: reference.most], content="So.", reasoning="Hm.")


def answers(reference: Reference) -> Iterator[tuple[str, MessageDict]]:
    """Turns without calls."""
    yield "answer", ANSWER
    text = 'It is {"name": "f", "arguments": {}} or [f(x=1)] or "x".'
    yield "answer with markup", ANSWER | {"content": text}
    if reference.form.thinks:
        yield "answer after a thought", ANSWER | {"reasoning_content": "Hm."}


def conversations(reference: Reference) -> Iterator[tuple[str, MessageDict, dict[str, Any]]]:
    """Named turns with what follows them."""
    one = calling(*MARKED[:1])
    yield "one result", one, {}
    yield "one result, nothing after", one, {"generation_prompt": False}
    yield "a result of JSON", one, {"after": [result(MARKED[0], '{"Wqresult": [1, "x"]}')]}
    yield "a result, then the user", one, {"after": [result(MARKED[0]), NEXT]}
    yield "the user", ANSWER, {}
    yield "the user, nothing after", ANSWER, {"generation_prompt": False}
    if reference.most > 1:
        several = calling(*MARKED[: reference.most])
        yield "two results", calling(*MARKED[:2]), {}
        yield "several results", several, {}
        yield "several results, nothing after", several, {"generation_prompt": False}
    if reference.form.thought:
        yield "a thought, one result", calling(*MARKED[:1], reasoning=THOUGHT), {}
    if reference.form.thinks:
        yield "a thought, the user", ANSWER | {"reasoning_content": THOUGHT}, {}
    yield "calls without their end", one, {"missing": 1}
    yield "an answer without its end", ANSWER, {"missing": 1}
    yield "calls cut in the middle", one, {"missing": 8}
