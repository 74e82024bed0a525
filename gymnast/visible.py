"""Makes text that others wrote safe for a terminal or a log: control characters are only shown.

A policy, a guest, a row or a model's files can contain `ESC ]0;...`, a carriage return, or marks
that change the reading direction. `visible` writes such characters as Python escapes. It is applied
where text leaves Gymnast: in `str()` of every `GymnastError`, in every record of a `gymnast.*`
logger, in the output of the commands and on the console. JSON files keep the text as it is.
"""

import logging
import re
import unicodedata

_JOINERS = "\u200c\u200d"  # Persian and emoji need them, and they are harmless
_MAYBE = re.compile(r"[^\n\t -~]")


def visible(text: str) -> str:
    r"""The text with `\x1b` in place of an escape character, and so on.

    Newlines and tabs stay, and so do the letters, signs and spaces of all scripts with their
    invisible joiners, variation selectors and fillers. Control characters, marks of direction,
    invisible line breaks and lone surrogates are escaped.
    """
    return text if text.isascii() and text.isprintable() else _MAYBE.sub(_shown, text)


def visible_line(text: str) -> str:
    r"""The same on one line: a newline becomes `\n`, and a tab `\t`."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def visible_logger(name: str) -> logging.Logger:
    """The logger of that name; its records are made visible before they reach a handler."""
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
    except Exception:  # an argument without a text: the handler reports it
        pass
    return True


def _shown(match: re.Match[str]) -> str:
    character = match[0]
    harmless = character in _JOINERS or unicodedata.category(character) == "Zs"
    return character if harmless or character.isprintable() else ascii(character)[1:-1]
