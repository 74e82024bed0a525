"""Where the files are that a run's YAML names: beside the YAML, or in the working folder.

What a YAML names is looked for in the YAML's own folder, so that a run's `config.yaml` means the
same everywhere; what the command line names, in the working folder. `output_dir` is always relative
to the working folder. A key that may name an input is marked with `Input` where it is declared.

Names that are not paths stay as they are: ids, `module:Class`, `pypi:...`, hub names that no file
or folder has. In `scheme:path/to/file.py:Class`, the path alone is made absolute.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from annotated_types import MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gymnast.lookup import file_in
from gymnast.trainers.base.config_errors import section_in
from gymnast.trainers.data.row_formats import SUFFIXES


@dataclass(frozen=True)
class Input:
    """Marks a key of a YAML that may name a file or a folder.

    Attributes:
        part: Splits a value into what stands before a path, the part that may be one, and the rest.
        surely: Whether that part can only be a path; `org/name` may also be a hub's name.
        key: The key that names the input where the value is a mapping; "*": all of its keys do.
    """

    part: Callable[[str], tuple[str, str, str]]
    surely: Callable[[str], bool]
    key: str = ""


def _whole(text: str) -> tuple[str, str, str]:
    return "", text, ""


def _template_file(text: str) -> tuple[str, str, str]:
    return ("", "", text) if "{{" in text or "{%" in text else ("", text, "")


def _demonstration_file(text: str) -> tuple[str, str, str]:
    return ("", "", text) if text == "solve" else ("", text, "")


def _is_path(text: str) -> bool:
    """Whether it is written as only paths are: `./x`, `/x`, `~/x`, `a/b/c`."""
    return text.startswith((".", "/", "~")) or text.count("/") > 1


def _is_row_file(text: str) -> bool:
    return _is_path(text) or Path(text).suffix.lower() in SUFFIXES


CODE = Input(file_in, lambda _: True)
BACKEND = Input(file_in, lambda _: True, key="backend")
PART = Input(file_in, lambda _: True, key="name")
CODES = Input(file_in, lambda _: True, key="*")
TRACKERS = Input(file_in, lambda _: True, key="*")
TEMPLATE = Input(_template_file, lambda _: True)
MODEL = Input(_whole, _is_path)
ROWS = Input(_whole, _is_row_file)
DEMONSTRATIONS = Input(_demonstration_file, lambda _: True)

CodeName = Annotated[str, MinLen(1), CODE]  # "module:name" or "path/to/file.py:name"
RowsName = Annotated[str, MinLen(1), ROWS]  # a file or a hub dataset

Misplaced = dict[str, tuple[str, str]]


def located(
    settings: Any, model: type[BaseModel], folder: Path, misplaced: Misplaced | None = None
) -> Any:
    """Settings with the inputs they name as absolute paths.

    Args:
        settings: A whole YAML, or a section; malformed parts are left as they are.
        model: The section's.
        folder: What paths are relative to.
        misplaced: Receives, by dotted key, each input that exists in the working folder but not in
            `folder`: its path, and the path that the YAML should name.
    """
    return _Search(folder, {} if misplaced is None else misplaced, {}).section(settings, model, "")


def named_inputs(settings: Any, model: type[BaseModel], folder: Path) -> dict[str, str]:
    """The inputs that settings name, by dotted key: files and folders that exist, and hub names.

    Args:
        settings: A whole YAML, or a section.
        model: The section's.
        folder: What paths are relative to.
    """
    search = _Search(folder, {}, {})
    search.section(settings, model, "")
    return search.found


@dataclass(frozen=True)
class _Search:
    folder: Path
    misplaced: Misplaced
    found: dict[str, str]

    def section(self, settings: Any, model: type[BaseModel], place: str) -> Any:
        if not isinstance(settings, dict):
            return settings
        result = dict(settings)
        for name, field in model.model_fields.items():
            if name in result:
                result[name] = self._value(result[name], field, f"{place}{name}")
        return result

    def _value(self, value: Any, field: FieldInfo, place: str) -> Any:
        mark = _mark(field)
        if mark is not None:
            return self._marked(value, mark, place)
        inner = section_in(field.annotation)
        if inner is None:
            return value
        if isinstance(value, list):
            entries = [_entry(entry, inner) for entry in value]
            return [self.section(v, inner, f"{place}.{i}.") for i, v in enumerate(entries)]
        if get_origin(field.annotation) is dict and isinstance(value, dict):
            return {k: self.section(v, inner, f"{place}.{k}.") for k, v in value.items()}
        return self.section(value, inner, f"{place}.")

    def _marked(self, value: Any, mark: Input, place: str) -> Any:
        if isinstance(value, str):
            return self._input(value, mark, place)
        if isinstance(value, list) and mark.key == "*":
            return [self._marked(each, mark, place) for each in value]
        if isinstance(value, dict) and mark.key == "*":
            return {self._marked(name, mark, place): given for name, given in value.items()}
        if isinstance(value, dict) and mark.key in value:
            located = self._marked(value[mark.key], mark, f"{place}.{mark.key}")
            return {**value, mark.key: located}
        return value

    def _input(self, value: str, mark: Input, place: str) -> str:
        before, path, rest = mark.part(value)
        if not path or re.match(r"\w+:", path):  # tiny:, pypi:NAME
            return value
        beside = absolute(path, self.folder)
        here = absolute(path, Path.cwd())
        if beside.exists() or not mark.surely(path):
            self.found[place] = str(beside) if beside.exists() else path
        if not beside.exists() and here.exists() and here != beside:
            there = f"{before}{os.path.relpath(here, self.folder)}{rest}"
            self.misplaced[place] = (value, there)
        elif not mark.surely(path) and not beside.exists():
            return value
        return f"{before}{beside}{rest}"


def _entry(given: Any, model: type[BaseModel]) -> Any:
    """An entry of a list of sections, which may be its `id` alone."""
    return {"id": given} if isinstance(given, str) and "id" in model.model_fields else given


def _mark(field: FieldInfo) -> Input | None:
    """The mark of a key, required or optional."""
    options = [a for option in get_args(field.annotation) for a in get_args(option)]
    return next((a for a in [*field.metadata, *options] if isinstance(a, Input)), None)


def absolute(path: str | Path, folder: Path) -> Path:
    """A path relative to a folder as an absolute one; `~` and `..` are resolved, links are not."""
    return Path(os.path.abspath(folder / Path(path).expanduser()))


def shown_path(path: str | Path) -> str:
    """A path as people write it: relative to the working folder if it is inside."""
    given = Path(path)
    return str(given.relative_to(Path.cwd())) if given.is_relative_to(Path.cwd()) else str(path)
