"""Options: the keyword-only arguments of a function that a config names, and their values.

    def overlong(trajectory, *, limit: int, buffer: int): ...

    rewards: [{function: overlong, limit: 512, buffer: 128}]

Their annotations say which values they take; one without a default has to be given.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from gymnast.errors import ConfigError
from gymnast.trainers.base.config_errors import sentences

Fields = Mapping[str, tuple[Any, Any]]  # annotation and default, `...` for none, by name


def options_of(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """The options of a function: (annotation, default) each, `...` for a missing default."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions that are written in C
        return {}
    named = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    try:
        hints = get_type_hints(function, include_extras=True) if named else {}
    except NameError:  # of what is imported for type checkers alone
        hints = {}
    return {
        name: (hints.get(name, Any), ... if default is inspect.Parameter.empty else default)
        for name, default in named.items()
    }


def arguments_of(made: Any) -> dict[str, tuple[Any, Any]]:
    """The arguments of a dataclass, as `options_of` gives the options of a function."""
    hints = get_type_hints(made, include_extras=True)
    return {one.name: (hints[one.name], _default(one)) for one in fields(made) if one.init}


def _default(one: Field[Any]) -> Any:
    if one.default_factory is not MISSING:
        return one.default_factory()
    return ... if one.default is MISSING else one.default


def checked_options(fields: Fields, given: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Every option: as given, else its default.

    Args:
        fields: The options that there are.
        given: Their values, each of one that there is.
        section: Where they stand in a config, for errors.

    Raises:
        ConfigError: One is not what its annotation says, or is missing.
    """
    config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
    kinds: dict[str, Any] = dict(fields)
    with warnings.catch_warnings():  # an option may be called as something that models have
        warnings.filterwarnings("ignore", message="Field name")
        model = create_model("Options", __config__=config, **kinds)
    try:
        checked = model.model_validate(dict(given))
    except ValidationError as error:
        lines = [f"{section}.{line}" for line in sentences(error, model)]
        raise ConfigError("\n".join(lines)) from error
    return {name: getattr(checked, name) for name in fields}
