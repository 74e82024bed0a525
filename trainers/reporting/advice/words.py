"""How advice writes texts of others and numbers."""

from gymnast.visible import visible_line

PAGE, SPEED_PAGE = "docs/learning.md", "docs/symptoms.md"
_LONGEST = 160


def clipped(text: str) -> str:
    """A text of a model or a tool on one short line, in which nothing steers a terminal."""
    text = visible_line(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def percent(share: float) -> str:
    """A share in whole percent."""
    return f"{100 * share:.0f}%"
