"""Errors about a config in sentences, one line each: the dotted key, the rule, the value.

Pydantic's validation errors become such (`sentences`); those of functions that are called with the
keys of a section get its name (`in_section`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError

from gymnast.errors import ConfigError, GymnastError, ModelError
from gymnast.trainers.base.key_hints import unknown_key

# The error type of a name that means nothing; the message, its context's `why`, is a whole one. It
# may be of a `key` of the section where it was found.
NAMED = "named"

# By pydantic's error type; {names} are filled from the error's context.
_RULES = {
    "greater_than": "must be > {gt:g}",
    "greater_than_equal": "must be >= {ge:g}",
    "less_than": "must be < {lt:g}",
    "less_than_equal": "must be <= {le:g}",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "list_type": "must be a list",
    "dict_type": "must be a mapping (key: value)",
    "model_type": "must be a mapping (key: value)",
    "literal_error": "must be one of {expected}",
    "enum": "must be one of {expected}",
}


@contextmanager
def in_section(section: str, keys: Iterable[str]) -> Iterator[None]:
    """Within the block, what an error says of a key of a section it says of the dotted key.

    Args:
        section: Its dotted name.
        keys: Of the section; functions that a run calls with them know them without the section.
    """
    # A key that begins a line (`lora: ...`), or one of a section within (`set lora.rank`), and no
    # file of that name (`loss.py`).
    known = "|".join(keys)
    within = rf"(?:{known})\.(?!py\b)[a-z]"
    named = rf"(?:^(?=(?:{known}):|{within})|(?<![\w./])(?={within}))"
    try:
        yield
    except GymnastError as error:
        dotted = re.sub(named, f"{section}.", str(error), flags=re.MULTILINE)
        if dotted == str(error) or type(error) not in (ConfigError, ModelError):
            raise
        raise type(error)(dotted) from error


def sentences(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line per error, in the order of the fields.

    Args:
        error: Raised when a `model` was validated.
        model: The outermost model.
    """
    return [_sentence(problem, model) for problem in error.errors()]


def _sentence(problem: Mapping[str, Any], model: type[BaseModel]) -> str:
    field = ".".join(map(str, problem["loc"]))
    kind, value = problem["type"], problem["input"]
    if not problem["loc"]:  # a rule about several fields names them itself
        return str(problem["msg"]).removeprefix("Value error, ")
    if kind == "missing":
        return f"{field}: is required"
    if kind == NAMED:
        key = problem["ctx"].get("key")
        return f"{field}{f'.{key}' if key else ''}: {problem['ctx']['why']}"
    if kind == "extra_forbidden":
        return _unknown_key(problem["loc"], model)
    rule = _RULES.get(kind)
    if rule is None:
        return f"{field}: {problem['msg'].removeprefix('Value error, ')}, got {value!r:.100}"
    shown = "nothing" if value is None else f"{value!r:.100}"
    return f"{field}: {rule.format(**problem.get('ctx', {}))}, got {shown}"


def _unknown_key(loc: Sequence[int | str], model: type[BaseModel]) -> str:
    *place, key = loc
    known = list(_model_at(place, model).model_fields)
    return unknown_key(".".join(map(str, place)), key, known, dotted_keys(model))


def _model_at(place: Sequence[int | str], model: type[BaseModel]) -> type[BaseModel]:
    for name in place:
        if not isinstance(name, int):  # the entries of a list share the list's model
            model = section_model(model, name)
    return model


def section_model(model: type[BaseModel], name: str) -> type[BaseModel]:
    """The model of a section, required or optional."""
    section = section_in(model.model_fields[name].annotation)
    assert section is not None, name
    return section


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The model of the section that a key holds, alone, in a list or by name; None for a value."""
    options = getattr(annotation, "__args__", (annotation,))
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key of a YAML, dotted; a list or mapping of sections is one key."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        inner = section_in(field.annotation)
        alone = inner is not None and get_origin(field.annotation) not in (list, dict)
        if inner is not None and alone:
            keys += dotted_keys(inner, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys
