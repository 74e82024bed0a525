"""What saving changes in a row: rows are saved as JSON, and replayed and rescored from that.

A tuple comes back as a list and a number of NumPy's as Python's, which nearly all code takes alike;
that is not told. `trainers/records/json_text.py` writes rows; tests compare what is said with it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gymnast.envs.checking.policies import ROWS
from gymnast.envs.environment.environment import Environment

_KEPT = str | int | float | None | np.generic  # what comes back as it was
_READ = "and `gymnast replay` and `gymnast rescore` read what is saved"


def changes_by_saving(env: Environment) -> tuple[str, ...]:
    """The first thing in each column that comes back from saved rollouts as something else.

    Args:
        env: Is reset to the rows that `solve` and doing nothing are played on.

    Returns:
        Sentences, each with the place, what it becomes, and the way out.
    """
    found: dict[str, str] = {}
    for seed in range(ROWS):
        env.reset(seed=seed)
        found = dict(_by_column(env.row)) | found
    return tuple(found.values())


def _by_column(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    columns = {"": _changed_keys(row, "row")}
    columns |= {name: _changes(value, f"row[{name!r}]") for name, value in row.items()}
    for name, changes in columns.items():
        if (first := next(changes, None)) is not None:
            yield name, first


def _changes(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _changed_keys(value, place)
        for key, item in value.items():
            yield from _changes(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _changes(item, f"{place}[{number}]")
    elif not isinstance(value, _KEPT):
        yield _changed_value(value, place)


def _changed_keys(mapping: Mapping[Any, Any], place: str) -> Iterator[str]:
    for key in mapping:
        if isinstance(key, str):
            continue
        try:
            [saved] = json.loads(json.dumps({key: None}))
        except TypeError:
            yield (
                f"{place} has the key {key!r:.100}, and cannot be saved: rows are saved as JSON, "
                "whose keys are text; use text keys"
            )
            continue
        numbers = isinstance(key, int | float) and not isinstance(key, bool)
        yield (
            f"{place} has the key {key!r}, and is saved with {saved!r}: rows are saved as JSON, "
            f"where keys that are {'numbers' if numbers else 'not text'} become text, {_READ}; use "
            "text keys"
        )


def _changed_value(value: Any, place: str) -> str:
    becomes = "a list" if isinstance(value, np.ndarray) else f"the text {str(value)!r:.100}"
    return (
        f"{place} is of type {type(value).__name__}, and is saved as {becomes}: rows are saved as "
        f"JSON, {_READ}; use lists, dicts with text keys, numbers and text"
    )
