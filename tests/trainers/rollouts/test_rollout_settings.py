"""The settings of a collection are declared once; `stream` and `collect` take them by keyword."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest

from gymnast.errors import ConfigError
from gymnast.trainers import collect, stream
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.types import Sampling

OWN = {"make_env", "agent", "rows", "counts", "row_indices", "on_progress", "workers"}


@pytest.mark.parametrize(
    ("function", "without"), [(stream, set()), (collect, {"max_waiting_groups"})]
)
def test_the_keywords_are_the_fields_with_the_same_defaults(
    function: Callable[..., Any], without: set[str]
) -> None:
    keywords = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in OWN
    }
    declared = {
        field.name: inspect.Parameter.empty if field.default is MISSING else field.default
        for field in fields(RolloutSettings)
    }
    assert keywords == {name: declared[name] for name in declared if name not in without}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("group_size", 0, "group_size: must be >= 1, got 0"),
        ("concurrency", 0, "concurrency: must be >= 1, got 0"),
        ("max_waiting_groups", 0, "max_waiting_groups: must be >= 1, got 0"),
        ("deadline_s", 0.0, "deadline_s: must be"),
        ("sampling", {"temperature": 0.5}, r"write Sampling\(temperature=0.5\)"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(name: str, value: Any, message: str) -> None:
    good: dict[str, Any] = {"group_size": 2, "sampling": Sampling()}
    with pytest.raises(ConfigError, match=message):
        RolloutSettings(**(good | {name: value}))
