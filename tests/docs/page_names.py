"""What pages name in `code`: whether it exists here.

A name is a key of a run's YAML (`trainer.steps`, `algorithm.kl: {coefficient: 0.01}`), an option of
an algorithm, a setting of an agent, a command (`gymnast eval RUN --rows 8`), a metric, a name in
Python (`Environment.reward`, `gymnast.trainers.collect`), something in a registry (`grpo`), an
environment's id, an error, or a file of the repository.
"""

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import typer
import yaml

import gymnast.errors
from gymnast.agents.transformers_agent import TransformersAgent
from gymnast.agents.vllm.launch import Launch
from gymnast.agents.vllm_trained import trained_vllm_agent
from gymnast.cli import app
from gymnast.envs import Environment, Episode, Turn, rubrics
from gymnast.envs.records.episode import ErrorKind
from gymnast.envs.registry import SCHEMES
from gymnast.gymnasium_ids import ENVIRONMENTS
from gymnast.sandboxes.backends.open import BACKENDS
from gymnast.trainers.algorithms.advantages import ESTIMATORS
from gymnast.trainers.algorithms.aggregations import AGGREGATIONS
from gymnast.trainers.algorithms.algorithm import PRESETS
from gymnast.trainers.algorithms.kl import DIVERGENCES
from gymnast.trainers.algorithms.losses import LOSSES
from gymnast.trainers.config.sections import run_keys
from gymnast.types import StopReason
from pages import ROOT

MODULES = ("gymnast", "gymnast.envs", "gymnast.agents", "gymnast.trainers", "gymnast.sandboxes")
LISTS = ("rewards", "environment.mixture", "environment.wrappers", "evaluation.environments")
FREE = ("environment", "model.chat_template_kwargs", "model.lora.extra", "trainer.optimizer")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_KEY = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def codes(text: str) -> list[str]:
    """What stands in backquotes within a text, its fenced blocks left out."""
    return [" ".join(code.split()) for code in _CODE.findall(_FENCED.sub("", text))]


def unknown(found: Iterable[str], foreign: Iterable[str] = ()) -> list[str]:
    """Those that name nothing here, and are not said to be another's."""
    others = set(foreign)
    return sorted({code for code in found if code not in others and not exists(code)})


def exists(code: str) -> bool:
    """Whether it names something here."""
    if code.startswith("gymnast ") or code == "gymnast":
        return is_command(code)
    tests = (is_setting, is_metric, is_in_python, is_registered, is_environment, is_file)
    return any(test(code) for test in tests)


# ---- a run's YAML ----


@cache
def known_keys() -> frozenset[str]:
    """Keys of a YAML, with options of algorithms, settings of agents and of every environment."""
    options = {
        f"algorithm.{name}"
        for registry in (ESTIMATORS, LOSSES, AGGREGATIONS)
        for part in registry.values()
        for name in part.options
    }
    agents = {
        f"agent.{name}"
        for make in (TransformersAgent, trained_vllm_agent)
        for name in inspect.signature(make).parameters
    }
    launch = {f"agent.launch.{field.name}" for field in fields(Launch)}
    own = {f"environment.{name}" for name in inspect.signature(Environment).parameters}
    keys = {*run_keys(), *options, *agents, *launch, *own}
    sections = {key.rpartition(".")[0] for key in keys} | {key.partition(".")[0] for key in keys}
    return frozenset(keys | sections - {""})


def is_setting(code: str) -> bool:
    """A dotted key, alone or with a value: `trainer.steps`, `agent.launch: {servers: 2}`."""
    key = _KEY.match(code)
    if key is None:
        return False
    rest = code[key.end() :]
    if rest and not rest.startswith((": ", "=", ".")):
        return False
    if rest in ("", ".", "..."):
        return key[0] in known_keys()
    try:
        value = yaml.safe_load(rest.lstrip(":= "))
    except yaml.YAMLError:
        return False
    return all(path in known_keys() or path.startswith(FREE) for path in _paths(key[0], value))


def _paths(key: str, value: Any) -> Iterator[str]:
    yield key
    if isinstance(value, Mapping) and key not in (*LISTS, *FREE) and not key.startswith("data."):
        for name, inner in value.items():
            yield from _paths(f"{key}.{name}", inner)


