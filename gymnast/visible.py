"""Text that others wrote, made safe for a terminal or a log: what steers them is shown, not done.

A policy, a guest, a row or a model's files can hold `ESC ]0;...`, a carriage return, or marks that
turn the reading direction. `visible` writes such characters as Python escapes. It is applied where
text leaves: in `str()` of every `GymnastError`, in every record of a `gymnast.*` logger, in what
the commands print and in what the console shows. Files of JSON keep the text as it is.
"""

import logging
import re
import unicodedata

_JOINERS = "\u200c\u200d"  # Persian and emoji need them, and they steer nothing
_MAYBE = re.compile(r"[^\n\t -~]")


def visible(text: str) -> str:
    r"""The text with `\x1b` in place of an escape character, and so on.

    Newlines and tabs stay, as do letters, signs and spaces of all scripts, with what these join and
    vary by (joiners, variation selectors, fillers), though that is invisible. What steers a
    terminal, changes the direction, begins a line unseen or is a lone surrogate is escaped.
    """
    return text if text.isascii() and text.isprintable() else _MAYBE.sub(_shown, text)


def visible_line(text: str) -> str:
    r"""The same on one line: a newline becomes `\n`, and a tab `\t`."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def visible_logger(name: str) -> logging.Logger:
    """The logger of that name; its records are made visible before any handler has them."""
    logger = logging.getLogger(name)
    if make_visible not in logger.filters:
        logger.addFilter(make_visible)
    return logger


def make_visible(record: logging.LogRecord) -> bool:
    """Make a record's message and traceback visible; as a logger's filter, it keeps the record."""
    try:
        record.msg, record.args = visible(record.getMessage()), None
        if record.exc_info:
            record.exc_text = visible(logging.Formatter().formatException(record.exc_info))
    except Exception:  # an argument that has no text: the handler reports that
        pass
    return True


def _shown(match: re.Match[str]) -> str:
    character = match[0]
    harmless = character in _JOINERS or unicodedata.category(character) == "Zs"
    return character if harmless or character.isprintable() else ascii(character)[1:-1]
