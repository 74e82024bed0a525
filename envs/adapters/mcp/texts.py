"""What a server has and says, as a policy reads it: tools, results, resources and prompts."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gymnast.envs.tools.definition import Tool
from gymnast.envs.tools.json_schema import tool_of_schema
from gymnast.errors import DataError, ToolDefinitionError
from gymnast.types import Message

RESOURCE_TOOLS = (
    {"name": "list_resources", "description": "List the resources that can be read."},
    {
        "name": "read_resource",
        "description": "Read a resource.",
        "parameters": {
            "type": "object",
            "properties": {"uri": {"type": "string", "description": "The resource's URI."}},
            "required": ["uri"],
        },
    },
)

_ODD = re.compile(r"[^a-zA-Z0-9_-]")  # in names, as chat templates and endpoints take them
_MAX_NAME_CHARACTERS = 64


def offered(
    listed: Iterable[Any], taken: Iterable[str], timeout_s: float | None
) -> tuple[dict[str, tuple[str, Tool]], dict[str, str]]:
    """The tools that a server lists, and what is wrong with those that no call can be made to.

    Args:
        listed: The SDK's.
        taken: Names that none of them gets.
        timeout_s: Of each call.

    Returns:
        By the name for the policy, the server's name and the tool; by the server's name, problems.
    """
    tools: dict[str, tuple[str, Tool]] = {}
    problems: dict[str, str] = {}
    for one in {tool.name: tool for tool in listed}.values():
        name = free_name(one.name, {*taken, *tools})
        described = one.description or one.title or one.name
        schema = {"name": name, "description": described, "parameters": one.input_schema}
        try:
            tool = tool_of_schema({**schema, "timeout_s": timeout_s})
        except ToolDefinitionError as error:
            problems[one.name] = str(error)
        except Exception as error:  # a schema of another shape than it says
            problems[one.name] = f"{type(error).__name__}: {error}"
        else:
            tools[name] = (one.name, tool)
    return tools, problems


def free_name(name: str, taken: Iterable[str]) -> str:
    """A name of letters, digits, `_` and `-`, and none that is taken."""
    plain = _ODD.sub("_", name)[:_MAX_NAME_CHARACTERS] or "tool"
    number, free = 1, plain
    while free in taken:
        number += 1
        free = f"{plain[: _MAX_NAME_CHARACTERS - 4]}_{number}"
    return free


def text_of_result(result: Any) -> Any:
    """What a call returned: its texts, and its structured content where no text has the same."""
    texts = [text_of_content(part) for part in result.content]
    structured = result.structured_content
    if structured is None:
        return "\n".join(texts)
    if not texts:
        return structured
    if not _told(texts, structured):
        texts.append(json.dumps(structured, ensure_ascii=False))
    return "\n".join(texts)


def _told(texts: list[str], structured: Any) -> bool:
    """Whether texts have all of it; the SDKs wrap what is no object as `{"result": ...}`."""
    values = list(map(_value, texts))
    told = [*values, values, *texts, texts]
    wrapped = isinstance(structured, dict) and set(structured) == {"result"}
    return structured in told or (wrapped and structured["result"] in told)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def text_of_content(part: Any) -> str:
    """A part of what a server said; of what is no text, a note."""
    match part.type:
        case "text":
            return str(part.text)
        case "image" | "audio":
            return f"[{part.mime_type}, {_size(part.data)} bytes]"
        case "resource":
            return text_of_resource(part.resource)
        case "resource_link":
            return _line(part.uri, part.name, part.description)
    return f"[{part.type}]"


def text_of_resource(contents: Any) -> str:
    """The text of a resource; of what is no text, a note."""
    if hasattr(contents, "text"):
        return str(contents.text)
    kind = contents.mime_type or "application/octet-stream"
    return f"[{contents.uri}: {kind}, {_size(contents.blob)} bytes]"


def text_of_list(resources: Iterable[Any], templates: Iterable[Any]) -> str:
    """The resources that a server lists, one on a line."""
    lines = [_line(one.uri, one.name, one.description) for one in resources]
    lines += [_line(one.uri_template, one.name, one.description) for one in templates]
    return "\n".join(lines) or "There are none."


def messages_of_prompt(prompt: Any) -> list[Message]:
    """The messages of a prompt."""
    return [
        {"role": str(one.role), "content": text_of_content(one.content)} for one in prompt.messages
    ]


def prompt_of(row: Mapping[str, Any]) -> tuple[str, dict[str, str]] | None:
    """Which of the server's prompts a row names, and with which arguments.

    Raises:
        DataError: It is written otherwise.
    """
    named = row.get("mcp_prompt")
    if named is None:
        return None
    if isinstance(named, str):
        return named, {}
    arguments = named.get("arguments") or {} if isinstance(named, Mapping) else None
    if not isinstance(arguments, Mapping) or not isinstance(named.get("name"), str):
        raise DataError(
            f"the row's 'mcp_prompt' is {named!r:.200}; it must be a name, or {{'name': ..., "
            "'arguments': {...}}."
        )
    return named["name"], {str(key): str(value) for key, value in arguments.items()}


def _line(uri: Any, name: str, description: str | None) -> str:
    return f"{uri} ({name})" + (f": {description}" if description else "")


def _size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")
