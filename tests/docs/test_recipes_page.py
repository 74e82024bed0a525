"""docs/recipes.md: what its commands print is what it says; they themselves run with all others."""

import re
import shlex
from pathlib import Path

from chat_fixtures import Endpoint, says
from command_fixtures import CommandLine
from pages import ROOT, blocks, files

PAGE = ROOT / "docs/recipes.md"


def test_the_recipes_follow_each_other(gymnast: CommandLine) -> None:
    for name, text in files(PAGE).items():
        Path(name).write_text(text)
    lines = [line for block in blocks(PAGE) for line in block.text.splitlines()]
    ran = [gymnast(*shlex.split(line, comments=True)[1:]) for line in lines]
    assert [(each.code, each.errors if each.code else "") for each in ran] == [(0, "")] * len(lines)
    dry, trained, _, checked, _, unpaid, _, why, episode, _, _, compared, _, _, _, of_more = ran
    assert "nothing was written" in dry.output
    assert (
        "evaluation after step 0" in trained.output and "evaluation after step 4" in trained.output
    )
    assert "ok: lift.py:Lift" in checked.output and "no calls" in unpaid.output
    assert "no calls: " in why.output
    assert episode.output.startswith("step_00001/0/1 ")
    assert "A and B differ in trainer.learning_rate: 0.001 and 0.01\n" in compared.output
    for shown, rows in ((compared, 8), (of_more, 64)):
        assert f"B and A: {rows} rows pair by row and seed\n" in shown.output
        assert "chance of rows and sampling" in shown.output.splitlines()[-1]


def test_an_endpoint_is_evaluated(gymnast: CommandLine, endpoint: Endpoint) -> None:
    endpoint.answers(says("It is 42."))
    [text] = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [command] = [shlex.split(line)[1:] for line in text.splitlines()]
    shown = [endpoint.url if part.startswith("http") else part for part in command]
    ran = gymnast(*shown)
    assert ran.code == 0, ran.errors
    folder = ran.output.splitlines()[-1].rpartition(" ")[2]
    assert "8 episodes" in gymnast("rollouts", folder, "--limit", "1").output
