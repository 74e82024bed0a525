"""From sampled ids to the assistant's message: its text, its thought, its calls.

Which parser reads is settled once: the user's, else the tokenizer's response template, else the
dialect derived from the chat template, or the plain protocol's. Nothing that a model can write
raises; a call that cannot be read is in the message, with an `error`. The way back, from a message
to ids, is `encoding.py`.

A model can write `<|"|>` as one token, which ends a string, or letter by letter, as text in that
string. Decoded, both look the same. Where a completion has the token itself, text that only spells
it gets a marker before the completion is read, which is taken out of the result. Where a completion
has the markup in letters alone, they are read as markup: a policy that has not learned the token
yet means it all the same.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gymnast.envs.rendering import plain_protocol
from gymnast.envs.rendering.calls.payloads import Tools
from gymnast.envs.rendering.conventions import Conventions
from gymnast.envs.rendering.dialects.dialect import Dialect, read_calls, read_near_miss
from gymnast.envs.rendering.template.reasoning import Reasoning
from gymnast.envs.rendering.tokens.markers import change_strings
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.envs.rendering.user_parser import Parser, run_parser
from gymnast.types import Message, ToolCall

_MARKER = "\ue0ff"  # in text that only spells a token

STRICT_ID = re.compile(r"[A-Za-z0-9]{9}")
"""The rule of the strictest template for a call's id."""


@dataclass(frozen=True)
class Reader:
    """Reads completions.

    Attributes:
        conventions: What was derived from the chat template.
        parser: The user's parser; None where the conventions say how calls are read.
    """

    conventions: Conventions
    parser: Parser | None = None

    def read(
        self, completion_ids: Sequence[int], context_ids: Sequence[int], tools: Tools
    ) -> Message:
        """Read a completion, as `Renderer.parse` describes."""
        if self.parser is not None:
            content, calls = run_parser(
                self.parser, self.conventions.text.decode(self._without_stop(completion_ids))
            )
            thought, content = "", self.conventions.turns.unwrap(content)
        elif self.conventions.response is not None:
            parsed = self.conventions.response.read(
                completion_ids, context_ids, tools, self.conventions.stop_ids
            )
            thought, content, calls = parsed.reasoning, parsed.content, parsed.calls
            derived = self.conventions.dialect is not None
            if derived and not calls:
                content, calls = read_near_miss(content, self._dialect, _parameters(tools))
        else:
            thought, content, calls = self._by_dialect(completion_ids, context_ids, tools)
        message: Message = {
            "role": "assistant",
            "content": content,
            "tool_calls": self._with_ids(calls, len(context_ids)),
        }
        if thought:
            message["reasoning_content"] = thought
        return message

    def _by_dialect(
        self, completion_ids: Sequence[int], context_ids: Sequence[int], tools: Tools
    ) -> tuple[str, str, list[ToolCall]]:
        text, marker = decode_with_marker(self._without_stop(completion_ids), self.conventions.text)
        thought, answer, dialect = "", "", self._dialect
        if self.conventions.channels is not None:
            thought, answer, text = self.conventions.channels.split(text)
        elif self.conventions.reasoning is not None:
            thought, text = self.conventions.reasoning.split(
                text,
                prewritten=self._is_thinking(self.conventions.reasoning, context_ids),
                until=(dialect.section_open, dialect.open, *self.conventions.turns.before_text),
                alone=self.conventions.reasoning.close not in dialect.beside,
            )
        opening = dialect.open if dialect.prewritten else ""
        content, calls = read_calls(opening + text, dialect, _parameters(tools))
        content = "\n".join(filter(None, (answer, content)))
        thought, content = without_marker([thought, self.conventions.turns.unwrap(content)], marker)
        return thought, content, [_without_marker(call, marker) for call in calls]

    @property
    def _dialect(self) -> Dialect:
        return self.conventions.dialect or plain_protocol.DIALECT

    def _without_stop(self, ids: Sequence[int]) -> Sequence[int]:
        """A completion without its stop token, unless that closes a call."""
        if not len(ids) or ids[-1] not in self.conventions.stop_ids:
            return ids
        closes = self._dialect.close + self._dialect.section_close
        return ids if self.conventions.text.decode(ids[-1:]) in closes else ids[:-1]

    def _is_thinking(self, reasoning: Reasoning, context_ids: Sequence[int]) -> bool:
        """Whether the context ends with the opening of a thought."""
        if not len(context_ids) or not reasoning.open:
            return reasoning.prewritten
        end = self.conventions.text.decode(context_ids[-len(reasoning.open) - 4 :])
        return end.rstrip().endswith(reasoning.open)

    def _with_ids(self, calls: Sequence[ToolCall], position: int) -> list[ToolCall]:
        """Give every call an id of its own.

        An id that the model wrote is kept where the template accepts it. Others get nine letters
        and digits, the strictest template's rule. The position grows from turn to turn by more than
        a turn can have calls, so ids differ within an episode.
        """
        numbered: list[ToolCall] = []
        seen: set[str] = set()
        for index, call in enumerate(calls):
            taken = not self.conventions.strict_ids or STRICT_ID.fullmatch(call.id)
            if self.conventions.strict_ids and self.conventions.text.breaker.is_suspicious(call.id):
                taken = None  # it could not be written again unchanged
            own = call.id if call.id and taken and call.id not in seen else ""
            own = own or _own_id(position + index)
            seen.add(own)
            numbered.append(replace(call, id=own))
        return numbered


def decode_with_marker(ids: Sequence[Any], text: SafeText) -> tuple[str, str]:
    """Decode a completion; return its text, and the marker in what only spells a token, or ""."""
    decoded = text.decode(ids)
    tokens = Counter(token for token in map(text.token_content, ids) if token)
    if all(decoded.count(token) <= count for token, count in tokens.items()):
        return decoded, ""
    if _MARKER in decoded:
        return decoded, ""
    parts: list[str] = []
    stretch: list[Any] = []  # a token that is markup, and the ids up to the next one
    for number in [*ids, None]:
        token = text.token_content(number) if number is not None else ""
        if number is None or token in tokens:
            # Decoded with the token before it, since a decoder may strip a text's first space.
            written = text.decode(stretch)
            before = text.token_content(stretch[0]) if stretch else ""
            before = before if written.startswith(before) else ""
            written = written.removeprefix(before)
            for spelled in tokens:
                written = written.replace(spelled, spelled[0] + _MARKER + spelled[1:])
            parts += [before, written]
            stretch = []
        stretch.append(number)
    return "".join(parts), _MARKER


def without_marker(value: Any, marker: str) -> Any:
    """A copy of a parsed value, without the marker in any of its strings."""
    if not marker:
        return value
    return change_strings(value, lambda string: string.replace(marker, ""), "data")


def _own_id(number: int) -> str:
    """An id of nine letters and digits, distinct for up to a hundred million numbers."""
    digits = f"{number:05d}"
    return "call"[: 9 - len(digits)] + digits


def _without_marker(call: ToolCall, marker: str) -> ToolCall:
    if not marker:
        return call
    call_id, name, error = without_marker([call.id, call.name, call.error], marker)
    return ToolCall(call_id, name, without_marker(call.arguments, marker), error)


def _parameters(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """The schema of every tool's parameters, by the tool's name."""
    functions = [tool.get("function", tool) for tool in tools or ()]
    return {str(function.get("name")): function.get("parameters") or {} for function in functions}
