"""`reference/keys.md`: every key of a run's YAML, made of the classes of its sections.

A key's rule and default are those that `load_config` checks and fills in; what it means is what
the class says of it. `key_examples.txt` has an example of each.
"""

import inspect
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gymnast.trainers.base.config_errors import section_in
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task_sections import OneEnvironment
from gymnast.trainers.data.input_paths import (
    BACKEND,
    CODE,
    CODES,
    MODEL,
    PART,
    ROWS,
    TEMPLATE,
    TRACKERS,
)
from gymnast.types import Sampling, StopReason

DOCS = Path(__file__).parent
EXAMPLES = DOCS / "key_examples.txt"

_ABOUT = """\
# Every key

<!-- Written by `python docs/generate.py` of the classes of trainers/config. -->

What `gymnast train` and `gymnast eval` read: sections, and below each its keys with what they
must be, their default, what they mean, and an example. [A run's YAML](../configuration.md) says
how a file is written and where the files that it names are looked for. On the command line a key
is written in full: `trainer.steps=20`.

A key without a default, when left out, does what its meaning says, or nothing. The keys of
`sampling` in `evaluation` are as in training when left out. An environment's section takes the
keywords of its constructor too ([evaluation.md](../evaluation.md)). The same settings are
keywords of `Trainer`, with `eval_` before the names of `evaluation`; the options of algorithms
are in [algorithms.md](../algorithms.md), those of sandboxes in [sandboxes.md](../sandboxes.md).
"""
_INPUTS = {
    id(CODE): "name, `module:name` or `file.py:name`",
    id(BACKEND): "name, `module:name` or `file.py:name`; or mapping",
    id(CODES): "list of names, `module:name` or `file.py:name`",
    id(PART): "name, `module:name` or `file.py:name`; or mapping",
    id(TRACKERS): "list or mapping of names, `module:name` or `file.py:name`",
    id(ROWS): "file, folder or hub name",
    id(MODEL): "name or folder",
    id(TEMPLATE): "file or Jinja text",
}
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_NAMES: dict[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "`true` or `false`",
    StopReason: "stop reason",
}


def key_page() -> str:
    """The page as Markdown."""
    return "\n".join([_ABOUT, *map(_section, sections())])


def examples() -> dict[str, str]:
    """An example of each key by its dotted name, as a YAML has it."""
    lines = EXAMPLES.read_text(encoding="utf-8").splitlines()
    return {key: value for key, _, value in (line.partition(": ") for line in lines)}


def sections(model: type[BaseModel] = RunConfig, place: str = "") -> dict[str, type[BaseModel]]:
    """Every section by its dotted name, the whole YAML first."""
    found = {place: model}
    for name, field in model.model_fields.items():
        inner = section_in(field.annotation)
        if inner is not None:
            origin: Any = get_origin(field.annotation)
            listed = {list: "[]", dict: ".NAME"}.get(origin, "")
            found |= sections(inner, f"{place}.{name}{listed}".lstrip("."))
    return found


def own_keys(place: str) -> dict[str, FieldInfo]:
    """The keys of a section by name, without those that it has in common with `environment`."""
    fields = sections()[place].model_fields
    return {name: each for name, each in fields.items() if name not in _shared(place)}


def inner_section(key: str) -> str | None:
    """The section that a key holds, as the page names it: `rewards[]` for `rewards`."""
    names = (key, f"{key}[]", f"{key}.NAME")
    return next((name for name in names if name in sections()), None)


def _shared(place: str) -> list[str]:
    is_another = place != "environment" and issubclass(sections()[place], OneEnvironment)
    return [*OneEnvironment.model_fields] if is_another else []


def _section(place: str) -> str:
    parts = [f"## `{place}`", _with_links(_about(sections()[place]))] if place else ["## The whole"]
    if shared := _shared(place):
        names = ", ".join(f"`{name}`" for name in shared)
        parts.append(f"Shared with [`environment`](#environment): {names}.")
    fields = {f"{place}.{name}".lstrip("."): each for name, each in own_keys(place).items()}
    inner = [_line(key, field) for key, field in fields.items() if inner_section(key)]
    parts += ["\n".join(inner)] if inner else []
    for key, field in fields.items():
        parts += [] if inner_section(key) else [f"### `{key}`", _entry(key, field)]
    return "\n\n".join(parts) + "\n"


def _line(key: str, field: FieldInfo) -> str:
    section = inner_section(key) or key
    required = " (required)" if field.is_required() else ""
    return f"- [`{section}`](#{_anchor(section)}){required}: {_meaning(field)}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower())


def _about(model: type[BaseModel]) -> str:
    return " ".join(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].split())


def _entry(key: str, field: FieldInfo) -> str:
    name, rule = key.rpartition(".")[2], _kind(field.annotation, field.metadata)
    meaning = _meaning(field) or _meanings(Sampling)[name]
    rule = f"{rule[0].upper()}{rule[1:]}{_default(field)}."
    return f"{rule} {meaning}\n\n```yaml\n{name}: {examples()[key]}\n```"


def _meaning(field: FieldInfo) -> str:
    return _with_links(" ".join((field.description or "").split()))


def _with_links(text: str) -> str:
    """Pages that a text names become links."""
    return re.sub(r"`?docs/(\w+\.md)`?", r"[\1](../\1)", text)


def _meanings(owner: type) -> dict[str, str]:
    """What a class's docstring says of each attribute."""
    text = inspect.cleandoc(owner.__doc__ or "")
    listed = re.search(r"^Attributes:\n((?: +.*\n?|\n)+)", text, re.M)
    assert listed, owner
    entries = (e.strip().partition(": ") for e in re.split(r"\n    (?=\w+: )", "\n" + listed[1]))
    return {name: " ".join(meaning.split()) for name, _, meaning in entries}


def _kind(annotation: Any, metadata: Any = ()) -> str:
    """A type in words."""
    marks = [_INPUTS[id(mark)] for mark in metadata if id(mark) in _INPUTS]
    if marks:
        return marks[0]
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _kind(inner, [*metadata, *more])
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    arguments = [a for a in get_args(annotation) if a is not type(None)]
    if get_origin(annotation) is list:
        return f"list of {_kind(arguments[0])}"
    if get_origin(annotation) is dict:
        return "mapping"
    if len(arguments) == 1:  # or None
        return _kind(arguments[0], metadata)
    return " ".join([_NAMES.get(annotation, "text, list or mapping"), *_bounds(metadata)])


def _bounds(metadata: Any) -> list[str]:
    parts = [part for mark in metadata for part in getattr(mark, "metadata", [mark])]
    found = [
        f"{sign} {getattr(part, name):g}"
        for part in parts
        for name, sign in _SIGNS.items()
        if getattr(part, name, None) is not None
    ]
    return [", ".join(found)] if found else []


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "; required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return ""
    text = yaml.safe_dump(value, default_flow_style=True).splitlines()[0]
    return f"; default `{text}`"
