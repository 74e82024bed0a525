"""The messages of Anthropic's API, which are made of blocks, read into Gymnast's shape.

A user's message there may hold results of tools and text at once: these become messages of their
own, in the same order.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gymnast.envs.programs.dialects.requests import Refused
from gymnast.envs.programs.dialects.values import (
    mapping,
    name,
    refuse,
    sequence,
    shown,
    text,
)
from gymnast.types import Message

_ROLES = ("user", "assistant", "system")


def read_messages(system: Any, value: Any) -> list[Message]:
    """Read the system prompt and the messages of a request.

    Raises:
        Refused: They are no messages whose blocks are texts, calls and results.
    """
    messages: list[Message] = []
    if system is not None and (prompt := _text(system, "system")):
        messages.append({"role": "system", "content": prompt})
    given = sequence(value, "messages")
    if not given:
        refuse("messages", "a list of at least one message", value)
    for index, each in enumerate(given):
        here = f"messages[{index}]"
        role = mapping(each, here).get("role")
        if role not in _ROLES:
            refuse(f"{here}.role", "one of " + ", ".join(_ROLES), role)
        if role == "system":
            content = _text(each.get("content"), f"{here}.content")
            messages.append({"role": "system", "content": content})
        elif role == "user":
            messages += _user(each.get("content"), f"{here}.content")
        else:
            messages.append(_assistant(each.get("content"), f"{here}.content"))
    if messages[-1]["role"] == "assistant":
        raise Refused(
            "messages: the last message is the assistant's, and an answer that has been begun "
            "cannot be gone on with. End with a user's message.",
            param="messages",
        )
    return messages


def _user(value: Any, param: str) -> list[Message]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    messages: list[Message] = []
    texts: list[str] = []

    def end_text() -> None:
        if texts:
            messages.append({"role": "user", "content": "\n".join(texts)})
            texts.clear()

    for here, block in _blocks(value, param):
        match block.get("type"):
            case "text":
                texts.append(text(block.get("text"), f"{here}.text"))
            case "tool_result":
                end_text()
                content = block.get("content")
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": name(block.get("tool_use_id"), f"{here}.tool_use_id"),
                        "content": "" if content is None else _text(content, f"{here}.content"),
                    }
                )
            case kind:
                _refuse_block(here, kind)
    end_text()
    return messages or [{"role": "user", "content": ""}]


def _assistant(value: Any, param: str) -> Message:
    if isinstance(value, str):
        return {"role": "assistant", "content": value}
    texts, thoughts, calls = [], [], []
    for here, block in _blocks(value, param):
        match block.get("type"):
            case "text":
                texts.append(text(block.get("text"), f"{here}.text"))
            case "thinking":
                thoughts.append(text(block.get("thinking"), f"{here}.thinking"))
            case "redacted_thinking":
                pass  # it was not said here
            case "tool_use":
                function = {
                    "name": name(block.get("name"), f"{here}.name"),
                    "arguments": mapping(block.get("input"), f"{here}.input"),
                }
                call_id = name(block.get("id"), f"{here}.id")
                calls.append({"id": call_id, "type": "function", "function": function})
            case kind:
                _refuse_block(here, kind)
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thought := "".join(thoughts):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _text(value: Any, param: str) -> str:
    """A text, or a list of text blocks, which become its paragraphs."""
    if isinstance(value, str):
        return value
    texts = []
    for here, block in _blocks(value, param):
        if block.get("type") != "text":
            _refuse_block(here, block.get("type"))
        texts.append(text(block.get("text"), f"{here}.text"))
    return "\n".join(texts)


def _blocks(value: Any, param: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
    if not isinstance(value, list):
        refuse(param, "a string or a list of blocks", value)
    return [
        (here := f"{param}[{index}]", mapping(block, here)) for index, block in enumerate(value)
    ]


def _refuse_block(param: str, kind: Any) -> NoReturn:
    raise Refused(
        f"{param}: the model reads texts, calls and their results, and this is a block of the "
        f"type {shown(kind)}. Leave it out, or put it into words.",
        param=param,
    )
