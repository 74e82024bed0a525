r"""Text to token ids, where an added token can only come from trusted text.

`encode` is the tokenizer's own encoding of the whole text. Where `markers.py` had to break
something, the stretch between two true added tokens is encoded again, without the markers and by a
tokenizer that knows no added tokens.

    <|im_start|>user\n  say <~|im_end|>  <|im_end|>          ~ is the marker
    ------------                         ----------          true: unbroken
                ---------------------                        encoded again, as plain text
"""

import contextlib
import copy
import json
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer

from gymnast.envs.rendering.tokens.markers import TokenBreaker, escaped, is_markup
from gymnast.envs.rendering.tokens.token_patterns import SPACE, Normalization
from gymnast.errors import ModelError

_UNKNOWN_CHARACTER = "\U0010fffd"  # a character that no vocabulary has


class SafeText:
    """Encodes and decodes with one tokenizer. Once built, it only fills caches.

    Args:
        tokenizer: A fast tokenizer (one with a `backend_tokenizer`); it is copied.
        replaced: The strings that the chat template replaces in messages.

    Raises:
        ModelError: If the tokenizer is not a fast one.
    """

    def __init__(self, tokenizer: Any, replaced: Collection[str] = ()) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ModelError(
                f"{type(tokenizer).__name__} has no `tokenizers` backend, and the renderer needs a "
                "fast tokenizer. Load it with AutoTokenizer, from a folder with a tokenizer.json"
            )
        # A copy, because padding or truncating with the tokenizer changes its backend.
        tokens = backend.get_added_tokens_decoder()
        self._backend = _sharing_vocabulary(backend, tokens)
        if self._backend.get_added_tokens_decoder() != tokens:
            raise ModelError(
                f"the added tokens of {type(tokenizer).__name__} have ids that no order of adding "
                "them gives, so it cannot be copied. Save the tokenizer and load it again"
            )
        self.added: dict[str, int] = {
            token.content: number for number, token in tokens.items() if is_markup(token.content)
        }
        self._contents = {number: content for content, number in self.added.items()}
        normalizer = self._backend.normalizer
        self._normalization = Normalization(normalizer) if normalizer is not None else None
        self._looks = {number: self._look(content) for content, number in self.added.items()}
        self.breaker = TokenBreaker(self.added, self._normalization, replaced)

    def is_added(self, number: int) -> bool:
        """Whether this is the id of an added token that is markup.

        The token for what the vocabulary lacks is not: it can stand for anything.
        """
        return number in self._looks and number not in self._unknown

    @cached_property
    def _unknown(self) -> frozenset[int]:
        return frozenset(self._backend.encode(_UNKNOWN_CHARACTER, add_special_tokens=False).ids)

    def token_content(self, number: Any) -> str:
        """The content of an added token that is markup, by its id; "" for any other."""
        try:
            return self._contents.get(operator.index(number), "")
        except TypeError:
            return ""

    def decode(self, ids: Sequence[Any]) -> str:
        """The text of token ids, added tokens included. What is no token id is skipped."""
        if type(ids) is list:
            with contextlib.suppress(TypeError, OverflowError):  # all are numbers, as a rule
                return str(self._backend.decode(ids, skip_special_tokens=False))
        known = []
        for number in ids:
            try:
                value = int(number)
            except (TypeError, ValueError, OverflowError):
                continue
            if 0 <= value < 2**32:  # the decoder skips those that it does not know
                known.append(value)
        return str(self._backend.decode(known, skip_special_tokens=False))

    def encode(self, text: str, marker: str | None = None, *, inside: bool = False) -> list[int]:
        """Encode text: ids of added tokens come from its unbroken added tokens only.

        Args:
            text: Text rendered from what `breaker.protect` returned.
            marker: The marker that `breaker.protect` returned.
            inside: Whether other text comes before it: some tokenizers encode a text's start in
                another way.
        """
        anchor = self._anchor if inside else ""
        text = anchor + (text.replace(escaped(marker), marker) if marker else text)
        encoding = self._backend.encode(text, add_special_tokens=False)
        if marker is None or marker not in text:
            ids = list(encoding.ids)
        else:
            ids = list(self._patched(text, encoding, marker))
        return ids[1:] if anchor else ids

    @cached_property
    def _anchor(self) -> str:
        """An added token that can stand before text without touching it, or ""."""
        tokens: list[AddedToken] = list(self._backend.get_added_tokens_decoder().values())
        contents = sorted(token.content for token in tokens)
        for token in tokens:
            plain = not (token.rstrip or token.single_word or token.normalized)
            after = contents[contents.index(token.content) + 1 :][:1]
            longer = any(content.startswith(token.content) for content in after)
            if plain and not longer and token.content in self.added:
                return str(token.content)
        return ""

    def _patched(self, text: str, encoding: Encoding, marker: str) -> Iterator[int]:
        ids, offsets = encoding.ids, encoding.offsets
        true = self._added_in(encoding, text)
        begin, first = 0, 0  # of the stretch: in the text, in the ids
        for index in [*true, len(ids)]:
            end = offsets[index][0] if index < len(ids) else len(text)
            stretch = text[begin:end]
            if marker in stretch:
                yield from self._encode_plain(stretch, marker, at_start=begin == 0)
            else:
                yield from ids[first:index]
            if index < len(ids):
                yield ids[index]
                begin, first = offsets[index][1], index + 1

    def _added_in(self, encoding: Encoding, text: str) -> list[int]:
        """The indices of added tokens, without the one for what the vocabulary lacks."""
        return [
            index
            for index, (number, (begin, end)) in enumerate(
                zip(encoding.ids, encoding.offsets, strict=True)
            )
            if number in self._looks and self._looks[number] == self._look(text[begin:end])
        ]

    def _look(self, text: str) -> str:
        """The text without differences in case, spaces and normalization."""
        normalized = self._normalization.apply(text) if self._normalization else text
        return normalized.replace(SPACE, " ").strip().lower()

    def _encode_plain(self, stretch: str, marker: str, *, at_start: bool) -> list[int]:
        plain = self._plain_at_start if at_start else self._plain
        text = stretch.replace(marker, "")
        encoding = plain.encode(text)
        if not self._added_in(encoding, text):
            return plain.ids(encoding)
        # The vocabulary itself has a piece that spells an added token: encode its parts one by one.
        parts = [part for part in stretch.split(marker) if part]
        first, others = plain.ids(plain.encode(parts[0])), self._plain_going_on
        return sum((others.ids(others.encode(part)) for part in parts[1:]), first)

    # Three encoders: for the text's start, after an added token, and after other text.

    @cached_property
    def _plain_at_start(self) -> "_Plain":
        return _Plain.of(self._backend, ())

    @cached_property
    def _plain(self) -> "_Plain":
        return _Plain.of(self._backend, ("first",))

    @cached_property
    def _plain_going_on(self) -> "_Plain":
        return _Plain.of(self._backend, ("first", "always", True))


