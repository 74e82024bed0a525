"""docs/configuration.md has every key of a YAML as it is declared: its type, default and meaning.

`python tests/trainers/config/test_configuration_page.py` writes the tables anew.
"""

import inspect
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gymnast.trainers.base.config_errors import section_in
from gymnast.trainers.config.files import load_config
from gymnast.trainers.config.sections import RunConfig
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

PAGE = Path(__file__).parents[3] / "docs/configuration.md"
INPUTS = {
    id(CODE): "name, `module:name` or `file.py:name`",
    id(BACKEND): "name, `module:name` or `file.py:name`; or mapping",
    id(CODES): "list of names, `module:name` or `file.py:name`",
    id(PART): "name, `module:name` or `file.py:name`; or mapping",
    id(TRACKERS): "list or mapping of names, `module:name` or `file.py:name`",
    id(ROWS): "file, folder or hub name",
    id(MODEL): "name or folder",
    id(TEMPLATE): "file or Jinja text",
}
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
NAMES: dict[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "`true` or `false`",
    StopReason: "stop reason",
}


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


def meanings(owner: type) -> dict[str, str]:
    """What a class's docstring says of each attribute."""
    text = inspect.cleandoc(owner.__doc__ or "")
    listed = re.search(r"^Attributes:\n((?: +.*\n?|\n)+)", text, re.M)
    assert listed, owner
    entries = (e.strip().partition(": ") for e in re.split(r"\n    (?=\w+: )", "\n" + listed[1]))
    return {name: " ".join(meaning.split()) for name, _, meaning in entries}


def kind(annotation: Any, metadata: Any = ()) -> str:
    """A type in words."""
    marks = [INPUTS[id(mark)] for mark in metadata if id(mark) in INPUTS]
    if marks:
        return marks[0]
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return kind(inner, [*metadata, *more])
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    arguments = [a for a in get_args(annotation) if a is not type(None)]
    if get_origin(annotation) is list:
        return "list" if section_in(annotation) else f"list of {kind(arguments[0])}"
    if get_origin(annotation) is dict:
        return "mapping by name" if section_in(annotation) else "mapping"
    if section_in(annotation):
        return "section"
    if len(arguments) == 1:  # or None
        return kind(arguments[0], metadata)
    return " ".join([NAMES.get(annotation, "text, list or mapping"), *bounds(metadata)])


def bounds(metadata: Any) -> list[str]:
    parts = [part for mark in metadata for part in getattr(mark, "metadata", [mark])]
    found = [
        f"{sign} {getattr(part, name):g}"
        for part in parts
        for name, sign in SIGNS.items()
        if getattr(part, name, None) is not None
    ]
    return [", ".join(found)] if found else []


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return ""
    if value is None:
        return ""
    return f"`{yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}`"


def table(model: type[BaseModel]) -> str:
    """The table of a section."""
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in model.model_fields.items():
        meaning = " ".join((field.description or meanings(Sampling)[name]).split())
        words = kind(field.annotation, field.metadata), default(field), meaning
        lines.append(f"| `{name}` | {' | '.join(word.replace('|', '/') for word in words)} |")
    return "\n".join(lines)


def heading(place: str) -> str:
    return f"### `{place}`" if place else "### The whole"


@pytest.mark.parametrize("place", list(sections()))
def test_the_page_has_each_section_as_it_is_declared(place: str) -> None:
    after = PAGE.read_text(encoding="utf-8").partition(f"\n{heading(place)}\n")[2]
    assert after, f"{heading(place)} is missing"
    assert table(sections()[place]) in after.partition("\n### ")[0], f"run {__file__}"


def test_the_pages_example_is_a_run(tmp_path: Path) -> None:
    example, *_ = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (tmp_path / "run.yaml").write_text(example)
    (tmp_path / "shop.py").write_text("def brevity(trajectory): return 0.0\n")
    config = load_config(tmp_path / "run.yaml")
    assert config.environment.id == f"{tmp_path}/shop.py:Shop"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8").partition("\n### The whole\n")[0]
    for place, model in sections().items():
        text += f"\n{heading(place)}\n\n{table(model)}\n"
    PAGE.write_text(text, encoding="utf-8")
