"""Words that a shell completes to, found without importing what runs: in a tenth of a second.

The keys of a run's YAML are in run_keys.json, which `tests/gymnast/test_run_keys.py` writes and
compares with the config's classes.

A shell puts a space behind a word that is the only one. None belongs behind a folder or a key, so
neither is ever alone: what is in the folder is listed, and a key beside what it may be set to.
"""

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnast.gymnasium_ids import ENVIRONMENTS

YAML = (".yaml", ".yml")
_KEYS = Path(__file__).parent / "run_keys.json"
_GROUP = "gymnast.environments"
STOP_REASONS = (  # those of `gymnast.types.StopReason`, whose import takes long
    *("answered", "stop_tool", "environment"),
    *("max_turns", "max_tokens", "context", "timeout", "error"),
)
_SCHEMES = ("gymnasium:", "mcp:", "openenv:", "reasoning_gym:", "trl:")

Word = tuple[str, str]  # with what it means; "" where that needs no words


def complete_yaml(incomplete: str) -> list[str]:
    """Files of a run's configuration, and folders that may lead to one."""
    return _files(incomplete, YAML)


def complete_run(incomplete: str) -> list[str]:
    """Folders of runs, files of their configuration, and folders that may lead to them."""
    return _files(incomplete, YAML, runs=True)


def complete_target(incomplete: str) -> list[Word]:
    """What is evaluated, or a setting: runs and configurations, then settings."""
    return [*((found, "") for found in complete_run(incomplete)), *complete_override(incomplete)]


def complete_environment(incomplete: str) -> list[str]:
    """Ids of environments, schemes of adapters, and files that may define one."""
    named = [name for name in _environments() if name.startswith(incomplete)]
    return named or _files(incomplete, (".py",))


def complete_stop_reason(incomplete: str) -> list[str]:
    """Why an episode may have ended."""
    return [reason for reason in STOP_REASONS if reason.startswith(incomplete)]


def complete_override(incomplete: str) -> list[Word]:
    """Settings of a run as `key=value`: keys, section by section, then what one may be set to."""
    keys: Mapping[str, Mapping[str, Any]] = json.loads(_KEYS.read_text(encoding="utf-8"))
    key, equals, value = _at_equals(incomplete)
    if equals:
        before = "" if _is_split() else f"{key}="
        return [(f"{before}{each}", "") for each in _values(key, keys) if each.startswith(value)]
    found = [name for name in keys if name.startswith(incomplete)]
    sections = dict.fromkeys(_up_to_dot(name, len(incomplete)) for name in found)
    if len(sections) > 1:
        return [(each, keys[each[:-1]]["help"] if each[:-1] in keys else "") for each in sections]
    if len(found) == 1:
        (name,) = found
        means = keys[name]["help"]
        return [(f"{name}=", means), *((f"{name}={each}", "") for each in _values(name, keys))]
    return [(f"{name}=", keys[name]["help"]) for name in found]


def _up_to_dot(name: str, start: int) -> str:
    """A key up to the end of the part that is being written; a whole key ends with "="."""
    dot = name.find(".", start)
    return f"{name}=" if dot < 0 else name[: dot + 1]


def _values(key: str, keys: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if key == "environment.id":
        return _environments()
    of_key = keys.get(key, {})
    return [*of_key.get("values", ["null"])]


def _at_equals(incomplete: str) -> tuple[str, bool, str]:
    """The key before an equals sign, whether there is one, and what is written behind it.

    Bash takes the sign for a word of its own.
    """
    if _is_split():
        words = _bash_words()
        place = int(os.environ.get("COMP_CWORD", "0"))
        here = words[place] if place < len(words) else ""
        if here == "=":
            return words[place - 1], True, ""
        if place >= 2 and words[place - 1] == "=":
            return words[place - 2], True, here
    key, equals, value = incomplete.partition("=")
    return key, bool(equals), value


def _is_split() -> bool:
    return os.environ.get("_GYMNAST_COMPLETE") == "complete_bash"


def _bash_words() -> Sequence[str]:
    text = os.environ.get("COMP_WORDS", "")
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return text.split()


def _environments() -> list[str]:
    from importlib.metadata import entry_points

    registered = sorted(point.name for point in entry_points(group=_GROUP))
    return [*dict.fromkeys([*ENVIRONMENTS, *registered]), *_SCHEMES]


def _files(incomplete: str, suffixes: Sequence[str], *, runs: bool = False) -> list[str]:
    """Files and folders that a path may go on with; of one folder alone, what is in it."""
    written = incomplete
    while True:
        found = [*_entries(written, suffixes, runs=runs)]
        if len(found) != 1 or not found[0].endswith("/") or found[0] == written:
            return found
        written = found[0]


def _entries(written: str, suffixes: Sequence[str], *, runs: bool) -> Iterator[str]:
    folder, name = os.path.split(written)
    before = f"{folder.rstrip('/')}/" if folder else ""
    try:
        inside = sorted(Path(folder or ".").expanduser().iterdir())
    except OSError:
        return
    for path in inside:
        if not path.name.startswith(name) or (path.name.startswith(".") and not name):
            continue
        if path.is_dir():
            if runs and (path / "config.yaml").exists():
                yield f"{before}{path.name}"
            else:
                yield f"{before}{path.name}/"
        elif path.suffix in suffixes:
            yield f"{before}{path.name}"