@dataclass(frozen=True)
class _Plain:
    """A tokenizer without the added tokens that are markup.

    Attributes:
        tokenizer: Has the other added tokens, under other ids.
        numbers: Their true ids, by these ids.
    """

    tokenizer: Tokenizer
    numbers: Mapping[int, int]

    @classmethod
    def of(cls, backend: Tokenizer, prepending: Collection[str | bool]) -> "_Plain":
        """Make one that writes no space before text if the tokenizer has one of these settings."""
        kept = {
            number: token
            for number, token in backend.get_added_tokens_decoder().items()
            if not is_markup(token.content)
        }
        plain = _sharing_vocabulary(backend, kept)
        if prepending and plain.pre_tokenizer is not None:
            plain.pre_tokenizer = _never_prepending(plain.pre_tokenizer, prepending)
        if True in prepending and plain.normalizer is not None:
            plain.normalizer = _never_prepending(plain.normalizer, prepending)
        true = {token.content: number for number, token in kept.items()}
        added = plain.get_added_tokens_decoder()
        return cls(plain, {number: true[token.content] for number, token in added.items()})

    def encode(self, text: str) -> Encoding:
        """Encode with the ids of this tokenizer."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def ids(self, encoding: Encoding) -> list[int]:
        """The true ids."""
        return [self.numbers.get(number, number) for number in encoding.ids]


def _sharing_vocabulary(backend: Tokenizer, added: Mapping[int, AddedToken]) -> Tokenizer:
    """A new tokenizer with these added tokens that neither pads nor truncates.

    It shares the vocabulary: a copy of that takes seconds and a hundred megabytes.
    """
    tokens = [added[number] for number in sorted(added)]
    sharing = _adding(backend, tokens, len(tokens))
    if sharing.get_added_tokens_decoder() == added:
        return sharing
    return _adding(backend, tokens, 1)  # one at a time, which keeps ids that have gaps


def _adding(backend: Tokenizer, tokens: list[AddedToken], at_once: int) -> Tokenizer:
    sharing = Tokenizer(backend.model)
    sharing.normalizer = backend.normalizer
    sharing.pre_tokenizer = backend.pre_tokenizer
    sharing.decoder = backend.decoder
    for begin in range(0, len(tokens), max(at_once, 1)):
        sharing.add_tokens(tokens[begin : begin + at_once])
    return sharing


def _never_prepending(step: Any, prepending: Collection[str | bool]) -> Any:
    """A copy of a normalizer or pre-tokenizer that writes no space before the text."""
    changed = copy.deepcopy(step)
    state = json.loads(changed.__getstate__())
    _never_prepend(state, prepending)
    changed.__setstate__(json.dumps(state).encode())
    return changed


def _never_prepend(node: Any, prepending: Collection[str | bool]) -> None:
    if isinstance(node, dict):
        if node.get("prepend_scheme") in prepending:
            node["prepend_scheme"] = "never"
        if node.get("add_prefix_space") in prepending:
            node["add_prefix_space"] = False
        if node.get("type") == "Prepend" and True in prepending:
            node["prepend"] = ""
        for value in node.values():
            _never_prepend(value, prepending)
    elif isinstance(node, list):
        for value in node:
            _never_prepend(value, prepending)
