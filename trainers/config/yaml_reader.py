"""YAML text and overrides into plain dicts; errors say where in the text a mistake is.

Habits of YAML are corrected: `1e-3` is a number (YAML 1.1 wants `1.0e-3`); a key that is written
twice is an error (YAML would silently take the last), and so is `{a:b}` (a key without a value).
"""

import codecs
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from gymnast.errors import ConfigError
from gymnast.lookup import nearest_file

_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+"
    r"|[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_WITHOUT_SPACE = re.compile(r"\w+:[^/]")  # `{a:b}` is the key "a:b" without a value
_NAME = re.compile(r"\w+:")
_WORD_WITH_COLON = re.compile(r"[^\s\[\]{},:'\"]+:$")  # the end of a line up to a colon
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PARQUET = b"PAR1"  # how such a file begins
_NULL_TAG = "tag:yaml.org,2002:null"
_FLOAT_TAG = "tag:yaml.org,2002:float"


class _Loader(yaml.SafeLoader):
    """YAML's safe loader with the numbers of YAML 1.2 and no repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                left_out = value.tag == _NULL_TAG and value.value == ""
                if node.flow_style and left_out and _WITHOUT_SPACE.match(key.value):
                    raise yaml.constructor.ConstructorError(
                        None,
                        None,
                        f"a space is missing after the colon of {key.value!r}",
                        key.start_mark,
                    )
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is written twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _FLOAT_TAG]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _FLOAT_TAG, re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+0123456789.")
)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: The file is missing, cannot be read, or is not a YAML mapping.
    """
    file = Path(path).expanduser()
    try:
        written = file.read_bytes()
        _check_text(path, written)
        text = written.decode("utf-8-sig")
    except FileNotFoundError as error:
        looked = "" if file.is_absolute() else f" (looked in {Path.cwd()})"
        near = nearest_file(path)
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"{path}: there is no such file{looked}{hint}") from error
    except IsADirectoryError as error:
        kept = file / "config.yaml"
        way = f"such as {kept}, its run's configuration" if kept.exists() else "such as RUN.yaml"
        raise ConfigError(f"{path}: is a folder; name a YAML file, {way}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: is not UTF-8 text (byte {error.start + 1}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    settings = _parse(text, str(path))
    if settings is None:
        raise ConfigError(f"{path}: is empty; a run needs at least model, environment and trainer")
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{path}: must be a mapping of sections (model: ...), got {settings!r:.100}"
        )
    return settings


def _check_text(path: str | Path, written: bytes) -> None:
    """Refuse a binary file; text of another encoding is told so when it is decoded."""
    if written.startswith(_PARQUET):
        kind = "a Parquet file"
    elif b"\0" in written and not written.startswith(_UTF16):
        kind = f"a binary file (byte {written.index(0) + 1} is NUL)"
    else:
        return
    raise ConfigError(f"{path}: is {kind}, not text; name a YAML file, such as RUN.yaml")


def with_overrides(
    settings: dict[str, Any],
    overrides: Sequence[str],
    read: Callable[[Sequence[str], Any], Any] = lambda names, value: value,
    *,
    form: str = "dotted.key=value, such as trainer.steps=3",
) -> dict[str, Any]:
    """Settings with `dotted.key=value` overrides applied; values are read as YAML.

    Args:
        settings: Left unchanged.
        overrides: If a key is overridden twice, the last value counts.
        read: Maps the parts of a key and its value to the value that is set.
        form: What an override must be, for errors.

    Raises:
        ConfigError: An override is malformed, or its key leads into something without keys.
    """
    result = _copied(settings)
    for override in overrides:
        key, equals, text = override.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names):
            raise ConfigError(f"override {override!r}: must be {form}")
        # `tiny:` alone is a name; as YAML it would be a mapping without a value.
        parsed = text if _NAME.fullmatch(text) else _parse(text, f"override {override!r}")
        value = read(names, parsed)
        section = result
        for depth, name in enumerate(names[:-1], start=1):
            if section.get(name) is None:
                section[name] = {}
            section = section[name]
            if not isinstance(section, dict):
                raise ConfigError(
                    f"override {override!r}: {'.'.join(names[:depth])} is {section!r:.100}, "
                    f"which has no keys; give all of it ({'.'.join(names[:depth])}=...)"
                )
        section[names[-1]] = value
    return result


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        if "'\\t'" in str(error.problem):
            raise ConfigError(f"{source}{place}: a tab; YAML is indented with spaces") from error
        if error.context == "expected a single document in the stream":
            raise ConfigError(
                f"{source}{place}: a second document begins here, and one alone is read; move it "
                "to a file of its own, or remove the line that begins it (---) to make one of both"
            ) from error
        context = f" ({error.context})" if error.context else ""
        shown = _shown_line(text, mark, source) if mark is not None else ""
        raise ConfigError(f"{source}{place}: {error.problem}{context}{shown}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: is not YAML: {' '.join(str(error).split())}") from error


def _shown_line(text: str, mark: yaml.Mark, source: str) -> str:
    """The line of a mistake, where its source does not show it; and how a colon is written."""
    line = "".join(text.splitlines()[mark.line : mark.line + 1])
    shown = f", in {line.strip()!r:.100}" if line.strip() and line not in source else ""
    colon = line[mark.column : mark.column + 1] == ":"
    word = _WORD_WITH_COLON.search(line, endpos=mark.column + 1) if colon else None
    if word is None:
        return shown
    value = word[0] if {*"{["} & {*line} else line[word.start() :].strip()
    return f'{shown}; a value with a colon is quoted: "{value}"'


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return value
