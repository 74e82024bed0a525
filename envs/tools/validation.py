"""Validating the arguments of a call and coercing them to the types of the parameters.

A policy writes JSON, often with one layer of quotes too many or too few. So a value that does not
fit gets a second chance as what its text decodes to (`"3"` for an int, `"[1, 2]"` for a list), or
as its text (`5` for a str).
"""

import json
from typing import Any

from pydantic import ValidationError

from gymnast.envs.records.arguments import (
    BadArguments,
    decode_arguments,
    element_repetition,
    load_json,
    repeated_key,
    shown_value,
)
from gymnast.envs.tools.definition import Parameter, Tool

_MAX_FAULTS = 3


def bind_arguments(tool: Tool, arguments: Any) -> dict[str, Any]:
    """Validate and coerce the arguments of one call.

    Args:
        tool: The tool.
        arguments: An object, or a string of JSON.

    Returns:
        The keyword arguments to call it with, without those that the call leaves out.

    Raises:
        BadArguments: Something is missing, unexpected, or of the wrong type.
    """
    try:
        given = decode_arguments(arguments)
    except BadArguments as error:
        raise BadArguments(f"{tool.signature}: {error}") from error
    known = {parameter.name for parameter in tool.parameters}
    faults = [f'unexpected argument "{name}"' for name in given if name not in known]
    bound = {}
    for parameter in tool.parameters:
        if parameter.name in given:
            try:
                bound[parameter.name] = _coerce(parameter, given[parameter.name])
            except BadArguments as error:
                faults.append(str(error))
        elif parameter.required:
            faults.append(f'argument "{parameter.name}" is missing')
    if faults:
        raise BadArguments(f"{tool.signature}: {'; '.join(faults[:_MAX_FAULTS])}")
    return bound


def _coerce(parameter: Parameter, value: Any) -> Any:
    try:
        return parameter.adapter.validate_python(value)
    except ValidationError as error:
        first = error
    except Exception as error:  # from the type's own validator, or nested too deeply
        raise BadArguments(f'argument "{parameter.name}": {error}') from error
    for candidate in _second_chance(parameter.name, value):
        try:
            return parameter.adapter.validate_python(candidate)
        except Exception:
            continue
    raise BadArguments(_fault(parameter.name, first)) from first


def _second_chance(name: str, value: Any) -> list[Any]:
    """Return what a value of the wrong type may mean.

    Raises:
        BadArguments: It is the JSON of an object with a key twice.
    """
    if isinstance(value, str):
        try:
            decoded = load_json(value)
        except (ValueError, RecursionError):
            return []
        if (key := repeated_key(decoded)) is not None:
            raise BadArguments(f'argument "{name}": {element_repetition(key)}')
        return [decoded]
    if isinstance(value, int | float):
        return [json.dumps(value)]
    return []


def _fault(name: str, error: ValidationError) -> str:
    faults = []
    for detail in error.errors(include_url=False, include_context=False)[:_MAX_FAULTS]:
        path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in detail["loc"])
        message = detail["msg"][:1].lower() + detail["msg"][1:]
        faults.append(f'argument "{name}"{path}: {message} (got {shown_value(detail["input"])})')
    return "; ".join(faults)
