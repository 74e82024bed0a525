"""How a judge is shown what a policy wrote: as data, which cannot end its own quotation.

Each quotation stands between two lines with a mark of 16 hexadecimal digits. The mark is made of
what is quoted, so no text has its own mark in it, however often a policy tries; and equal requests
stay equal, so that replies can be kept. Servers of open models also read control tokens
(`<|im_end|>`) in the text of a message: a zero-width space after the first character takes them
apart, and is not seen.
"""

import hashlib
import re

_CONTROL = re.compile(r"<(?=[|\uff5c/\w\u2581])|\[(?=/?[A-Z_]{3,}\])")
_APART = "\u200b"


def mark_of(*texts: str) -> str:
    """A mark that is in none of the texts."""
    number = 0
    while True:
        made = hashlib.sha256("\0".join([str(number), *texts]).encode("utf-8", "replace"))
        mark = made.hexdigest()[:16]
        if not any(mark in text for text in texts):
            return mark
        number += 1


def quoted(title: str, text: str, mark: str) -> str:
    """A quotation.

    Args:
        title: What is quoted, in capitals.
        text: The text.
        mark: Not in the text; see `mark_of`.
    """
    return f"BEGIN {title} {mark}\n{without_control_tokens(text)}\nEND {title} {mark}"


def without_control_tokens(text: str) -> str:
    """A text that looks the same and in which no server finds a control token."""
    clean = text.encode("utf-8", "replace").decode()  # half a character has no UTF-8
    return _CONTROL.sub(lambda found: found.group() + _APART, clean)
