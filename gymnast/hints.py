"""Parts of error messages: the name that was probably meant, and what another library says."""

from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path

# A typo of one or two letters reaches this; words that merely share an ending do not.
_ALIKE = 0.64
_SHORTEST_BEGINNING = 3


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name nearest to an unknown one; None if none is close.

    Close is a typo, another case, or the beginning of a known name (`eval` for `evaluation`).
    """
    given = str(name).lower()
    likeness = {other: _likeness(given, other.lower()) for other in known}
    best = max(likeness, key=likeness.__getitem__, default=None)
    return best if best is not None and likeness[best] >= _ALIKE else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """` Did you mean 'steps'?`, to follow a sentence; "" where no known name is close."""
    near = nearest(name, known)
    return f" Did you mean {near!r}?" if near is not None else ""


def nearest_file(path: str | Path) -> Path | None:
    """The file or folder beside a missing path whose name is nearest to its name."""
    wanted = Path(path)
    folder = wanted.expanduser().parent
    try:
        found = nearest(wanted.name, [entry.name for entry in folder.iterdir()])
    except OSError:
        return None
    return wanted.parent / found if found is not None else None


def _likeness(given: str, known: str) -> float:
    ratio = SequenceMatcher(None, given, known).ratio()
    begins = len(given) >= _SHORTEST_BEGINNING and known.startswith(given)
    return max(ratio, _ALIKE) if begins else ratio


def first_line(error: BaseException) -> str:
    """An exception's first line, or all in one if the first ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines)[:400] if lines[0].endswith(":") else lines[0]
