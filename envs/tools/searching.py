"""Regular expressions on what a policy wrote, which may be made to take forever.

`re` cannot be stopped once it backtracks, and holds every other thread meanwhile. The package
`regex`, whose expressions are `re`'s and more, gives up after a time.
"""

from typing import Any

import regex


def search(
    pattern: str,
    text: str,
    *,
    ignore_case: bool = False,
    whole: bool = False,
    last: bool = False,
    timeout_s: float,
) -> Any:
    """The match of a pattern in a text, or None.

    Args:
        pattern: A regular expression.
        text: The text.
        ignore_case: Whether "a" matches "A".
        whole: Whether all of the text has to match.
        last: Of several matches the last one, not the first.
        timeout_s: Processor time in seconds, that of all threads of the process.

    Raises:
        TimeoutError: It took longer.
    """
    compiled = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    try:
        if whole:
            return compiled.fullmatch(text, timeout=timeout_s, concurrent=True)
        if not last:
            return compiled.search(text, timeout=timeout_s, concurrent=True)
        found = None
        for found in compiled.finditer(text, timeout=timeout_s, concurrent=True):  # noqa: B007
            pass
        return found
    except TimeoutError:
        raise TimeoutError(
            f"the pattern {pattern!r:.200} took more than {timeout_s:g} s of processor time on a "
            f"text of {len(text)} characters; write it so that a text can be divided among its "
            "repetitions in one way only, with (?>...) or *+ for instance"
        ) from None
