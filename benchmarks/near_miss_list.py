"""The list of near misses: calls that deviate from their dialect as models deviate.

`near_misses.yaml` holds them by family: what deviates, and what the model writes. The functions
here make its first part from well-formed calls of each family; the second is written by hand. A
deviation that the renderer reads as the call that is meant is no near miss, and is not listed.

    python benchmarks/near_miss_list.py     writes the first part anew
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml

from call_dialects import FAMILIES, renderer_of, written

FILE = Path(__file__).parent / "near_misses.yaml"
Schema = dict[str, Any]
Call = tuple[str, dict[str, Any]]
CALLS: list[Call] = [
    ("get_weather", {"city": "Paris", "days": 3}),
    ("search", {"query": "boiling point of ethanol"}),
    ("add", {"a": 17, "b": 25}),
    ("read_file", {"path": "src/main.py"}),
]


def _tool(name: str, **types: str) -> Schema:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(types)}
    return {
        "type": "function",
        "function": {"name": name, "description": "", "parameters": parameters},
    }


TOOLS = [
    _tool("get_weather", city="string", days="integer"),
    _tool("search", query="string", limit="integer"),
    _tool("add", a="integer", b="integer"),
    _tool("read_file", path="string"),
    _tool("python", code="string"),
    _tool("open", file="string", mode="string"),
    _tool("run", command="string"),
]


@dataclass(frozen=True)
class Entry:
    """One near miss.

    Attributes:
        family: The dialect.
        deviation: What is not as it should be.
        text: What the model writes.
        by_hand: Whether it was written by hand.
    """

    family: str
    deviation: str
    text: str
    by_hand: bool


def entries() -> list[Entry]:
    """The whole list."""
    listed = yaml.safe_load(FILE.read_text())
    return [
        Entry(family, deviation, text, part == "by hand")
        for part, families in listed.items()
        for family, deviations in families.items()
        for deviation, text in deviations.items()
    ]


_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]|<[^<>]+>")
Change = Callable[[str, Call], str | None]


def _first_tag(change: Callable[[str], str]) -> Change:
    def changed(text: str, call: Call) -> str | None:
        return _TAG.sub(lambda tag: change(tag[0]), text, count=1)

    return changed


def _last_tag(change: Callable[[str], str]) -> Change:
    def changed(text: str, call: Call) -> str | None:
        *_, last = _TAG.finditer(text) if _TAG.search(text) else [None]
        if last is None or last.end() < len(text.rstrip()):
            return None
        return text[: last.start()] + change(last[0])

    return changed


def _without_bars(tag: str) -> str:
    return re.sub(r"[|｜]", "", tag)  # noqa: RUF001


def _with_bars(tag: str) -> str:
    return tag if re.search(r"[|｜/=]", tag) else f"{tag[0]}|{tag[1:-1]}|{tag[-1]}"  # noqa: RUF001


def _numbered(tag: str) -> str:
    return re.sub(r"s?([|｜]?[>\]])$", lambda end: ("" if end[0][0] == "s" else "s") + end[1], tag)  # noqa: RUF001


def _json_of(call: Call) -> str:
    return json.dumps({"name": call[0], "arguments": call[1]})


def _keywords(call: Call) -> str:
    values = ", ".join(f"{key}={value!r}" for key, value in call[1].items())
    return f"{call[0]}({values})"


def _in_json(change: Callable[[str], str]) -> Change:
    def changed(text: str, call: Call) -> str | None:
        found = re.search(r"\{.*\}", text, re.DOTALL)
        if found is None or not found[0].startswith(('{"', "{\n")):
            return None
        return text[: found.start()] + change(found[0]) + text[found.end() :]

    return changed


def _without_tags(text: str, call: Call) -> str | None:
    bare = re.sub(r"\[[A-Z_]+\]|<[^<>]+>", " ", text).strip()
    return bare if bare.startswith(("{", "[")) else None


CHANGES: dict[str, Change] = {
    "no underscore in the first tag": _first_tag(lambda tag: re.sub("[_▁]", "", tag)),
    "a space in the first tag": _first_tag(lambda tag: re.sub("[_▁]", " ", tag)),
    "a hyphen in the first tag": _first_tag(lambda tag: re.sub("[_▁]", "-", tag)),
    "bars in the first tag": _first_tag(_with_bars),
    "no bars in the first tag": _first_tag(_without_bars),
    "the first tag in other letters": _first_tag(str.swapcase),
    "the first tag in the singular or plural": _first_tag(_numbered),
    "the first tag is torn": _first_tag(lambda tag: tag[:-1]),
    "the first tag is left out": _first_tag(lambda tag: ""),
    "the first tag is escaped": _first_tag(lambda tag: f"&lt;{tag[1:-1]}&gt;"),
    "the last tag is left out": _last_tag(lambda tag: ""),
    "the last tag is the wrong one": _last_tag(lambda tag: "</tool>"),
    "no tags at all": _without_tags,
    "quotes of the wrong kind": _in_json(lambda text: text.replace('"', "'")),
    "a comma at the end": _in_json(lambda text: re.sub(r"\}$", ",}", text)),
    "the last brace is left out": _in_json(lambda text: text[:-1]),
    "keys without quotes": _in_json(lambda text: re.sub(r'"(\w+)":', r"\1:", text)),
    "JSON without tags": lambda text, call: _json_of(call),
    "JSON in a fence": lambda text, call: f"```json\n{_json_of(call)}\n```",
    "JSON after text": lambda text, call: f"I will look that up.\n\n{_json_of(call)}",
    "JSON in tags of another family": lambda text, call: (
        f"<tool_call>\n{_json_of(call)}\n</tool_call>"
    ),
    "JSON after a token of another family": lambda text, call: f"<|python_tag|>{_json_of(call)}",
    "a Python call": lambda text, call: _keywords(call),
    "a list of Python calls": lambda text, call: f"[{_keywords(call)}]",
    "an action and its input": lambda text, call: (
        f"Action: {call[0]}\nAction Input: {json.dumps(call[1])}"
    ),
}


def made() -> dict[str, dict[str, str]]:
    """The first part of the list: deviations and texts, by family."""
    texts: dict[str, dict[str, str]] = {}
    drawn = cycle(CALLS)
    for row, family in enumerate(FAMILIES):
        # Every second one: two neighbouring families have them all, and the list stays readable.
        for deviation, change in [*CHANGES.items()][row % 2 :: 2]:
            call = next(drawn)
            right = written(family, call).strip()
            text = change(right, call)
            if text is not None and text != right and not _is_read(family, text):
                texts.setdefault(family, {})[deviation] = text
    return texts


def _is_read(family: str, text: str) -> bool:
    renderer = renderer_of(family)
    calls = renderer.parse(renderer.tokenizer.encode(text), tools=TOOLS)["tool_calls"]
    return bool(calls) and all(call.error is None for call in calls)


class _Readable(yaml.SafeDumper):
    """Writes lines as lines."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _text)

if __name__ == "__main__":
    by_hand = yaml.safe_load(FILE.read_text())["by hand"] if FILE.exists() else {}
    listed = {"made": made(), "by hand": by_hand}
    text = yaml.dump(listed, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=1000)
    FILE.write_text(text)
    print(len(entries()), "near misses")