# ---- commands ----


@cache
def _commands() -> dict[str, Any]:
    group = typer.main.get_command(app)
    return dict(group.commands)  # type: ignore[attr-defined]


def is_command(code: str) -> bool:
    """A command that there is, with options and settings that there are."""
    words = code.split()[1:]
    if not words:
        return True
    command = _commands().get(words[0])
    if command is None:
        return words[0].startswith("--")
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    options = [word.partition("=")[0] for word in words[1:] if word.startswith("-")]
    settings = [word.partition("=")[0] for word in words[1:] if re.match(r"[a-z_.]+=", word)]
    return set(options) <= known | {"--help"} and all(key in known_keys() for key in settings)


# ---- metrics ----


@cache
def _metrics() -> list[re.Pattern[str]]:
    page = (ROOT / "docs/metrics.md").read_text().partition("## Trackers")[0]
    first = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    names = [name for cell in first for name in re.findall(r"`([^`]+)`", cell)]
    return [re.compile("(eval/)?" + re.sub("<[a-z]+>", "[^/]+", name)) for name in names]


def is_metric(code: str) -> bool:
    """A name of docs/metrics.md; `engine/...` and `engine/*` are any that begin so."""
    if code.endswith(("/...", "/*")):
        names = (pattern.pattern.removeprefix("(eval/)?") for pattern in _metrics())
        return any(name.startswith(code.rstrip(".*")) for name in names)
    return any(pattern.fullmatch(code) for pattern in _metrics())


# ---- Python ----


def is_in_python(code: str) -> bool:
    """A public name, a hook, a field or a method: `tool`, `Trajectory.branches`, `collect(...)`."""
    name = re.sub(r"\(.*\)$", "", code).removeprefix("@").removeprefix("await ")
    if re.fullmatch(r'info\["\w+"\]', name):
        return any(
            name[5:-1] in path.read_text() for path in (ROOT / "envs/environment").rglob("*.py")
        )
    if not _DOTTED.fullmatch(name):
        return False
    first, *rest = name.removeprefix("self.").split(".")
    if name.startswith(("self.", "environment.", "env.")):
        return _has(Environment, rest if name.startswith("env") else [first, *rest])
    if name.startswith("episode."):
        return _has(Episode, rest)
    if name.startswith("turn."):
        return _has(Turn, rest)
    if name.startswith("gymnast."):
        return _importable(name)
    homes = [importlib.import_module(module) for module in (*MODULES, "gymnast.types")]
    homes += [gymnast.errors, rubrics]
    return any(_has(home, [first, *rest]) for home in homes) or _has(Environment, [first, *rest])


def _importable(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        return _has(module, parts[end:])
    return False


def _has(home: Any, path: list[str]) -> bool:
    for name in path:
        if is_dataclass(home) and name in {field.name for field in fields(home)}:
            home = get_type_hints(home).get(name)
        elif hasattr(home, name):
            home = getattr(home, name)
        elif inspect.isclass(home) and f"self.{name} = " in inspect.getsource(home):
            home = None
        else:
            return False
    return True


# ---- what has a name in a registry ----


@cache
def _registered() -> frozenset[str]:
    registries: tuple[Iterable[str], ...] = (
        *(ESTIMATORS, LOSSES, AGGREGATIONS, PRESETS, DIVERGENCES, rubrics.KINDS, BACKENDS.known()),
        *([reason.value for reason in StopReason], get_args(ErrorKind), SCHEMES),
    )
    return frozenset(name for registry in registries for name in registry)


def is_registered(code: str) -> bool:
    """An estimator, a loss, an aggregation, a rubric, a backend, a stop reason, a kind of error."""
    return code in _registered()


def is_environment(code: str) -> bool:
    """`gymnast/Arithmetic-v0`, or a name with a scheme: `mcp:NAME`."""
    return code in ENVIRONMENTS or code.partition(":")[0] in SCHEMES


def is_file(code: str) -> bool:
    """A file or folder of the repository."""
    return re.fullmatch(r"[\w./-]+", code) is not None and (ROOT / code).exists()
