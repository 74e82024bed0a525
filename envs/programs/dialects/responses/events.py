"""An answer as OpenAI's responses write it: the items of its output, and the events of a stream."""

from collections.abc import Iterator, Mapping
from typing import Any

from gymnast.envs.programs.dialects.dialect import event, new_id
from gymnast.envs.programs.dialects.telling import Told, written_arguments


def output_items(seen: Told) -> list[dict[str, Any]]:
    """The items of an answer: its thought, its text, its calls."""
    status = "incomplete" if seen.finish == "length" else "completed"
    items: list[dict[str, Any]] = []
    if seen.reasoning:
        content = [{"type": "reasoning_text", "text": seen.reasoning}]
        items.append({"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": content})
    if seen.content or not seen.calls:
        part = {"type": "output_text", "text": seen.content, "annotations": [], "logprobs": []}
        items.append(
            {
                "id": new_id("msg_"),
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": [part],
            }
        )
    for call in seen.calls:
        items.append(
            {
                "id": new_id("fc_"),
                "type": "function_call",
                "status": "completed",
                "call_id": call.id,
                "name": call.name,
                "arguments": written_arguments(call),
            }
        )
    return items


def written_events(response: Mapping[str, Any]) -> bytes:
    """The events of a response.

    Args:
        response: The whole response.
    """
    return b"".join(
        event({"type": kind, **data, "sequence_number": number}, kind)
        for number, (kind, data) in enumerate(_events(response))
    )


def _events(response: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    begun["incomplete_details"] = None
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(response["output"]):
        at = {"item_id": item["id"], "output_index": index}
        yield "response.output_item.added", {"output_index": index, "item": _begun(item)}
        if item["type"] == "function_call":
            arguments = item["arguments"]
            yield "response.function_call_arguments.delta", {**at, "delta": arguments}
            done = {**at, "name": item["name"], "arguments": arguments}
            yield "response.function_call_arguments.done", done
        else:
            yield from _content_events(item["content"][0], {**at, "content_index": 0})
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{response['status']}", {"response": response}


def _content_events(
    part: Mapping[str, Any], at: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    is_thought = part["type"] == "reasoning_text"
    kind = f"response.{part['type']}"
    logprobs: dict[str, Any] = {} if is_thought else {"logprobs": []}
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    if part["text"]:
        yield f"{kind}.delta", {**at, "delta": part["text"], **logprobs}
    yield f"{kind}.done", {**at, "text": part["text"], **logprobs}
    yield "response.content_part.done", {**at, "part": part}


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item before anything of it is known."""
    begun = dict(item)
    if "status" in begun:
        begun["status"] = "in_progress"
    if "content" in begun:
        begun["content"] = []
    if "arguments" in begun:
        begun["arguments"] = ""
    return begun
