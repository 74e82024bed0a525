r"""The plain protocol: tools for a model whose chat template knows none.

The system prompt ends with the tools' signatures and how to call one; calls are written in the
assistant's text, and results come back in a user's turn:

    system     You can call tools:
               add(a: integer, b: integer): Add two integers.

               To call one, write:
               <tool_call>
               {"name": ..., "arguments": {...}}
               </tool_call>
    assistant  <tool_call>
               {"name": "add", "arguments": {"a": 1, "b": 2}}
               </tool_call>
    user       <tool_response>
               3
               </tool_response>

Small models follow signatures far better than JSON schemas. A parameter's description, and what its
type alone does not say (choices, items, a default), follow on lines of their own.

Consecutive results share one user turn, and a user's message right after them joins it, so that
templates whose roles must alternate work. Where a template takes no system message, its text goes
before the first user's. Unless the tokenizer has tokens for the tags, they are ordinary text, which
a tool's result can imitate.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gymnast.envs.rendering.calls.json_payloads import JsonCalls
from gymnast.envs.rendering.dialects.dialect import Dialect

DIALECT = Dialect(
    payload=JsonCalls(("name",), ("arguments",)),
    open="<tool_call>",
    close="</tool_call>",
    example='<tool_call>\n{"name": "TOOL", "arguments": {"KEY": "VALUE"}}\n</tool_call>',
)
_EXAMPLE = '<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>'

MessageDict = dict[str, Any]


def rewrite(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    takes_system: bool,
) -> list[MessageDict]:
    """Write calls, results and tools as plain messages.

    Args:
        messages: A conversation in OpenAI's shape.
        tools: The schemas to announce, or None.
        takes_system: Whether the template has a place for a system message.
    """
    plain: list[MessageDict] = []
    after_results = False
    for message in messages:
        role = message.get("role")
        if role == "tool" or (role == "user" and after_results):
            text = _result(message) if role == "tool" else message.get("content")
            if after_results:
                plain[-1] = plain[-1] | {"content": join(plain[-1]["content"], text, "\n")}
            else:
                plain.append({"role": "user", "content": text})
            after_results = role == "tool"
            continue
        after_results = False
        plain.append(_with_calls(message) if message.get("tool_calls") else dict(message))
    return announce(plain, tools, takes_system=takes_system)


def announce(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    takes_system: bool,
    example: str = _EXAMPLE,
) -> list[MessageDict]:
    """Announce the tools in the system prompt, for a template that does not.

    Args:
        messages: A conversation.
        tools: The schemas to announce, or None.
        takes_system: Whether the template has a place for a system message.
        example: What a call looks like.
    """
    announced = [dict(message) for message in messages]
    if tools:
        text = announcement(tools, example)
        if announced and announced[0].get("role") == "system":
            announced[0]["content"] = join(announced[0].get("content") or "", text, "\n\n")
        else:
            announced.insert(0, {"role": "system", "content": text})
    return announced if takes_system else _without_system(announced)


def announcement(
    tools: Sequence[Mapping[str, Any]],
    example: str = _EXAMPLE,
    first_line: str = "You can call tools:",
) -> str:
    """The text that announces the tools."""
    signatures = [_signature(tool.get("function", tool)) for tool in tools]
    return "\n".join([first_line, *signatures, "", "To call one, write:", example])


def with_changes_said(
    messages: Sequence[Mapping[str, Any]], example: str = _EXAMPLE
) -> list[MessageDict]:
    """Messages that say in their text which `tools` they change to."""
    return [
        without_tools(message) | {"content": join(message.get("content"), text, "\n\n")}
        if (text := _change(message.get("tools"), example))
        else dict(message)
        for message in messages
    ]


def without_tools(message: Mapping[str, Any]) -> MessageDict:
    """A message without its `tools`."""
    return {key: value for key, value in message.items() if key != "tools"}


def _change(tools: Sequence[Mapping[str, Any]] | None, example: str) -> str:
    if tools is None:
        return ""
    from_now = "From now on you can call these tools:"
    return announcement(tools, example, from_now) if tools else "From now on there are no tools."


def _signature(function: Mapping[str, Any]) -> str:
    parameters = function.get("parameters") or {}
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    required = parameters.get("required") or ()
    listed = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(schema)}"
        for name, schema in properties.items()
    )
    lines = [f"{function.get('name')}({listed}): {function.get('description', '')}".rstrip(": ")]
    for name, schema in properties.items():
        rest = {key: value for key, value in schema.items() if key not in ("type", "description")}
        details = [
            schema.get("description", ""),
            json.dumps(rest, ensure_ascii=False) if rest else "",
        ]
        if any(details):
            lines.append(f"  {name}: {' '.join(filter(None, details))}")
    return "\n".join(lines)


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "any")
    return kind if isinstance(kind, str) else " or ".join(map(str, kind))


def join(first: Any, second: Any, between: str) -> Any:
    """Join two contents, each a string or a list of parts."""
    if isinstance(first, str) and isinstance(second, str):
        return first + between + second if first and second else first or second
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _result(message: Mapping[str, Any]) -> Any:
    content = message.get("content", "")
    if isinstance(content, str):
        return f"<tool_response>\n{content}\n</tool_response>"
    return join(join("<tool_response>\n", content, ""), "\n</tool_response>", "")


def _with_calls(message: Mapping[str, Any]) -> MessageDict:
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function", call)
        body = {"name": function.get("name"), "arguments": function.get("arguments", {})}
        calls.append(f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>")
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return rest | {"content": join(message.get("content") or "", "\n".join(calls), "\n")}


def _without_system(plain: list[MessageDict]) -> list[MessageDict]:
    if not plain or plain[0].get("role") != "system":
        return plain
    text, rest = plain[0].get("content") or "", plain[1:]
    for index, message in enumerate(rest):
        if message.get("role") == "user":
            merged = message | {"content": join(text, message.get("content") or "", "\n\n")}
            return [*rest[:index], merged, *rest[index + 1 :]]
    return [{"role": "user", "content": text}, *rest]
