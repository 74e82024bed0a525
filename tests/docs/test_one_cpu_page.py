"""docs/one_cpu_to_many_gpus.md: the YAML of each station is a run's, and what it names exists."""

import re

import pytest
import yaml

from gymnast.trainers.config.sections import RunConfig
from page_names import codes, known_keys, unknown
from pages import ROOT, merged

PAGE = (ROOT / "docs/one_cpu_to_many_gpus.md").read_text()
STATIONS = re.findall(r"^## (\d\..*?)$(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = {title: re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) for title, text in STATIONS}
OTHERS = {
    "memory:",
    "gpu",
    "async def",
    "nccl",
    "ipc",
    "tiny:",
    "accelerate launch",
    "share_device",
    "max_staleness",
}


@pytest.mark.parametrize("title", [title for title, blocks in BLOCKS.items() if blocks])
def test_the_yaml_of_a_station_is_that_of_a_run(title: str) -> None:
    (text,) = BLOCKS[title]
    base = yaml.safe_load(BLOCKS[STATIONS[0][0]][0])
    settings = merged(base, yaml.safe_load(text))
    config = RunConfig.model_validate(settings)
    assert config.environment.id == base["environment"]["id"]
    agent = settings.get("agent", {})
    named = {f"agent.{key}" for key in agent}
    named |= {f"agent.launch.{key}" for key in agent.get("launch", {})}
    assert named <= known_keys() | {"agent.backend"}


def test_the_first_table_and_the_last_have_every_station() -> None:
    numbers = [title.split(".")[0] for title, _ in STATIONS]
    assert numbers == [str(n) for n in range(1, 10)]
    assert re.findall(r"^\| \[(\d)\. ", PAGE, re.MULTILINE) == numbers
    assert re.findall(r"^\| (\d) \| ", PAGE, re.MULTILINE) == numbers


def test_what_it_names_exists() -> None:
    assert not unknown(codes(PAGE), OTHERS)


def test_the_files_of_its_commands_exist() -> None:
    for path in re.findall(r"examples/[\w/.]+\.\w+", PAGE):
        assert (ROOT / path).exists(), path
