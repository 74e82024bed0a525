r"""From an assistant's message to its action, the ids that an agent would have sampled to say it.

This is the way back of `completion.py`. A stand-in conversation, a user's message and then this
one, is rendered. The action begins where the generation prompt ends, and ends with the token that
stops generation:

    <|im_start|>user\n...<|im_end|>\n<|im_start|>assistant\n  Hello.<|im_end|>  \n
                                            generation prompt  action

A thought that the generation prompt opens, and the template never writes, is closed first.
`difference` compares a message with what is read from its action.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gymnast.envs.records.messages import in_openai_shape
from gymnast.envs.rendering import plain_protocol
from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.calls.markup import common_start, shared_length
from gymnast.envs.rendering.calls.payloads import Tools
from gymnast.envs.rendering.completion import STRICT_ID
from gymnast.envs.rendering.conventions import Conventions
from gymnast.envs.rendering.template.turns import after_cut
from gymnast.errors import TemplateError, UsageError
from gymnast.types import Message, ToolCall


@dataclass(frozen=True)
class Encoder:
    """Writes actions.

    Attributes:
        conventions: What was derived from the chat template.
    """

    conventions: Conventions

    def encode(
        self, message: Mapping[str, Any], tools: Tools, thought: str, marker: str | None
    ) -> Iterator[list[int]]:
        """The ids of an action, in the ways that the template writes it.

        First as the conversation's last turn; then as it stands when more follows, because some
        templates write only that form consistently; last with its thought added, if the template
        leaves it out.

        Args:
            message: The message as the template takes it, its added tokens broken.
            tools: The schemas that were offered.
            thought: The message's thought, its added tokens broken.
            marker: The marker that they were broken with.

        Raises:
            TemplateError: If the template refuses the message.
        """
        message, tools = self._with_ids(message), self._passed(message, tools)
        after = self._after(message)
        for following, thinks in (([], False), (after, False), ([], True)):
            try:
                written = self._written(message, following, tools)
            except TemplateError:
                if following:
                    continue
                raise
            written = self._with_thought(written, thought, thinks)
            ids = self.conventions.text.encode(written, marker, inside=True)
            ends = self.conventions.turns.closing | self.conventions.turns.opening
            stop = next((index for index, number in enumerate(ids) if number in ends), None)
            if stop is not None:
                yield ids[: stop + 1]
            elif not following:
                written = written.removesuffix(self.conventions.turns.after_last)
                ids = self.conventions.text.encode(written, marker, inside=True)
                yield [*ids, *self._end(after, tools, ids)]

    def _with_ids(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The message with an id for each call that has none that the template accepts."""
        calls = []
        for index, call in enumerate(message.get("tool_calls") or ()):
            written = str(call.get("id") or "")
            if not written or (self.conventions.strict_ids and not STRICT_ID.fullmatch(written)):
                content = f"{index} {_canonical(call['function'])}"
                call = call | {"id": hashlib.sha256(content.encode()).hexdigest()[:9]}
            calls.append(call)
        return {**message, "tool_calls": calls} if calls else message

    def _passed(self, message: Mapping[str, Any], tools: Tools) -> Tools:
        """The schemas to pass to the template: stand-ins where it demands some and has none."""
        stand_ins = self.conventions.following.tools
        if stand_ins is None or tools:
            return tools if stand_ins else None
        return stand_ins if message.get("tool_calls") or self._wants_tools else None

    @cached_property
    def _wants_tools(self) -> bool:
        try:
            self.conventions.following.template.render([probes.user()], generation_prompt=True)
        except TemplateError:
            return True
        return False

    def _written(self, message: Mapping[str, Any], after: list[Any], tools: Tools) -> str:
        """What the template writes for messages after the generation prompt."""
        messages = [dict(message), *after]
        if self.conventions.plain:
            messages = plain_protocol.rewrite(messages, None, takes_system=True)
        dialect = self.conventions.following.dialect
        before = [probes.user()]
        if tools and dialect is not None and dialect.needs_system:
            before.insert(0, probes.system(""))
        template = self.conventions.following.template
        prompt = template.render(before, tools, generation_prompt=True)
        whole = template.render([*before, *messages], tools, generation_prompt=False)
        begin = prompt.rfind(probes.USER) + len(probes.USER)
        same = whole.startswith(prompt[:begin])
        turn = whole[begin:] if same else whole.partition(probes.USER)[2]
        return turn[self._begin(turn, prompt[begin:]) :]

    def _begin(self, turn: str, opening: str) -> int:
        """Where the action begins after the user's text.

        Args:
            turn: Everything after the user's text.
            opening: The generation prompt, which a template may write differently in a turn.
        """
        if turn.startswith(opening):
            return len(opening)
        added = self.conventions.text.added
        tokens = "|".join(map(re.escape, sorted(added, key=len, reverse=True)))
        pieces = [piece for piece in re.split(rf"({tokens})|\s+", opening) if piece]
        if start := re.match(r"\s*" + r"\s*".join(map(re.escape, pieces)), turn):
            space = opening[len(opening.rstrip()) :]
            return start.end() + shared_length(space, turn[start.end() :])
        shared = len(common_start(turn, opening, added))
        while re.match(r"\w\w", turn[max(shared - 1, 0) :]):  # never within a word
            shared -= 1
        last = next((piece for piece in reversed(pieces) if piece in added), None)
        past = re.compile(rf"\s*{re.escape(last)}").match(turn, shared) if last else None
        return past.end() if past else shared

    def _with_thought(self, written: str, thought: str, thinks: bool) -> str:
        """The written action, with the thought that the template leaves out.

        Args:
            written: What the template writes.
            thought: The message's thought; "" where it has none.
            thinks: Whether to add the thought though the template writes some thoughts.
        """
        reasoning = self.conventions.reasoning
        if reasoning is None or (reasoning.written and not thinks):
            return written
        if not (thought or reasoning.prewritten):
            return written
        opening = "" if reasoning.prewritten else f"{reasoning.open}\n"
        return f"{opening}{thought}\n{reasoning.close}\n\n{written.lstrip()}"

    def _after(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What may follow a message: results of its calls, or a user's message."""
        calls = message.get("tool_calls") or ()
        return [
            probes.result() | {"tool_call_id": call.get("id", ""), "name": call["function"]["name"]}
            for call in calls
        ] or [probes.user("Zqnext")]

    def _end(self, after: list[dict[str, Any]], tools: Tools, ids: list[int]) -> list[int]:
        """The end of a turn that the template writes only before what follows."""
        if self.conventions.plain:
            after = plain_protocol.rewrite(after, None, takes_system=True)
        following = self.conventions.following.render(after, tools, generation_prompt=True)
        end = self.conventions.text.encode(following, inside=True)
        added = self.conventions.turns.end_tokens(self.conventions.text, end)
        reach = [index for index, number in added.items() if number in self.conventions.stop_ids]
        if not reach:
            return list(self.conventions.stop_ids[:1])
        return after_cut(end[: reach[0] + 1], ids, self.conventions.turns, self.conventions.text)


def check_sayable(message: Mapping[str, Any]) -> None:
    """Refuse a message that no action can say.

    Raises:
        UsageError: If it is not an assistant's message, or has a call that could not be read.
    """
    role = in_openai_shape(message)["role"]
    if role != "assistant":
        raise UsageError(
            f"a message with the role {role!r} cannot be an action; only an assistant's can. "
            "Pass other messages to Renderer.prompt or Renderer.observe"
        )
    for call in message.get("tool_calls") or ():
        error = call.error if isinstance(call, ToolCall) else call.get("error")
        if error is not None:
            raise UsageError(
                f"the call {call!r:.200} cannot be an action, because it has an error. Leave it "
                "out, or keep the ids that were sampled"
            )


def difference(message: Mapping[str, Any], read: Message, written: str) -> str | None:
    """The part of a message that its action does not say, as an error's text, or None.

    Args:
        message: The message to say.
        read: The message that is read from the action.
        written: The action's text.
    """
    for part, (meant, got, way_out) in _compared(message, read).items():
        if meant != got:
            return (
                f"cannot say this message: its {part}, {meant:.200}, would be read as {got:.200} "
                f"in {written!r:.400}. {way_out}"
            )
    return None


def _compared(message: Mapping[str, Any], read: Message) -> dict[str, tuple[str, str, str]]:
    """What is meant, what is read, and the way out where they differ, by the parts of a message."""
    shaped = in_openai_shape(message)
    calls = [call["function"] for call in shaped.get("tool_calls", ())]
    read_calls = [
        {"error": call.error} if call.error else {"name": call.name, "arguments": call.arguments}
        for call in read["tool_calls"]
    ]
    text, thought = (str(shaped.get(key) or "") for key in ("content", "reasoning_content"))
    own, own_thought = read["content"] or "", read.get("reasoning_content") or ""
    reword = "Word it without the template's markup"
    types = "Pass the tools' schemas as tools=..., which give the types of arguments, or use "
    beside = "Leave it out, or put it in a message of its own"
    return {
        "tool_calls": (
            _canonical(calls),
            _canonical(read_calls),
            f"{types}arguments without the template's markup" if calls else f"{reword} of calls",
        ),
        "content": (repr(text.strip()), repr(own.strip()), reword if own or not calls else beside),
        "reasoning_content": (
            repr(thought.strip()),
            repr(own_thought.strip()),
            reword if own_thought else "Leave it out: the template writes none here",
        ),
    }


def _canonical(value: Any) -> str:
    """JSON that distinguishes 1, 1.0 and True, and ignores the order of keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
