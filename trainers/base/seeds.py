"""Seeds that depend on where they are used and on nothing else.

They are derived, not drawn: a resumed run, another number of processes or another order of episodes
gets the same seed at the same place.
"""

import hashlib


def derive(*place: int | str) -> int:
    """A 63-bit seed for a place, such as `derive(seed, "row", 3, "member", 1)`."""
    text = "\x1f".join(str(part) for part in place)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
