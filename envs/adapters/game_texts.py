"""What a game of Gymnasium's says of itself: in its docstring, and on a terminal."""

import inspect
import re
from typing import Any

import gymnasium

# What the docstrings of some games leave out about their texts, whose colours are tags here.
_COLOURS_MEAN = {
    "FrozenLake": "The player's square is red.",
    "Taxi": "The taxi's square is yellow, or green with the passenger in the taxi. The passenger "
    "waits at the blue letter and wants to go to the magenta one.",
}
_HEADING = re.compile(r"^ *#+ *(.*)$", re.MULTILINE)
_NO_TEXT = re.compile(  # pictures, code, links
    r"^ *!\[[^\n]*\]\([^\n]*\)$\n?|^ *```.*?```$\n?|\[?</?a\b[^>]*>\]?", re.MULTILINE | re.DOTALL
)
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOURED = re.compile(r"\x1b\[(?:3|4)([0-7])(?:;1)?m(.*?)\x1b\[0m", re.DOTALL)


def instructions_of(game: gymnasium.Env[Any, Any]) -> str:
    """What a game's docstring says of it: its beginning, its description and its rewards."""
    if game.render_mode == "ansi":
        name = game.spec.name if game.spec is not None else ""
        observed = _COLOURS_MEAN.get(name, "")
    else:
        observed = section(game, "observation space")
    said = [section(game, ""), section(game, "description"), observed, section(game, "rewards")]
    return "\n\n".join(filter(None, said))


def section(game: gymnasium.Env[Any, Any], name: str) -> str:
    """The text below a heading of a game's docstring; that before all headings is of ""."""
    text = _NO_TEXT.sub("", inspect.cleandoc(type(game.unwrapped).__doc__ or ""))
    first, *rest = _HEADING.split(text)
    titles = [title.strip().lower() for title in rest[::2]]
    sections = {"": first, **dict(zip(titles, rest[1::2], strict=True))}
    return inspect.cleandoc(sections.get(name, "")).strip()


def without_escapes(text: str) -> str:
    """A text for terminals, whose colours become tags: `<red>S</red>`."""

    def tagged(match: re.Match[str]) -> str:
        colour = _COLOURS[int(match[1])]
        return f"<{colour}>{match[2]}</{colour}>"

    return _COLOURED.sub(tagged, text).strip("\n")
