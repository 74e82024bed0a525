#!/usr/bin/env python3
"""The tools of a storeroom, as a program in an image: see docs/container.md.

Needs nothing but Python 3.9. `OPERATIONS` at the end is the whole of the protocol.
"""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STORE = Path("store.json")  # in the working folder: the state between two calls
ITEMS = ("apples", "bolts", "candles", "drums", "eggs", "flags")

ITEM = {"type": "string", "enum": list(ITEMS), "description": "What is stored."}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "count",
        "description": "Say how many of an item there are.",
        "parameters": {"type": "object", "properties": {"item": ITEM}, "required": ["item"]},
    },
    {
        "name": "order",
        "description": "Order more of an item. Can be done once.",
        "parameters": {
            "type": "object",
            "properties": {
                "item": ITEM,
                "number": {"type": "integer", "description": "How many more."},
            },
            "required": ["item", "number"],
        },
        "stop": True,
    },
]


def describe(_: Any) -> dict[str, Any]:
    """What there is."""
    return {"protocol": 1, "tools": TOOLS, "rows": True, "setup": True, "reward": True}


def rows(_: Any) -> None:
    """Tasks, one a line."""
    for item in ITEMS:
        for wanted in range(10, 30):
            prompt = f"Make sure that there are {wanted} {item}."
            print(json.dumps({"prompt": prompt, "item": item, "wanted": wanted}))


def setup(told: dict[str, Any]) -> None:
    """Fill the store; equal seeds fill it alike, as the members of a group need it."""
    numbers = random.Random(told["seed"])
    STORE.write_text(json.dumps({item: numbers.randrange(10) for item in ITEMS}))


def reward(told: dict[str, Any]) -> dict[str, float]:
    """A little for using a tool, the rest for the right number in store."""
    row, store = told["row"], json.loads(STORE.read_text())
    called = {
        call["function"]["name"]
        for message in told["messages"]
        for call in message.get("tool_calls") or []
    }
    return {
        "called": 0.2 * bool(called & {"count", "order"}),
        "stored": 0.8 * (store[row["item"]] == row["wanted"]),
    }


def call(arguments: dict[str, Any]) -> str:
    """Run a tool."""
    store = json.loads(STORE.read_text())
    item = arguments["item"]
    if sys.argv[2] == "count":
        return str(store[item])
    if arguments["number"] < 1:
        sys.exit("number must be at least 1")  # told to the policy as an error
    store[item] += arguments["number"]
    STORE.write_text(json.dumps(store))
    return "ordered"


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "describe": describe,
    "rows": rows,
    "setup": setup,
    "call": call,
    "reward": reward,
}

if __name__ == "__main__":
    said = sys.stdin.read()
    answer = OPERATIONS[sys.argv[1]](json.loads(said) if said else None)
    if answer is not None:
        print(answer if isinstance(answer, str) else json.dumps(answer))
