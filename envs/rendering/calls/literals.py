r"""Values as programming languages write them: strings, numbers, constants, lists, objects.

One reader takes Python's literals and JSON's, mixed as models mix them: `None` or `null`, single or
double quotes, keys with quotes or without. Where a template encloses strings in markup of its own,
nothing in them is escaped.

    ['x', 1, {"k": null}]      [<|"|>x<|"|>,1,{k:null}]

Nothing is evaluated, and reading takes time in proportion to the text. Which type a value should
have is not decided here (`argument_types.py`).
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from gymnast.envs.records.arguments import RepeatedKeys, json_object
from gymnast.envs.rendering.calls.payloads import Malformed

DEPTH = 100
"""How deeply lists and objects may be nested."""

_CONSTANTS = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")
CONSTANT = re.compile(rf"{'|'.join(_CONSTANTS)}|{_NUMBER.pattern}")
"""A number or a constant."""

_SPACE = re.compile(r"\s*+")
_WORD = re.compile(r"[^\s,:=()\[\]{}'\"]++")
_BARE = re.compile(r"[^,()\[\]{}]*+")
_BARE_KEY = re.compile(r"[^,:()\[\]{}'\"]++")
# No possessive groups: in some releases of Python 3.11 they can miss what is there.
_STRINGS = {
    quote: re.compile(
        rf"{quote}([^\\{quote[0]}]*+(?:(?:\\.|{inside})[^\\{quote[0]}]*+)*){quote}", re.DOTALL
    )
    for quote, inside in (
        ('"""', '"(?!"")'),
        ("'''", "'(?!'')"),
        ('"', "(?!)"),
        ("'", "(?!)"),
    )
}
_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([0-7]{1,3})|(.))", re.DOTALL
)
_ESCAPES = {
    **{"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"},
    **{"\\": "\\", "'": "'", '"': '"', "/": "/", "\n": ""},
}
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")


@dataclass(frozen=True)
class Word:
    """A value without quotes: a number, a constant, or the text of a string.

    Attributes:
        text: The value as written.
    """

    text: str


def skip_space(text: str, position: int) -> int:
    """Where the white space that begins at `position` ends."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def constant(text: str) -> Any:
    """The number or constant that a word spells.

    Raises:
        ValueError: If it spells none, or a number without a finite value.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a number or a constant")
    if not any(match.groups()):
        try:
            return int(text)
        except ValueError as error:  # Python's limit on digits
            raise ValueError(f"{text[:40]!r}... has too many digits") from error
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]!r} is too large a number")
    return number


def read_literal(text: str) -> Any:
    """The value that a whole text spells; white space at its ends is ignored.

    Raises:
        Malformed: If it is not one value.
    """
    value, end = Notation().read(text, skip_space(text, 0))
    end = skip_space(text, end)
    if end != len(text):
        raise Malformed(end, "there is text after the value")
    return plain(value)


def plain(value: Any) -> Any:
    """A value that was read, with each `Word` in it as the number or constant that it spells."""
    if isinstance(value, Word):
        return constant(value.text)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        values = {key: plain(item) for key, item in value.items()}
        return RepeatedKeys(values, value.key) if isinstance(value, RepeatedKeys) else values
    return value


