"""Plain text to token ids and back, without a chat template; with one, `renderer.py`.

Such a context is what `/v1/completions` asks to go on: a text, what was sampled, and what a later
request appends to both.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gymnast.envs.records.messages import text_of
from gymnast.envs.rendering.calls.payloads import Tools
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.types import Message

_LOOK_BACK = 8  # tokens of the context, beside which an action reads as it does in the whole text


class TextRenderer:
    """Plain text to token ids, with the methods of `Renderer` that a context uses.

    Texts are the contents of messages, one after another. As in `Renderer`, no id of an added token
    comes from them. Once built, it only fills caches, so threads may share it.

    Args:
        tokenizer: A fast tokenizer of Transformers.

    Attributes:
        stop_ids: The id of the tokenizer's end of text; none if it has none.

    Raises:
        ModelError: The tokenizer is not a fast one.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._text = SafeText(tokenizer)
        end, begin = tokenizer.eos_token_id, tokenizer.bos_token_id
        self.stop_ids: tuple[int, ...] = () if end is None else (end,)
        begins = begin is not None and list(tokenizer.encode("")[:1]) == [begin]
        self._first = [begin] if begins else []

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Tools = None) -> list[int]:
        """The ids of a text, after the one that the tokenizer begins every text with."""
        return [*self._first, *self._encode(messages, inside=False)]

    def parse(
        self, completion_ids: Sequence[int], *, context_ids: Sequence[int] = (), tools: Tools = None
    ) -> Message:
        """Read what the policy sampled: all of it but the stop id is the content."""
        ids = list(completion_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        before = list(context_ids[-_LOOK_BACK:])
        read, beside = self.decode(before), self.decode([*before, *ids])
        text = beside[len(read) :] if beside.startswith(read) else self.decode(ids)
        return {"role": "assistant", "content": text, "tool_calls": []}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, added tokens included; what is no token id is skipped."""
        return self._text.decode(ids)

    def observe(
        self,
        context_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Tools = None,
        generation_prompt: bool = True,
    ) -> list[int]:
        """The ids of the text that follows an action."""
        return self._encode(messages, inside=True)

    def __copy__(self) -> "TextRenderer":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "TextRenderer":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return text_renderer_of, (self.tokenizer,)

    def _encode(self, messages: Sequence[Mapping[str, Any]], *, inside: bool) -> list[int]:
        text = "".join(map(text_of, messages))
        if not text:
            return []
        protected, marker = self._text.breaker.protect(text)
        return self._text.encode(protected, marker, inside=inside)


@lru_cache(8)
def text_renderer_of(tokenizer: Any) -> TextRenderer:
    """The text renderer of a tokenizer, made once."""
    return TextRenderer(tokenizer)
