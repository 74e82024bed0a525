"""The pages of docs/reference say what the code says, and their examples are right."""

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from command_fixtures import CommandLine
from generate import PAGES
from gymnast.trainers.config.files import load_config
from gymnast.trainers.config.sections import run_keys
from key_page import examples, inner_section, own_keys, sections
from pages import ROOT

SHOP = "shop.py:Shop"
BASE = {"model": {"name": "tiny:"}, "environment": {"id": SHOP}, "evaluation": {"rows": 4}}
# What a key needs beside it.
BESIDE: dict[str, dict[str, Any]] = {
    "data": {"train": "rows.jsonl"},
    "environment.wrappers[]": {"id": "TransformReward"},
    "environment.mixture[]": {"id": SHOP},
    "evaluation.environments.NAME": {"id": SHOP},
    "algorithm.importance_level": {"importance_cap": 2},
    "algorithm.kl": {"coefficient": 0.1},
    "algorithm.teacher": {"model": "org/other"},
    "algorithm.teacher.divergence": {"model": "org/other", "estimator": "exact"},
    "algorithm.teacher.urls": {},
    "rewards[]": {"function": "shop.py:brevity"},
    "trainer.dynamic_sampling": {"most_rows": 16},
    "warmup": {"demonstrations": "solve"},
}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_what_the_code_says(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), "run python docs/generate.py"


def keys() -> Iterator[str]:
    for place in sections():
        for name in own_keys(place):
            key = f"{place}.{name}".lstrip(".")
            if inner_section(key) is None:
                yield key


def test_every_key_has_an_example() -> None:
    assert [*examples()] == [*keys()]


def test_the_page_of_keys_has_every_key_that_a_run_may_have() -> None:
    page = (ROOT / "docs/reference/keys.md").read_text()
    named = set(re.findall(r"^### `(.*)`$|^- \[`([^`]*?)(?:\[\]|\.NAME)?`\]", page, re.MULTILINE))
    assert {"".join(each) for each in named} >= {*run_keys()}


@pytest.mark.parametrize("key", [*keys()])
def test_an_example_is_right(key: str, tmp_path: Path) -> None:
    (tmp_path / "best_of_group.py").write_text("def best_of_group(batch): return batch.rewards\n")
    for name in ("shop.py", "rewards.py", "parsing.py"):
        (tmp_path / name).touch()
    for name in ("rows.jsonl", "held_out.jsonl", "prices.jsonl", "harder.jsonl", "template.jinja"):
        (tmp_path / name).touch()
    place, _, name = key.rpartition(".")
    section = {**BESIDE.get(key, BESIDE.get(place, {})), name: "EXAMPLE"}
    settings = merged(BASE, nested(place, section))
    if name == "demonstration_weight":
        settings["warmup"] = BESIDE["warmup"]
    if name in ("compose", "mixture") or ".mixture[]" in key:
        del settings["environment"]["id"]
    text = json.dumps(settings).replace('"EXAMPLE"', examples()[key])
    (tmp_path / "run.yaml").write_text(text)
    load_config(tmp_path / "run.yaml")


def nested(place: str, section: dict[str, Any]) -> dict[str, Any]:
    """A whole YAML in which a section stands at its place."""
    value: Any = section
    for part in reversed(place.split(".")) if place else ():
        value = {part.removesuffix("[]"): [value] if part.endswith("[]") else value}
    return dict(value)


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = {key: one[key] for key in one.keys() & other.keys()}
    inner = {k: merged(v, other[k]) for k, v in both.items() if isinstance(v, dict)}
    return {**one, **other, **inner}


def test_the_page_of_commands_has_every_command(gymnast: CommandLine) -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    listed = re.findall(r"^│ (\w+)", gymnast("--help").output.partition("Commands")[2], re.M)
    assert len(listed) > 10
    assert [name for name in listed if f"## `gymnast {name}`" not in page] == []


@pytest.mark.parametrize(
    "package",
    ["envs", "envs.rubrics", "agents", "trainers", "sandboxes"],
)
def test_the_pages_of_the_api_have_every_public_name(package: str) -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs/reference/api").glob("*.md"))
    module = import_module(f"gymnast.{package}")
    public = [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]
    names = {f"gymnast.{package}.{name}" for name in public}
    assert names - {*re.findall(r"^\.\. auto\w+:: ([\w.]+)$", pages, re.MULTILINE)} == set()
