"""Every block of YAML of README and docs is a run's, or a part of one, and what it names is there.

A part is read with what BASE has beside it. The working folder has the page's files, and MODULES:
those of which the pages speak as the reader's own.
"""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymnast.agents.backends import CHAT, find_backend
from gymnast.agents.chat import make_chat_agent
from gymnast.errors import UsageError
from gymnast.trainers import load_config
from gymnast.trainers.config.environments import find_environments
from gymnast.trainers.config.yaml_reader import read_yaml
from gymnast.trainers.rollouts.rewards import load_rewards
from pages import PAGES, ROOT, defining, files, languages, merged
from readers import READERS

BASE = {"model": {"name": "tiny:"}, "environment": {"id": "gymnast/Arithmetic-v0"}}
ALGORITHMS = ROOT / "docs/algorithms.md"
OF_SERVERS = "gymnast.envs.adapters.mcp.environment:McpEnvironment"  # `mcp:NAME`; needs no package
CASES = [
    pytest.param(page, text, id=f"{page.stem}-{number}")
    for page in PAGES
    if (page.name, "yaml") not in READERS
    for number, text in enumerate(languages(page).get("yaml", ()), 1)
]


SHOP = '''
from gymnast.envs import Environment

class Shop(Environment):
    """Buy things."""

class StrictShop(Shop):
    """Buy things, and pay."""

def brevity(trajectory):
    return 0.0
'''
SHAPING = """
import gymnasium

class Doubled(gymnasium.Wrapper):
    pass

def halved(reward):
    return reward / 2
"""
MY_ESTIMATOR = """
from gymnast.trainers import advantages

@advantages.per_group
def my_estimator(rewards, *, my_option: int = 0):
    return rewards
"""
POLITE = """
from gymnast.envs import rubrics
polite = rubrics.all_of(rubrics.regex('please'))
"""
MODULES = {
    "exam.py": SHOP.replace("StrictShop", "Exam"),
    "judges.py": defining(ALGORITHMS, "judged"),
    "my_module.py": defining(ALGORITHMS, "ranks") + MY_ESTIMATOR,
    "my_rewards.py": defining(ALGORITHMS, "brevity") + POLITE,
    "shaping.py": SHAPING,
    "shop.py": SHOP,
    "sorting.py": defining(ROOT / "docs/sandboxes.md", "Sorting"),
}


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_parts: None
) -> Iterator[Callable[..., None]]:
    """Reads a block, and checks what can be checked of its run without a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # before folders of other tests' modules
    monkeypatch.setenv("MY_KEY", "none")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    for name, text in MODULES.items():
        Path(name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)

    def check(text: str, page: Path | None = None) -> None:
        named = re.match(r"# ([\w/.]+\.yaml)\n", text)
        place = Path(named[1] if named else "run.yaml")
        if (ROOT / place).exists():  # beside what it names
            shutil.copytree((ROOT / place).parent, place.parent, dirs_exist_ok=True)
        for name, content in (files(page) if page else {}).items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(content)
        for one in alternatives(text):
            place.write_text(one if yaml.safe_load(one) else f"{one}{yaml.safe_dump(BASE)}")
            place.write_text(yaml.safe_dump(whole(read_yaml(place))))
            check_run(place)

    yield check
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)


def alternatives(text: str) -> list[str]:
    """A block that has a section several times shows several runs."""
    if text.startswith(" "):  # what stands below `environment:`
        return [f"environment:\n{text}"]
    found: list[dict[str, str]] = [{}]
    for section in re.split(r"^(?=\w)", text, flags=re.MULTILINE):
        name = section.partition(":")[0]
        if name in found[-1]:
            found.append({})
        found[-1][name] = section
    return ["".join(each.values()) for each in found]


def whole(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, with those of BASE where they are but a part of a run."""
    if BASE.keys() <= settings.keys():
        return settings
    run = merged(BASE, settings)
    if {"mixture", "compose"} & run["environment"].keys():
        del run["environment"]["id"]
    return run


def check_run(path: Path) -> None:
    config = load_config(path)
    if (config.environment.id or "").startswith("mcp:"):
        config = load_config(path, [f"environment.id={OF_SERVERS}"])
    find_environments(config)
    load_rewards([reward.named for reward in config.rewards])
    agent, settings = config.agent.backend, config.agent.model_extra or {}
    if agent == CHAT:
        make_chat_agent(settings)
    else:
        find_backend(agent, settings)


@pytest.mark.parametrize(("page", "text"), CASES)
def test_a_block_is_a_runs(page: Path, text: str, check: Callable[..., None]) -> None:
    check(text, page)


@pytest.mark.parametrize(
    "text",
    [
        "trainer: {max_stalenes: 1}",
        "trainer: {max_staleness: 1}\ntrainer: {max_stalenes: 1}",
        "environment: {id: gymnast/Search-v0, corpus_: documents.jsonl}",
        'environment: {id: "mcp:time", commands: [uvx, mcp-server-time]}',
        "  sandbox: docker\n  max_turn: 3",
        "agent: {backend: transformers, devices: cpu}",
        "agent: {backend: chat, model: my-model, base_urls: http://localhost}",
        'algorithm: {name: "my_module:my_estimator", my_options: 1}',
        'rewards: [{function: "my_rewards:brevity", weigth: 0.5}]',
        'rewards: [{function: "my_rewards:brevities"}]',
        "trackers: {tensorbord: {}}",
    ],
)
def test_a_wrong_key_in_a_block_is_found(text: str, check: Callable[..., None]) -> None:
    with pytest.raises(UsageError):
        check(text)
