"""Token ids in lists that share their numbers.

A Python int beyond 256 is an object of 32 bytes, and a list of ids that comes from JSON, NumPy or
a tokenizer has objects of its own: five times the size of the list. Ids come from one vocabulary,
so all lists can point to the same objects.
"""

from collections.abc import Sequence

import numpy as np

# More than any vocabulary; a number beyond it is no token id, and keeps an object of its own.
_MOST = 2**20
_numbers = np.empty(0, dtype=object)


def shared_ids(ids: Sequence[int] | np.ndarray) -> list[int]:
    """The ids as a list of Python ints, equal ones being one object in all such lists.

    Args:
        ids: Whole numbers, of shape [T].
    """
    global _numbers
    array = np.asarray(ids, dtype=np.int64)
    if not array.size:
        return []
    most = int(array.max())
    if most >= _MOST or array.min() < 0:
        unshared: list[int] = array.tolist()
        return unshared
    numbers = _numbers
    if most >= len(numbers):
        longer = np.empty(min(_MOST, 2 * most + 2), dtype=object)
        longer[: len(numbers)] = numbers
        longer[len(numbers) :] = range(len(numbers), len(longer))
        _numbers = numbers = longer
    shared: list[int] = numbers[array].tolist()
    return shared
