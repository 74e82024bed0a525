"""docs/sandboxes.md: its examples run, its rows are read, its table has every field."""

import asyncio
import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymnast.envs.builtin.shell import Shell
from gymnast.sandboxes import SandboxSpec
from gymnast.trainers import load_config

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/sandboxes.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_run(calls: Any) -> None:
    namespace: dict[str, Any] = {}
    for source in blocks("python"):
        exec(compile(source, "docs/sandboxes.md", "exec", dont_inherit=True), namespace)

    async def run() -> float:
        env = namespace["Sorting"](sandbox="local")
        await env.areset(options={"row": {"prompt": "Sort names.txt.", "names": ["b", "c", "a"]}})
        await env.act(calls(("shell", {"command": "sort -o names.txt names.txt"})))
        outcome = await env.act({"role": "assistant", "content": "Done."})
        await env.aclose()
        return float(outcome.reward)

    assert asyncio.run(run()) == 1.0


COMMIT = (
    "git init -q repo; cd repo; echo hello > hello.txt; git add .; "
    "git -c user.name=a -c user.email=a@b commit -qm hello"
)


@pytest.mark.parametrize(
    ("number", "command"), [(0, "wc -l < data.txt | tr -d ' ' > answer.txt"), (1, COMMIT)]
)
def test_a_row_of_shell_is_solved(
    number: int, command: str, play: Callable[..., Any], calls: Any
) -> None:
    row = json.loads(blocks("json")[number])
    if row["check"].startswith("git") and shutil.which("git") is None:
        pytest.skip("there is no git")
    done = {"role": "assistant", "content": "Done."}
    solve = calls(("shell", {"command": command}))
    assert play(Shell(sandbox="local"), solve, done, row=row)[-1].reward == 1.0
    assert play(Shell(sandbox="local"), done, row=row)[-1].reward == 0.0


def test_the_table_has_every_field_with_its_default() -> None:
    table = dict(re.findall(r"^\| (`.*?) \| (.*?) \|", PAGE, re.MULTILINE))
    named = [name for cell in table for name in re.findall(r"`(\w+)`", cell)]
    for field in dataclasses.fields(SandboxSpec):
        assert field.name in named, field.name
    shown = {"memory_bytes": "512 MiB", "processes": "64", "cpus": "1.0", "disk_bytes": "64 MiB",
             "timeout_s": "30", "max_output_bytes": "1 MiB", "start_timeout_s": "60"}  # fmt: skip
    for name, text in shown.items():
        default = getattr(SandboxSpec(), name)
        number, _, unit = text.partition(" ")
        assert table[f"`{name}`"] == text
        assert float(number) * ((1 << 20) if unit else 1) == default


def test_yaml_of_the_page_and_the_examples_can_be_read() -> None:
    for text in blocks("yaml"):
        yaml.safe_load(text)
    for name in ("code", "code_docker"):
        config = load_config(ROOT / f"examples/{name}.yaml")
        assert config.environment.id == "gymnast/Code-v0"
