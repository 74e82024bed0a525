"""What a chat template writes after an assistant's turn: its end, new messages, the next opening.

Only a short stand-in conversation is rendered, never the real one: a user's word, an assistant's
turn that fits the new messages (calls of the same ids and names, where they are results), and the
new messages. So it costs the same in the first turn and in the hundredth, and nothing that was
sampled is rendered again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gymnast.envs import probes
from gymnast.envs.chat_template import ChatTemplate
from gymnast.envs.safe_text import SafeText
from gymnast.envs.turns import Turns, call_end, common_start, first_token
from gymnast.errors import TemplateError

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Following:
    """Renders what comes after an assistant's turn.

    Attributes:
        template: The chat template.
        turns: How it brackets a turn.
        text: The tokenizer.
        writes_calls: Whether the template itself writes calls and results.
        as_text: Whether it takes a call's arguments as a JSON string.
        empty_content: The content of a message that is calls only; None leaves the key out.
    """

    template: ChatTemplate
    turns: Turns
    text: SafeText
    writes_calls: bool
    as_text: bool = False
    empty_content: str | None = ""

    def render(self, messages: Messages, *, with_tools: bool, generation_prompt: bool) -> str:
        """The text from the end of what the assistant wrote to where it writes again.

        Args:
            messages: The new messages.
            with_tools: Whether the conversation offers tools.
            generation_prompt: Whether to open the assistant's next turn.

        Raises:
            TemplateError: If the template refuses the messages after any turn they could follow.
        """
        tools = probes.tools() if with_tools and self.writes_calls else None
        refusal: TemplateError | None = None
        for turn in self._stand_ins(messages):
            before = [probes.user(), turn]
            try:
                full = self.template.render(
                    [*before, *messages], tools, generation_prompt=generation_prompt
                )
                end = self._end_of_turn(full, before, tools)
            except TemplateError as error:
                refusal = refusal or error
                continue
            if end is not None:
                return full[end:]
        raise refusal or TemplateError(
            f"the chat template of {self.template.tokenizer!r} rewrites an assistant's turn when "
            f"{[message.get('role') for message in messages]} follow it, so nothing can be appended"
        )

    def _end_of_turn(
        self, full: str, before: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> int | None:
        """Where the stand-in turn ends in a rendering; None where it is not in there as it was."""
        if not before[-1].get("tool_calls"):
            found = full.find(probes.TEXT, full.find(probes.USER))
            return found + len(probes.TEXT) if found >= 0 else None
        alone = self.template.render(before, tools, generation_prompt=False)
        end = call_end(alone, self.turns, self.text)
        return end if full.startswith(alone[:end]) else None

    def _stand_ins(self, messages: Messages) -> Iterator[dict[str, Any]]:
        """Assistant's turns that the messages could follow, the likeliest first."""
        results = [message for message in messages if message.get("role") == "tool"]
        if results and self.writes_calls:
            for answered in (results, results[-1:]):  # some templates take one call a turn
                yield self._calling(answered)
        yield probes.assistant()

    def _calling(self, results: Messages) -> dict[str, Any]:
        turn = probes.calling(1, content=self.empty_content, as_text=self.as_text)
        arguments = turn["tool_calls"][0]["function"]["arguments"]
        turn["tool_calls"] = [
            probes.openai_call(
                result.get("tool_call_id") or f"zqcall{number:03d}",
                result.get("name") or probes.NAMES[0],
                arguments,
            )
            for number, result in enumerate(results)
        ]
        return turn


def with_ends_of_calls(following: Following) -> Turns:
    """The turns, with the tokens that end a turn of calls where they are other ones.

    Raises:
        TemplateError: If the template writes calls, but refuses their results.
    """
    turns, text = following.turns, following.text
    if not following.writes_calls:
        return turns
    last = following.render([], with_tools=True, generation_prompt=False)
    called = probes.calling(1, content=following.empty_content, as_text=following.as_text)
    alone = following.template.render(
        [probes.user(), called], probes.tools(), generation_prompt=False
    )
    alone = alone[call_end(alone, turns, following.text) :]
    after = following.render([probes.result()], with_tools=True, generation_prompt=True)
    ends = first_token(text, common_start(alone, after)) - first_token(text, last)
    if ends:
        return replace(turns, closing=turns.closing | ends)
    begins = first_token(text, after)
    found = turns.closing & set(turns.end_tokens(text, text.encode(after, inside=True)).values())
    if (turns.closing and not found) or (turns.opening and not begins):
        raise TemplateError(
            f"the chat template of {following.template.tokenizer!r} ends a turn with calls in "
            f"another way than one without, so generation would not stop there: {after!r} follows "
            "the calls; pass another chat_template"
        )
    return turns if turns.closing else replace(turns, opening=turns.opening | begins)