@dataclass(frozen=True)
class Notation:
    """How strings are written in values.

    Attributes:
        quote: The markup that encloses them, without escapes; "" where they are in ' or ", with the
            escapes of Python and JSON.
        bare: Whether they may also have no quotes, up to the next comma or bracket.
    """

    quote: str = ""
    bare: bool = False

    def read(self, text: str, start: int, depth: int = 0) -> tuple[Any, int]:
        """Read the value at `start`; return it, with a `Word` where it has no quotes, and its end.

        Raises:
            Malformed: If there is none.
        """
        string = self.read_string(text, start)
        if string is not None:
            return string
        bracket = text[start : start + 1]
        if bracket not in ("[", "{"):
            return self._read_word(text, start)
        if depth == DEPTH:
            raise Malformed(start, f"nested more than {DEPTH} times; write it flatter")
        read = self._read_list if bracket == "[" else self._read_object
        return read(text, start, depth + 1)

    def read_string(self, text: str, start: int) -> tuple[str, int] | None:
        """Read the string at `start`; None where no quote begins there.

        Raises:
            Malformed: If it does not end.
        """
        if self.quote:
            if not text.startswith(self.quote, start):
                return None
            begin = start + len(self.quote)
            end = text.find(self.quote, begin)
            if end < 0:
                raise Malformed(start, f"the string that begins here is not closed: {self.quote}")
            return text[begin:end], end + len(self.quote)
        if text[start : start + 1] not in ("'", '"'):
            return None
        quote = next(quote for quote in _STRINGS if text.startswith(quote, start))
        match = _STRINGS[quote].match(text, start)
        if match is None:
            raise Malformed(start, f"the string that begins here is not closed: {quote}")
        return _unescaped(match[1]), match.end()

    def quoting(self) -> str:
        """How to write a string, for a model to read."""
        return f"{self.quote}...{self.quote}" if self.quote else "'...'"

    def _read_word(self, text: str, start: int) -> tuple[Word, int]:
        match = (_BARE if self.bare else _WORD).match(text, start)
        word = match[0].rstrip() if match else ""
        end = start + len(word)
        if not word:
            here = f"not {text[start]!r}" if start < len(text) else "but the text ends"
            raise Malformed(start, f"expected a value, {here}")
        if self.bare:
            return Word(word), end
        if text.startswith("(", end):
            raise Malformed(start, "a value cannot be a call; write the value itself")
        try:
            constant(word)
        except ValueError as error:
            raise Malformed(start, f"{error}; write a string as {self.quoting()}") from error
        return Word(word), end

    def _read_list(self, text: str, start: int, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        position = skip_space(text, start + 1)
        while not text.startswith("]", position):
            value, position = self.read(text, position, depth)
            values.append(value)
            position = next_item(text, position, "]")
        return values, position + 1

    def _read_object(self, text: str, start: int, depth: int) -> tuple[dict[str, Any], int]:
        pairs: list[tuple[str, Any]] = []
        position = skip_space(text, start + 1)
        while not text.startswith("}", position):
            key, colon = self._read_key(text, position)
            value, position = self.read(text, skip_space(text, colon + 1), depth)
            pairs.append((key, value))
            position = next_item(text, position, "}")
        return json_object(pairs), position + 1

    def _read_key(self, text: str, start: int) -> tuple[str, int]:
        """A key, and where the colon after it is."""
        string = self.read_string(text, start)
        if string is None:
            match = _BARE_KEY.match(text, start)
            key = match[0].strip() if match else ""
            string = key, match.end() if match else start
        position = skip_space(text, string[1])
        if not text.startswith(":", position):
            raise Malformed(position, "expected ':' after a key")
        return string[0], position


def next_item(text: str, position: int, close: str) -> int:
    """Where the next item begins, or the bracket that closes the list of them.

    Raises:
        Malformed: If neither a comma nor the bracket comes next.
    """
    position = skip_space(text, position)
    if text.startswith(close, position):
        return position
    if position == len(text):
        raise Malformed(position, f"the text ends before {close!r}")
    if not text.startswith(",", position):
        raise Malformed(position, f"expected ',' or {close!r}, not {text[position]!r}")
    return skip_space(text, position + 1)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    text = _ESCAPE.sub(_character, text)
    # JSON writes a character beyond the basic plane as two escapes.
    return _SURROGATES.sub(_joined, text)


def _joined(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16", "surrogatepass").decode("utf-16")


def _character(escape: re.Match[str]) -> str:
    short, long, byte, octal, other = escape.groups()
    digits = short or long or byte
    if other is not None:
        return _ESCAPES.get(other, escape[0])
    code = int(digits, 16) if digits else int(octal, 8)
    return chr(code) if code <= 0x10FFFF else escape[0]
