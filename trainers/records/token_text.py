"""Which bytes of an episode's text each of its tokens stands for.

The text is what the tokenizer decodes all ids to. Take the decoding of the ids up to a token, and
the longest beginning, in whole characters, that it has in common with the text: the token *ends* at
the length of this beginning in bytes of UTF-8, but never before the end of the token before. So
token i stands for `text.encode()[ends[i - 1]:ends[i]]`, from 0 for the first. Put together, these
pieces are the text, and each of them is text by itself. A character that several tokens share
belongs to the one that completes it, and the others stand for nothing; a U+FFFD in place of bytes
that are no character belongs to the first of them.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from typing import Any, NamedTuple

from tokenizers.pre_tokenizers import ByteLevel

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTES_OF_REPLACEMENT = REPLACEMENT.encode()

# A run of whole characters, or the longest beginning of one that breaks off, or a byte that begins
# none: what decoders write one U+FFFD for (Unicode 15, section 3.9, table 3-7).
_UNITS = re.compile(
    rb"((?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]"
    rb"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})+)"
    rb"|\xe0[\xa0-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]|\xed[\x80-\x9f]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]?|[\xf1-\xf3][\x80-\xbf]{1,2}|\xf4[\x80-\x8f][\x80-\xbf]?|.",
    re.DOTALL,
)


class TokenText(NamedTuple):
    """The text of some tokens.

    Attributes:
        text: What they are decoded to.
        ends: Where the text of each token ends, in bytes of UTF-8; see the top of this file.
    """

    text: str
    ends: list[int]


def token_text(tokenizer: Any, ids: Sequence[int]) -> TokenText:
    """The text of some token ids, special tokens included, and where that of each ends.

    Args:
        tokenizer: Of Transformers.
        ids: As the environment and the policy gave them.
    """
    return _reader(tokenizer, len(tokenizer)).read(ids)


def fingerprint(tokenizer: Any) -> str:
    """16 hexadecimal digits that are the same for tokenizers whose ids mean the same tokens."""
    return _fingerprint(tokenizer, len(tokenizer))


@lru_cache(maxsize=4)
def _fingerprint(tokenizer: Any, size: int) -> str:
    digest = sha256()
    for token, number in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        digest.update(f"{number} {token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


@lru_cache(maxsize=4)
def _reader(tokenizer: Any, size: int) -> "_Reader":
    """What reads a tokenizer's tokens; tokens that are added later make another one."""
    return _Reader(tokenizer)


class _Reader:
    """Remembers what each token of a tokenizer stands for."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._is_byte_level = _has_byte_level_decoder(tokenizer)
        self._bytes: dict[int, bytes] = {}
        self._pieces: dict[int, str] = {}
        letters = tokenizer.encode("a", add_special_tokens=False)
        self._letter: list[int] = list(letters[-1:])

    def read(self, ids: Sequence[int]) -> TokenText:
        text = self._decode(ids)
        if self._is_byte_level:
            each = [self._bytes_of(number) for number in ids]
            if b"".join(each).decode("utf-8", "replace") == text:
                return TokenText(text, ends_of_bytes(each))
        return TokenText(text, self._ends_by_decoding(ids, text))

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text.encode("utf-8", "replace").decode()

    def _bytes_of(self, number: int) -> bytes:
        """The bytes of a token, as a decoder of byte-level tokens has them."""
        if number not in self._bytes:
            token = self._tokenizer.convert_ids_to_tokens(int(number)) or ""
            found = [_BYTES.get(character) for character in token]
            whole = [byte for byte in found if byte is not None]
            self._bytes[number] = bytes(whole) if len(whole) == len(found) else token.encode()
        return self._bytes[number]

    def _piece(self, number: int) -> str:
        """What a token adds to a text in the middle."""
        if number not in self._pieces:
            before = self._decode(self._letter)
            self._pieces[number] = self._decode([*self._letter, number])[len(before) :]
        return self._pieces[number]

    def _ends_by_decoding(self, ids: Sequence[int], text: str) -> list[int]:
        """Token by token; where one alone does not tell, by decoding it with those before it."""
        ends: list[int] = []  # in characters
        place = earlier = known = known_place = 0  # ids[:known] stand for text[:known_place]
        for number, token in enumerate(ids):
            piece = self._piece(token)
            # At the beginning of a text, some decoders leave a space out.
            usual = place > 0 and known == number and REPLACEMENT not in piece
            if usual and text.startswith(piece, place):
                place += len(piece)
            else:
                rest = self._rest(ids[earlier : number + 1], known - earlier)
                shared = _shared(rest, text[known_place : known_place + len(rest)])
                place = max(place, known_place + shared)
                if not rest or shared < len(rest) or REPLACEMENT in rest:
                    ends.append(place)
                    continue
            earlier, known, known_place = known, number + 1, place
            ends.append(place)
        lengths = [0, *accumulate(len(character.encode()) for character in text)]
        return [lengths[end] for end in ends]

    def _rest(self, ids: Sequence[int], known: int) -> str:
        """What the ids from `known` on add to the text of those before; "" if they change it."""
        before, whole = self._decode(ids[:known]), self._decode(ids)
        return whole[len(before) :] if whole.startswith(before) else ""


def ends_of_bytes(tokens: Sequence[bytes]) -> list[int]:
    """Where the text of each token ends, in bytes of the text that all bytes together are.

    Args:
        tokens: The bytes of each.
    """
    joined = b"".join(tokens)
    units = [(unit.end(), unit[1] is not None) for unit in _UNITS.finditer(joined)]
    ends, text_start, start, number = [], 0, 0, 0
    for place in accumulate(map(len, tokens)):
        while number < len(units) and units[number][0] <= place:
            end, whole = units[number]
            text_start += end - start if whole else len(BYTES_OF_REPLACEMENT)
            start, number = end, number + 1
        if place == start:
            ends.append(text_start)
        elif units[number][1]:
            ends.append(text_start + _last_character(joined, place) - start)
        else:
            ends.append(text_start + len(BYTES_OF_REPLACEMENT))
    return ends


def _last_character(joined: bytes, place: int) -> int:
    """Where the last character ends that is whole before a place."""
    begins = place
    while joined[begins] & 0xC0 == 0x80:
        begins -= 1
    if begins < place and joined[begins : begins + 3] == BYTES_OF_REPLACEMENT:
        return begins + 3  # the decoding up to here ends with the same character
    return begins


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _has_byte_level_decoder(tokenizer: Any) -> bool:
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return type(decoder).__name__ == "ByteLevel"


def _byte_characters() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    shifted = {chr(256 + number): byte for number, byte in enumerate(others)}
    return {chr(byte): byte for byte in plain} | shifted


_BYTES = _byte_characters()
assert set(_BYTES) == set(ByteLevel.alphabet())
