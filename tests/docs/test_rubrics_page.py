"""docs/rubrics.md: its examples run, its YAML is a run's, and its tables have every argument."""

import asyncio
import contextlib
import io
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from chat_fixtures import Endpoint, says
from gymnast.envs import rubrics
from gymnast.trainers.config.sections import RewardSection
from gymnast.trainers.rollouts.rewards import load_rewards
from pages import ROOT
from rubric_fixtures import played

PAGE = (ROOT / "docs/rubrics.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_first_example_prints_what_the_page_says() -> None:
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(PYTHON[0], {"__name__": "page"})
    assert said.getvalue() == printed


def test_the_example_of_a_judge_judges(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    endpoint.answers(says("VERDICT: yes"))
    names: dict[str, rubrics.Rubric] = {}
    exec(PYTHON[1], names)
    assert asyncio.run(names["polite"](played("Thank you."))).reward == 1.0
    assert len(endpoint.requests) == 3


def test_the_yaml_names_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_rewards.py").write_text(
        "from gymnast.envs import rubrics\npolite = rubrics.all_of(rubrics.regex('please'))\n"
    )
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    sections = [RewardSection(**one) for one in yaml.safe_load(text)["rewards"]]
    made = load_rewards([section.named for section in sections])
    assert [(reward.name, reward.weight) for reward in made] == [
        ("numeric", 1.0),
        ("boxed", 0.2),
        ("polite", 0.5),
    ]


@pytest.mark.parametrize("kind", rubrics.KINDS)
def test_the_tables_have_every_kind_and_argument(kind: str) -> None:
    judges, rows = PAGE.partition("\n## Judges\n")[2], PAGE.splitlines()
    (line,) = [row for row in rows if row.startswith(f"| `{kind}` |")]
    listed = judges if kind == "judge" else line.rpartition(" | ")[0] + line.rpartition(" | ")[2]
    for field in fields(rubrics.KINDS[kind]):  # type: ignore[arg-type]
        assert not field.init or f"`{field.name}`" in listed, field.name
