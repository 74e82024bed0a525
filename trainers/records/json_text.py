"""Rows, messages and the like as JSON text, and back.

Half a surrogate pair is written as JSON escapes it, and NaN and infinity as Python's `json` writes
and reads them. What JSON has no form for is written as its `str`; NumPy's numbers and arrays are
written as Python's.
"""

import json
from typing import Any

import numpy as np


def to_json(value: Any) -> str:
    """A value as JSON text, which is valid UTF-8."""
    text = json.dumps(value, default=_plain, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, default=_plain)
    return text


def from_json(text: str) -> Any:
    """What JSON text says."""
    return json.loads(text)


def hashable(value: Any) -> Any:
    """A value out of JSON, with tuples in place of lists: what it was, if it was hashable."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
