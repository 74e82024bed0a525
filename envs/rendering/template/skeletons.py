"""Skeletons: what a template writes for messages of one shape, as a text to fill in.

A template is rendered with marks for the contents, names and ids of the messages, and cut at the
marks. It may do more with a content than copy it: strip it, cut it, write it as JSON, compare it
with something. So the skeleton is tried on contents and names that would show this: white space,
quotes, a long text, and every string in the template itself. If it gives a different text for any
of them, there is no skeleton, and every message is rendered.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnast.errors import TemplateError

Shape = tuple[tuple[str, ...], ...]
"""The role and the other keys of every message."""

_TRANSFORMS: tuple[Callable[[str], str], ...] = (
    str,
    str.strip,
    # As JSON; the quotes around it stand in the text.
    lambda content: json.dumps(content, ensure_ascii=False)[1:-1],
    lambda content: json.dumps(content)[1:-1],
)
_CONTENTS = (
    "",
    " \n",
    " a\t\n",
    "\n\nb ",
    'say "hi"',
    "it's",
    "a\\b",
    "\u00e9 \u4e2d",
    "<b> & {x} %",
    "7",
    "[]",
    "OK",
    "Long words. " * 2000,
)
_MOST_MESSAGES = 8
_MARK = re.compile(r"zqslot(\d{3})")  # nine letters and digits: the strictest rule for ids
_NAMES_AND_IDS = {"name": re.compile(r"[\w.\-]+"), "tool_call_id": re.compile(r"[A-Za-z0-9]{9}")}


def shape_of(messages: Sequence[Mapping[str, Any]]) -> Shape | None:
    """The shape of messages; None where they hold more than text, a name and an id of their own.

    Some templates look up a result's name by its id, so results that share an id have no shape. Nor
    do many messages: making a skeleton costs as much as rendering them a hundred times.
    """
    if len(messages) > _MOST_MESSAGES:
        return None
    for message in messages:
        for key, value in message.items():
            rule = _NAMES_AND_IDS.get(key)
            known = key in ("role", "content") or (rule and isinstance(value, str))
            if not known or (rule and not rule.fullmatch(value)):
                return None
        if not isinstance(message.get("content"), str):
            return None
    ids = [message["tool_call_id"] for message in messages if "tool_call_id" in message]
    if len(set(ids)) < len(ids):
        return None
    return tuple(
        (str(message["role"]), *sorted(key for key in message if key != "role"))
        for message in messages
    )


@dataclass(frozen=True)
class Skeleton:
    """What a template writes for messages of one shape.

    Attributes:
        pieces: Text, or the message's index and the key whose value goes there.
        transform: What the template does with a content.
    """

    pieces: tuple[str | tuple[int, str], ...]
    transform: Callable[[str], str]

    @classmethod
    def of(
        cls,
        shape: Shape,
        render: Callable[[list[dict[str, Any]]], str],
        literals: Collection[str],
    ) -> "Skeleton | None":
        """Make the skeleton of a shape; None if the template does more than copy and transform.

        Args:
            shape: The shape of the messages.
            render: Renders messages with the template.
            literals: The strings that the template can compare a message with.
        """
        slots = [(index, key) for index, (_, *keys) in enumerate(shape) for key in keys]
        marked = [{"role": role} for role, *_ in shape]
        for number, (index, key) in enumerate(slots):
            marked[index][key] = f"zqslot{number:03d}"
        try:
            parts = _MARK.split(render(marked))
            pieces = tuple(
                part if number % 2 == 0 else slots[int(part)] for number, part in enumerate(parts)
            )
            tries = _tries(marked, [*sorted(literals), *(f"x{text}x" for text in sorted(literals))])
            written = [render(messages) for messages in tries]
        except (TemplateError, IndexError):
            return None
        for transform in _TRANSFORMS:
            skeleton = cls(pieces, transform)
            if all(map(str.__eq__, map(skeleton.fill, tries), written)):
                return skeleton
        return None

    def fill(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """What the template writes for messages of the skeleton's shape."""
        filled = []
        for piece in self.pieces:
            if isinstance(piece, str):
                filled.append(piece)
                continue
            index, key = piece
            value = messages[index][key]
            filled.append(self.transform(value) if key == "content" else value)
        return "".join(filled)


def _tries(marked: list[dict[str, Any]], literals: list[str]) -> list[list[dict[str, Any]]]:
    """The messages with contents, names and ids that a template may treat in its own way."""
    names = [text for text in literals if _NAMES_AND_IDS["name"].fullmatch(text)] or ["f"]
    tries = []
    for number, content in enumerate([*_CONTENTS, *literals]):
        values = {"content": content, "name": names[min(number, len(names) - 1)]}
        messages = [
            message
            | {key: value for key, value in values.items() if key in message}
            | ({"tool_call_id": f"call{index:05d}"} if "tool_call_id" in message else {})
            for index, message in enumerate(marked)
        ]
        tries.append(messages)
    return tries
