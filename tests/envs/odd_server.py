"""A small server of the Model Context Protocol with every accident that a server can have.

    python odd_server.py [ACCIDENT ...]

It is written without the SDK, which would not let it lie, and starts in no time.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

ACCIDENTS = set(sys.argv[1:])
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
state: dict[str, Any] = {"sum": 0, "more": False}


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def tool(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema, "description": f"Does {name}.", **more}


def tools() -> list[dict[str, Any]]:
    found = [tool("add", NUMBER), *(tool(name, NOTHING) for name in CALLS), tool("say", TEXT)]
    found.append(tool("lie", NOTHING, outputSchema=NUMBER))
    if "odd tools" in ACCIDENTS:
        long = "long" * 30
        found += [tool(name, NOTHING) for name in ("a.b/c d", "a_b_c_d", long, long + "er", "日")]
        found += [
            {"name": "silent", "inputSchema": NOTHING},
            tool("bad_type", {"type": "object", "properties": {"a": {"type": "nonsense"}}}),
            tool("bad_reference", {"type": "object", "properties": {"a": {"$ref": "#/$defs/No"}}}),
            tool("bad_required", {"type": "object", "properties": {}, "required": ["a"]}),
        ]
    if "bad list" in ACCIDENTS:
        found.append(tool("bad_properties", {"type": "object", "properties": {"a": 3}}))
    if state["more"]:
        found.append(tool("later", NOTHING))
    return found


def texts(*parts: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": part} for part in parts]}


def big() -> dict[str, Any]:
    return texts("x" * 3_000_000)


def huge() -> dict[str, Any]:
    return texts("x" * (17 << 20))


def picture() -> dict[str, Any]:
    return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}


def hang() -> dict[str, Any]:
    time.sleep(600)
    return {}


def die() -> dict[str, Any]:
    print("it hurts", file=sys.stderr, flush=True)
    os._exit(3)


def fail() -> dict[str, Any]:
    return {**texts("not today"), "isError": True}


def refuse() -> dict[str, Any]:
    raise ValueError("no")


def rubbish() -> dict[str, Any]:
    sys.stdout.buffer.write(b'hello\n\n{"a": \n[1]\n{"jsonrpc": "2.0"}\n\xff\xfe\n\x00\n')
    send({"id": 999, "result": {}})
    return texts("after rubbish")


def malformed() -> dict[str, Any]:
    return {"content": "a text"}


def mistake() -> dict[str, Any]:
    """An answer to another request, which nobody has made."""
    return {**texts("to you"), "of another": True}


def structured() -> dict[str, Any]:
    return {"content": [], "structuredContent": {"a": [1, 2]}}


def lie() -> dict[str, Any]:
    return {**texts("three"), "structuredContent": {"a": "three"}}


def change() -> dict[str, Any]:
    state["more"] = True
    send({"method": "notifications/tools/list_changed"})
    return texts("changed")


def later() -> dict[str, Any]:
    return texts("later")


def ask() -> dict[str, Any]:
    """What the client answers to what a server may ask of it."""
    answers = []
    message = {"role": "user", "content": {"type": "text", "text": "What is 1 + 1?"}}
    form = {"message": "Who are you?", "requestedSchema": NOTHING}
    for method, parameters in (
        ("sampling/createMessage", {"messages": [message], "maxTokens": 9}),
        ("elicitation/create", form),
        ("roots/list", {}),
        ("nothing/known", {}),
    ):
        send({"id": f"ask-{method}", "method": method, "params": parameters})
        while (answer := json.loads(sys.stdin.readline())).get("id") != f"ask-{method}":
            pass
        answers.append(answer["error"]["message"])
    return texts(*answers)


def child() -> dict[str, Any]:
    started = subprocess.Popen(["sleep", "600"])
    return texts(str(started.pid))


def pid() -> dict[str, Any]:
    return texts(str(os.getpid()))


CALLS = {
    each.__name__: each
    for each in (
        *(big, huge, picture, hang, die, fail, refuse, rubbish, malformed, mistake, structured),
        *(change, ask, child, pid),
    )
}


def die_once() -> None:
    """Die where a file is named that is not there yet: of several servers at once, one does."""
    for accident in ACCIDENTS:
        word, _, path = accident.partition(":")
        if word == "once":
            try:
                open(path, "x").close()
            except FileExistsError:
                continue
            die()


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "add":
        die_once()
        state["sum"] += arguments["a"]
        return texts(str(state["sum"]))
    if name == "say":
        return texts(arguments["text"])
    others = {"later": later, "lie": lie}
    return others[name]() if name in others else CALLS[name]()


def answered(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "odd", "version": "1"},
            "instructions": "Be odd.",
        }
    if method == "tools/list":
        page = {"nextCursor": "more"} if "endless" in ACCIDENTS else {}
        return {"tools": tools(), **page}
    if method == "tools/call":
        return called(parameters["name"], parameters.get("arguments") or {})
    raise ValueError(f"there is no {method}")


def main() -> None:
    if "no start" in ACCIDENTS:
        sys.exit("it lacks a key")
    if "silent" in ACCIDENTS:
        time.sleep(600)
    if "greets" in ACCIDENTS:
        print("Welcome!", flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        if "deaf" in ACCIDENTS and message["method"] != "initialize":
            continue
        try:
            result = answered(message["method"], message.get("params") or {})
        except ValueError as error:
            send({"id": message["id"], "error": {"code": -32000, "message": str(error)}})
        else:
            stranger = 7000 if result.pop("of another", False) else 0
            send({"id": message["id"] + stranger, "result": result})
    if "stays" in ACCIDENTS:
        time.sleep(600)


if __name__ == "__main__":
    main()
