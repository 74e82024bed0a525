"""The templates for which a check cannot hold, and why."""

KINDS = (
    "construction",
    "dialect",
    "round trip",
    "appended",
    "stops",
    "offered",
    "injection",
    "ids",
)

# (template, kind of check): the reason
EXCEPTIONS: dict[tuple[str, str], str] = {}
