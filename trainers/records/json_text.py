"""Rows, messages and the like as JSON text, and back.

Half a surrogate pair is written as JSON escapes it, and NaN and infinity as Python's `json` writes
and reads them. What JSON has no form for is written as its `str`; NumPy's numbers and arrays are
written as Python's.
"""

import json
import math
from collections.abc import Mapping
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


def json_line(value: Any) -> str:
    """A value as one line of JSON in ASCII that every reader takes: NaN and infinity are null."""
    return json.dumps(_finite(value), default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def hashable(value: Any) -> Any:
    """A value out of JSON, with tuples in place of lists: what it was, if it was hashable."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
